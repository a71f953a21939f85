// `tributary bench torch`: a GPT that PyTorch trains on the hosts of a lab, with DistributedDataParallel and with us,
// in turns.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/lab/repeated_runs.h"
#include "bench/measurements.h"
#include "common/base/printed.h"
#include "common/math/median.h"
#include "tools/cluster/process.h"
#include "tools/lab/lab_run.h"

namespace tributary::bench {
namespace {

struct Variant {
  const char* name;
  const char* words;
  const char* how;  // of bench/torch_rank.py
  lab::ServerHosts servers = lab::ServerHosts::kNone;
  std::vector<std::string> set = {};  // keys of the job
  std::uint32_t times = 1;            // how often the steps that the others make: what is cheap is given more of them
};

// The first is what computing takes, the second what the others are compared to.
const std::vector<Variant>& variants() {
  using enum lab::ServerHosts;
  static const std::vector<Variant> all = {
      {.name = "alone", .words = "computing alone", .how = "alone"},
      {.name = "ddp", .words = "DDP, gloo, fp32", .how = "ddp"},
      {.name = "ddp-fp16", .words = "DDP, gloo, fp16 hook", .how = "ddp-fp16"},
      {.name = "ddp-powersgd", .words = "DDP, gloo, PowerSGD", .how = "ddp-powersgd", .times = 2},
      {.name = "servers", .words = "servers, fp32", .how = "tributary", .servers = kPlaced},
      {.name = "colocated", .words = "servers on the training hosts, fp32", .how = "tributary", .servers = kWorkers},
      {.name = "int8",
       .words = "servers, int8 and bf16",
       .how = "tributary",
       .servers = kPlaced,
       .set = {"encoding.push=int8", "encoding.pull=bf16"}},
      {.name = "int8-delta",
       .words = "servers, int8 and int8-delta",
       .how = "tributary",
       .servers = kPlaced,
       .set = {"encoding.push=int8", "encoding.pull=int8-delta"}},
      {.name = "diloco", .words = "servers, DiLoCo", .how = "diloco", .servers = kPlaced, .times = 3}};
  return all;
}

struct TorchOptions {
  LabArguments labs;
  std::vector<std::string> names;
  std::string python = "python3";
  std::uint32_t steps = 100, warmup = 5, evaluate_every = 0, batch = 4, sync_every = 25;
  double lr = 1e-3, clip = 0.0;
};

Result<std::vector<Variant>> chosen(const TorchOptions& options) {
  if (options.names.empty()) return variants();
  std::vector<Variant> some;
  for (const std::string& name : options.names) {
    const auto found = std::ranges::find(variants(), name, &Variant::name);
    if (found == variants().end()) return fail(ErrorCode::kInvalidArgument, "there is no variant \"" + name + "\"");
    some.push_back(*found);
  }
  return some;
}

// Next to the build, or in the install.
Result<std::string> rank_script() {
  const std::filesystem::path tool = executable_dir();
  std::string sought;
  for (const char* relative : {"../bench/torch_rank.py", "../../../bench/torch_rank.py"}) {
    const std::filesystem::path path = (tool / relative).lexically_normal();
    std::error_code error;
    if (std::filesystem::exists(path, error)) return path.string();
    sought += (sought.empty() ? "" : " nor ") + path.string();
  }
  return fail(ErrorCode::kNotFound,
              "the ranks' script is neither " + sought + "; use the tool from where it was built or installed");
}

Result<std::vector<std::string>> command_of(const TorchOptions& options, const Variant& variant) {
  auto rank = rank_script();
  if (!rank) return tl::unexpected(rank.error());
  std::vector<std::string> command = {"/usr/bin/env"};
  // Run from a build, the package of this tree has its library there.
  const std::string library = executable_dir() + "/../lib/libtributary.so.1";
  std::error_code error;
  if (std::getenv("TRIBUTARY_LIBRARY") == nullptr && std::filesystem::exists(library, error))
    command.push_back("TRIBUTARY_LIBRARY=" + std::filesystem::path(library).lexically_normal().string());
  command.insert(command.end(), {options.python, *rank, "--how", variant.how});
  const std::uint32_t steps = options.steps * (options.evaluate_every > 0 ? variant.times : 1);
  const std::vector<std::pair<std::string, std::uint32_t>> numbers = {{"--steps", steps},
                                                                      {"--warmup", options.warmup},
                                                                      {"--evaluate-every", options.evaluate_every},
                                                                      {"--batch", options.batch},
                                                                      {"--sync-every", options.sync_every}};
  for (const auto& [name, value] : numbers) command.insert(command.end(), {name, std::to_string(value)});
  command.insert(command.end(), {"--lr", printed("%g", options.lr), "--clip", printed("%g", options.clip)});
  for (const std::string& key : variant.set) command.insert(command.end(), {"--set", key});
  return command;
}

double mean(const std::vector<double>& values) {
  return std::reduce(values.begin(), values.end()) / static_cast<double>(std::max<std::size_t>(values.size(), 1));
}

// The curve of a run: the mean of the ranks' losses, each of its share, and rank 0's clock. [{step, seconds, loss}]
Json curve_of(const Json& run) {
  const Json& ranks = run.at("ranks");
  Json curve = Json::array();
  const Json& first = ranks.front().at("curve");
  for (std::size_t point = 0; point < first.size(); ++point) {
    std::vector<double> losses;
    for (const Json& rank : ranks) losses.push_back(number(rank.at("curve").at(point), "loss"));
    curve.push_back(
        {{"step", first[point].at("step")}, {"seconds", first[point].at("seconds")}, {"loss", mean(losses)}});
  }
  return curve;
}

// When a curve first is at the goal, on the line between two evaluations; null if it never is.
Json seconds_to(const Json& curve, double goal) {
  std::optional<Json> before;
  for (const Json& point : curve) {
    const double loss = number(point, "loss"), seconds = number(point, "seconds");
    if (loss <= goal) {
      if (!before) return seconds;
      const double from = number(*before, "loss"), since = number(*before, "seconds");
      return since + (seconds - since) * (from - goal) / (from - loss);
    }
    before = point;
  }
  return nullptr;
}

// The newest loss after at most `steps` steps; null without an evaluation.
Json loss_after(const Json& curve, std::uint32_t steps) {
  Json loss;
  for (const Json& point : curve)
    if (point.at("step").get<std::uint32_t>() <= steps) loss = point.at("loss");
  return loss;
}

Json rank_median(const std::vector<Json>& runs, const char* key) {
  std::vector<double> values;
  for (const Json& run : runs)
    for (const Json& rank : run.at("ranks")) values.push_back(number(rank, key));
  return median(values);
}

Json variant_part(const Variant& variant, const std::vector<Json>& runs, std::uint32_t steps) {
  const Json curve = curve_of(runs.front());
  Json part = {
      {"name", variant.name},
      {"words", variant.words},
      {"step_seconds", spread(column(runs, [](const Json& r) { return number(r, "round_seconds"); }))},
      {"mean_step_seconds",
       spread(column(runs, [](const Json& r) { return mean(r.at("round_seconds_all").get<std::vector<double>>()); }))},
      {"steps", runs.front().at("rounds")},
      {"digest", runs.front().at("digest")},
      {"private_mb", rank_median(runs, "private_mb")},
      {"peak_rss_mb", rank_median(runs, "peak_rss_mb")},
      {"step_cpu_ms", rank_median(runs, "step_cpu_ms")},
      {"forward_ms", rank_median(runs, "forward_ms")},
      {"backward_ms", rank_median(runs, "backward_ms")},
      {"update_ms", rank_median(runs, "update_ms")}};
  part.update(usage(runs));
  part["validation_loss"] = loss_after(curve, steps);
  part["curve"] = curve;
  return part;
}

// Adds ratios to DDP, if it is among the parts.
void compare_to_ddp(Json& parts) {
  const auto ddp = std::find_if(parts.begin(), parts.end(), [](const Json& part) { return part.at("name") == "ddp"; });
  if (ddp == parts.end()) return;
  const Json base = *ddp;
  constexpr double kEqual = 1.01;  // a loss within a hundredth counts as equal
  for (Json& part : parts) {
    for (const auto& [ratio, key] : {std::pair{"over_ddp", "step_seconds"}, {"mean_over_ddp", "mean_step_seconds"}})
      part[ratio] = number(part.at(key), "median") / number(base.at(key), "median");
    if (base.at("validation_loss").is_null()) continue;
    part["loss_over_ddp"] = number(part, "validation_loss") / number(base, "validation_loss");
    part["seconds_to_equal_loss"] = seconds_to(part.at("curve"), kEqual * number(base, "validation_loss"));
  }
}

Result<Json> torch_in(const lab::Lab& lab, const TorchOptions& o, MeasurementRun& run) {
  const lab::LabConfig& config = lab.config();
  auto some = chosen(o);
  if (!some) return tl::unexpected(some.error());
  if (config.servers() == 0 && o.names.empty())
    std::erase_if(*some, [](const Variant& v) { return v.servers == lab::ServerHosts::kPlaced; });
  const std::uint32_t repetitions = o.labs.repetitions_in(config);
  std::vector<std::vector<Json>> runs(some->size());
  for (std::uint32_t repetition = 0; repetition < repetitions; ++repetition) {
    for (std::size_t v = 0; v < some->size(); ++v) {
      const Variant& variant = (*some)[v];
      auto command = command_of(o, variant);
      if (!command) return tl::unexpected(command.error());
      lab::ProgramOptions program{.run = {}, .command = std::move(*command), .servers = variant.servers};
      program.run.base_dir = o.labs.folder_of(config);
      program.run.interrupted = run.interrupted;
      auto result = lab::run_program(lab, program);
      if (!result)
        return fail(result.error().code, "variant \"" + std::string(variant.name) + "\": " + result.error().message);
      runs[v].push_back(std::move(*result));
      run.tell(printed("%s: %u/%u %s: %.3f s a step", config.name.c_str(), repetition + 1, repetitions, variant.words,
                       number(runs[v].back(), "round_seconds")));
    }
  }
  Json parts = Json::array();
  for (std::size_t v = 0; v < some->size(); ++v) parts.push_back(variant_part((*some)[v], runs[v], o.steps + o.warmup));
  compare_to_ddp(parts);
  return Json{{"lab", described(lab)},      {"model_bytes", runs.front().front().at("model_bytes")},
              {"batch", o.batch},           {"steps", o.steps},
              {"repetitions", repetitions}, {"variants", std::move(parts)}};
}

MeasurementResult measure_torch(TorchOptions& o, MeasurementRun& run) {
  if (o.steps == 0) return fail(ErrorCode::kInvalidArgument, "--steps 0: give at least one");
  return measure_labs(o.labs, run, [&](const lab::Lab& lab) { return torch_in(lab, o, run); });
}

std::vector<std::string> names_of_variants() {
  std::vector<std::string> names;
  for (const Variant& variant : variants()) names.emplace_back(variant.name);
  return names;
}

}  // namespace

Measurement torch() {
  const auto add = [](CliCommand command, TorchOptions& o) {
    add_lab_arguments(command, o.labs);
    command.add_option("--variants", o.names, "some of them, with commas")
        ->delimiter(',')
        ->check(one_of(names_of_variants()));
    command.add_option("--steps", o.steps, "measured")->capture_default_str();
    command.add_option("--warmup", o.warmup, "steps before them")->capture_default_str();
    command
        .add_option("--evaluate-every", o.evaluate_every,
                    "steps between looks at the validation loss; 0: none, and only times are compared")
        ->capture_default_str();
    command.add_option("--batch", o.batch, "pieces of 128 bytes of text in a rank's step")->capture_default_str();
    command.add_option("--lr", o.lr, "AdamW's rate")->capture_default_str();
    command.add_option("--clip", o.clip, "global norm of the gradient; 0: none")->capture_default_str();
    command.add_option("--sync-every", o.sync_every, "steps of a round of DiLoCo")->capture_default_str();
    command.add_option("--python", o.python, "the interpreter that has torch")->capture_default_str();
  };
  return {
      .name = "torch",
      .summary = "PyTorch with DistributedDataParallel and with Tributary, in turns on the same lab",
      .words =
          R"(Trains a byte-level GPT of 10.8 million parameters on every host with a worker: one process alone (what computing takes), DistributedDataParallel over gloo
(fp32, the fp16 hook, PowerSGD of rank 4), and Tributary with servers where the lab file has them, on the hosts that train, with encodings, and DiLoCo. All train on
the same batches, with AdamW, on one thread a rank. The lab file's job and variants play no part. Needs what `tributary lab` needs, and a Python with torch.

With --evaluate-every, losses on text that is held out are compared, too, and the time until a variant is as good as DDP at its end, within a hundredth; what is
cheap may make more steps (PowerSGD twice as many, DiLoCo three times).

labs [{lab, model_bytes, batch (of a rank), steps, repetitions, variants [{name, words, step_seconds {median, min, max, all[]} (of a run: the slowest rank's step,
median over steps), mean_step_seconds (with all that happens now and then, as DiLoCo's exchange), steps, digest, private_mb, peak_rss_mb, step_cpu_ms, forward_ms, backward_ms, update_ms (of a rank),
wire_bytes [{host, sent, received}], processes [{name, seconds (of processors)}] and cpu_seconds (all of a step), machine_busy, drops, retransmits, over_ddp, mean_over_ddp, validation_loss
(after `steps` and the warm-up), loss_over_ddp, seconds_to_equal_loss, curve [{step, seconds, loss}]}]}])",
      .columns =
          "name,words,step_seconds.median,over_ddp,mean_over_ddp,validation_loss,loss_over_ddp,seconds_to_equal_loss,"
          "private_mb,machine_busy",
      .stops = true,
      .add = measures<TorchOptions>(add, measure_torch)};
}

}  // namespace tributary::bench
