// tributary checkpoint: the state of a job as a directory. save and restore are orders to the coordinator of a running
// cluster; list and verify (and export and import, in checkpoint_convert.cc) need only the files.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/base/printed.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "tools/cli/parts/commands.h"
#include "tools/cli/parts/orders.h"
#include "tools/cli/parts/table.h"

namespace tributary::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kOperationPoll{100}, kJoinPatience{10'000};
constexpr std::chrono::seconds kSayEvery{5};
constexpr int kLostAnswers = 50;  // in a row, until the coordinator is given up

int give_up(const std::string& message) {
  return complain("checkpoint", {ErrorCode::kUnavailable, message});
}

std::string megabytes(std::uint64_t bytes) {
  return printed("%.1f MB", static_cast<double>(bytes) * 1e-6);
}

struct OrderOptions {
  Cluster cluster;
  bool wait = true, json = false;
};

void add_order_options(CliCommand command, OrderOptions& options) {
  add_cluster_options(command, options.cluster);
  command.add_flag("--wait,!--no-wait", options.wait, "wait for the end of it (default)");
  command.add_flag("--json", options.json, "print one JSON object");
}

// "saving job 'mnist' at round 40 (writing): 12.0 MB so far, waiting for servers 1, 2".
std::string how_far(const Json& status) {
  std::vector<std::string> awaited;
  for (const Json& server : status.value("awaited_servers", Json::array())) awaited.push_back(server.dump());
  const bool restores = status.value("order", std::string()) == "restore";
  return (restores ? "restoring job '" : "saving job '") + status.value("job", std::string()) + "' at round " +
         status.value("round", Json(0)).dump() + " (" + status.value("step", std::string()) +
         "): " + megabytes(status.value("bytes", std::uint64_t{0})) + " so far" +
         (awaited.empty() ? "" : ", waiting for servers " + listed(awaited));
}

int carry_out(const OrderOptions& options, const std::string& path, const Json& order) {
  const Result<AdminPort> admin = coordinator_admin(options.cluster);
  if (!admin) return complain("checkpoint", admin.error());
  const std::string text = order.dump(-1, ' ', false, Json::error_handler_t::replace);
  Result<Json> accepted = ask(*admin, path, text);
  for (auto left = kJoinPatience; !accepted && accepted.error().code == ErrorCode::kTimeout && left > left.zero();
       left -= kOperationPoll) {  // servers that were just started
    std::this_thread::sleep_for(kOperationPoll);
    accepted = ask(*admin, path, text);
  }
  if (!accepted) return give_up(accepted.error().message);
  if (!accepted->contains("id")) {
    return give_up("http://" + admin->address + path + " answered without an order's id; is that server 0?");
  }
  const std::string status_path = "/checkpoint/" + accepted->at("id").dump();
  if (!options.wait) {
    if (options.json) std::printf("%s\n", accepted->dump().c_str());
    if (!options.json)
      std::printf("ordered; `GET http://%s%s` tells how far it is\n", admin->address.c_str(), status_path.c_str());
    return 0;
  }
  Json status;
  auto said = std::chrono::steady_clock::now();
  for (int lost = 0;;) {
    Result<Json> now = ask(*admin, status_path, std::nullopt);
    if (now) {
      status = std::move(*now);
      lost = 0;
      const std::string step = status.value("step", std::string());
      if (step == "done" || step == "failed") break;
      if (std::chrono::steady_clock::now() >= said + kSayEvery) {
        said = std::chrono::steady_clock::now();
        std::fprintf(stderr, "%s\n", how_far(status).c_str());
      }
    } else if (++lost == kLostAnswers) {
      return give_up(now.error().message);
    }
    std::this_thread::sleep_for(kOperationPoll);
  }
  const bool failed = status.value("step", std::string()) == "failed";
  if (options.json) std::printf("%s\n", status.dump().c_str());
  if (failed) return give_up(status.at("error").get<std::string>());
  if (options.json) return 0;
  const std::string job = status.value("job", std::string()), where = status.value("path", std::string());
  const std::string round = status.at("round").dump();
  if (status.value("order", std::string()) == "restore") {
    std::printf("restored job '%s' at round %s from %s (%s, %.1f s); start its trainers to go on\n", job.c_str(),
                round.c_str(), where.c_str(), megabytes(status.at("bytes")).c_str(),
                status.at("seconds").get<double>());
  } else {
    std::printf("saved job '%s' at round %s: %s (%s, %.1f s)%s\n", job.c_str(), round.c_str(), where.c_str(),
                megabytes(status.at("bytes")).c_str(), status.at("seconds").get<double>(),
                status.value("unchanged", false) ? "; it was there already" : "");
    if (const auto lacks = status.find("lacks"); lacks != status.end() && lacks->is_string()) {
      std::printf("it lacks %s\n", lacks->get<std::string>().c_str());
    }
  }
  return 0;
}

void add_save(CliCommand checkpoint, int& exit_status) {
  struct SaveOptions : OrderOptions {
    std::string job, directory;
    bool committed = false;
  };
  auto options = std::make_shared<SaveOptions>();
  CliCommand save = checkpoint.add_subcommand("save", "write a running (or stopped) job's state while it trains on");
  save->add_option("JOB", options->job, "the job's name")->required();
  save->add_option("--dir", options->directory, "where; every server must see it under this path")
      ->required()
      ->type_name("FOLDER");
  save->add_flag("--committed", options->committed, "the newest committed snapshot as it is, not one from now");
  add_order_options(*save, *options);
  save->callback([options, &exit_status] {
    exit_status = carry_out(*options, "/checkpoint/save",
                            {{"job", options->job},
                             {"directory", fs::absolute(options->directory).lexically_normal().string()},
                             {"committed", options->committed}});
  });
}

void add_restore(CliCommand checkpoint, int& exit_status) {
  struct RestoreOptions : OrderOptions {
    std::string path, name;
    bool force = false;
  };
  auto options = std::make_shared<RestoreOptions>();
  CliCommand restore =
      checkpoint.add_subcommand("restore", "load a checkpoint into a cluster of any number of servers");
  restore->add_option("CHECKPOINT", options->path, "its directory; every server must see it under this path")
      ->required();
  restore->add_option("--name", options->name, "name of the job (default: the one that it was saved as)");
  restore->add_flag("--force", options->force, "replace a stopped job of that name, with its state");
  add_order_options(*restore, *options);
  restore->callback([options, &exit_status] {
    const std::string path = fs::absolute(options->path).lexically_normal().string();
    if (options->name.empty()) {
      const Result<Manifest> manifest = open_checkpoint(path);
      if (!manifest) {
        exit_status = give_up(manifest.error().message);
        return;
      }
      options->name = job_of(*manifest).name;
    }
    exit_status = carry_out(*options, "/checkpoint/restore",
                            {{"checkpoint", path}, {"name", options->name}, {"force", options->force}});
  });
}

int print_checkpoints(const std::string& directory, bool json) {
  const Result<std::vector<CheckpointSummary>> found = list_checkpoints(directory);
  if (!found) return give_up(found.error().message);
  Json all = Json::array();
  Table table({"CHECKPOINT", "JOB", "ROUND", "SAVED", "SIZE", "SHARDS", "STATE"});
  for (const CheckpointSummary& summary : *found) {
    const Manifest* manifest = summary.manifest ? &*summary.manifest : nullptr;
    const std::string job = manifest ? job_of(*manifest).name : "-";
    table.add({summary.name, job, manifest ? std::to_string(manifest->round.value) : "-",
               manifest ? manifest->created : "-", megabytes(summary.bytes),
               manifest ? std::to_string(manifest->shards.size()) : "-", manifest ? "complete" : "incomplete"});
    all.push_back({{"path", summary.path},
                   {"name", summary.name},
                   {"complete", manifest != nullptr},
                   {"flaw", manifest ? Json(nullptr) : Json(summary.flaw)},
                   {"job", manifest ? Json(job) : Json(nullptr)},
                   {"round", manifest ? Json(manifest->round.value) : Json(nullptr)},
                   {"created", manifest ? Json(manifest->created) : Json(nullptr)},
                   {"bytes", summary.bytes}});
  }
  if (json) {
    std::printf("%s\n",
                Json{{"checkpoints", std::move(all)}}.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
    return 0;
  }
  table.print();
  for (const CheckpointSummary& summary : *found) {
    if (!summary.manifest) std::printf("%s: %s\n", summary.name.c_str(), summary.flaw.c_str());
  }
  return 0;
}

int verify(const std::string& path, bool json) {
  std::vector<std::string> paths = {path};
  if (!is_checkpoint(path)) {
    const Result<std::vector<CheckpointSummary>> found = list_checkpoints(path);
    if (!found) return give_up(found.error().message);
    paths.clear();
    for (const CheckpointSummary& summary : *found) paths.push_back(summary.path);
    if (paths.empty()) return give_up("there is no checkpoint in '" + path + "'");
  }
  bool well = true;
  Json all = Json::array();
  for (const std::string& checkpoint : paths) {
    const Verification result = verify_checkpoint(checkpoint);
    well = well && result.findings.empty();
    all.push_back({{"path", checkpoint},
                   {"ok", result.findings.empty()},
                   {"findings", result.findings},
                   {"chunks", result.chunks},
                   {"large_parts", result.large_parts},
                   {"bytes", result.bytes}});
    if (json) continue;
    if (result.findings.empty()) {
      const std::string parts = result.large_parts == 0   ? std::string()
                                : result.large_parts == 1 ? "1 large part, "
                                                          : std::to_string(result.large_parts) + " large parts, ";
      std::printf("%s: whole (%llu chunks, %s%s)\n", checkpoint.c_str(), static_cast<unsigned long long>(result.chunks),
                  parts.c_str(), megabytes(result.bytes).c_str());
    }
    for (const std::string& finding : result.findings) std::printf("%s: %s\n", checkpoint.c_str(), finding.c_str());
  }
  if (json) {
    std::printf("%s\n", Json{{"ok", well}, {"checkpoints", std::move(all)}}
                            .dump(-1, ' ', false, Json::error_handler_t::replace)
                            .c_str());
  }
  return well ? 0 : 1;
}

template <class Run>
void add_reader(CliCommand checkpoint, int& exit_status, const char* name, const char* what, const char* argument,
                const char* help, Run run) {
  struct Options {
    std::string path;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CliCommand command = checkpoint.add_subcommand(name, what);
  command->add_option(argument, options->path, help)->required();
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options, &exit_status, run] { exit_status = run(options->path, options->json); });
}

}  // namespace

