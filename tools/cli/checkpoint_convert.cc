// tributary checkpoint export and import: safetensors files, without any daemon.
#include "server/checkpoint/checkpoint_convert.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/clock.h"
#include "common/config/config_toml.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "tools/cli/parts/commands.h"

namespace tributary::cli {
namespace {

using Json = nlohmann::ordered_json;

int report(const Result<ConversionResult>& result, bool json) {
  if (!result) {
    std::fprintf(stderr, "tributary checkpoint: %s\n", result.error().message.c_str());
    return 1;
  }
  if (json) {
    const Json out = {{"path", result->path},
                      {"tensors", result->tensors},
                      {"parameters", result->parameters},
                      {"bytes", result->bytes}};
    std::printf("%s\n", out.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    std::printf("%s: %llu tensors, %llu parameters, %.1f MB\n", result->path.c_str(),
                static_cast<unsigned long long>(result->tensors), static_cast<unsigned long long>(result->parameters),
                static_cast<double>(result->bytes) * 1e-6);
  }
  return 0;
}

void add_export(CliCommand checkpoint, int& exit_status) {
  struct ExportOptions {
    std::string path, file;
    bool optimizer = false, json = false;
  };
  auto options = std::make_shared<ExportOptions>();
  CliCommand command = checkpoint.add_subcommand("export", "parameters as a safetensors file, by tensor name, in fp32");
  command->add_option("CHECKPOINT", options->path, "its directory")->required();
  command->add_option("FILE", options->file, "to be written, as in model.safetensors")->required();
  command->add_flag("--optimizer", options->optimizer,
                    "the optimizer's state, too: NAME.exp_avg, NAME.exp_avg_sq, ...");
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options, &exit_status] {
    exit_status = report(export_safetensors(options->path, options->file, options->optimizer), options->json);
  });
}

struct ImportArguments {
  std::string file, job, directory = ".", like;
  std::vector<std::string> overrides;
  bool json = false;
};

Result<ConversionResult> import_file(const ImportArguments& arguments) {
  ImportOptions options;
  Result<JobConfig> job = load_job_config(arguments.job, arguments.overrides);
  if (!job) return tl::unexpected(job.error());
  options.job = std::move(*job);
  options.directory = std::filesystem::absolute(arguments.directory).lexically_normal().string();
  if (!arguments.like.empty()) {
    const Result<Manifest> like = open_checkpoint(arguments.like);
    if (!like) return tl::unexpected(like.error());
    for (const TensorSpec& tensor : like->tensors) options.order.push_back(tensor.name);
  }
  options.created = utc_now();
  return import_safetensors(arguments.file, options);
}

void add_import(CliCommand checkpoint, int& exit_status) {
  auto options = std::make_shared<ImportArguments>();
  CliCommand command =
      checkpoint.add_subcommand("import", "a safetensors file as a checkpoint of round 0, with fresh optimizer state");
  command->footer(
      "\nTensors get the order that `export` noted in the file, else that of the built-in trainer's names, else the\n"
      "file's, which may be sorted by name: then --like gives the order in which the trainers declare them.");
  command->add_option("FILE", options->file, "F32, F16 or BF16; becomes fp32")->required();
  command->add_option("--job", options->job, "the job file of what will be trained from it")
      ->required()
      ->type_name("JOB.toml");
  command->add_option("--set", options->overrides, "section.key=value, as for tributary up; may be repeated");
  command->add_option("--dir", options->directory, "where the checkpoint is to be (default: here)")
      ->type_name("FOLDER");
  command->add_option("--like", options->like, "a checkpoint of such a job: its order of the tensors")
      ->type_name("CHECKPOINT");
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options, &exit_status] { exit_status = report(import_file(*options), options->json); });
}

}  // namespace

void add_checkpoint_conversions(CliCommand checkpoint, int& exit_status) {
  add_export(checkpoint, exit_status);
  add_import(checkpoint, exit_status);
}

}  // namespace tributary::cli