void add_checkpoint(CliCommand app, int& exit_status) {
  CliCommand checkpoint = app.add_subcommand("checkpoint", "save a job's state as a directory, and bring it back");
  checkpoint->footer(
      "\nExamples:\n"
      "  tributary checkpoint save mnist --dir /shared/checkpoints --base-dir runs/mnist\n"
      "  tributary checkpoint list /shared/checkpoints\n"
      "  tributary checkpoint verify /shared/checkpoints/mnist-round-400\n"
      "  tributary checkpoint restore /shared/checkpoints/mnist-round-400 --coordinator-admin 10.0.0.1:7071\n"
      "  tributary checkpoint export /shared/checkpoints/mnist-round-400 mnist.safetensors\n\n"
      "A checkpoint is the state of all shards at one round: parameters, optimizer state, residuals, and what ranks\n"
      "keep beside. Any number of servers can take it; the job then goes on at that round with the same command, to\n"
      "the same bits.\n"
      "Exit status: 0 done, 1 failed or damaged, 2 wrong usage.");
  checkpoint->require_subcommand(1);
  add_save(*checkpoint, exit_status);
  add_reader(*checkpoint, exit_status, "list", "show the checkpoints in a directory", "DIR",
             "where checkpoints were saved", &print_checkpoints);
  add_reader(*checkpoint, exit_status, "verify", "read every byte of a checkpoint, or of all in a directory", "PATH",
             "a checkpoint, or a directory of them", &verify);
  add_restore(*checkpoint, exit_status);
  add_checkpoint_conversions(*checkpoint, exit_status);
}

}  // namespace tributary::cli
