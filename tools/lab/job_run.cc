// run_job of lab_run.h: tributary-train on the hosts.
#include <chrono>
#include <thread>

#include "common/config/config_toml.h"
#include "tools/cluster/progress_socket.h"
#include "tools/cluster/trainer_result.h"
#include "tools/lab/hosted_cluster.h"
#include "tools/lab/lab_run.h"
#include "tools/lab/step_times.h"

namespace tributary::lab {
namespace {

using Json = nlohmann::ordered_json;

// Datagrams queue meanwhile.
constexpr std::chrono::milliseconds kJobPoll{2};

Result<Json> result_of(const Lab& lab, LocalCluster& cluster, const std::string& mode) {
  Json first;
  double loss_sum = 0.0, samples = 0.0;
  try {
    const auto ranks = parsed_results(cluster);
    if (!ranks) return tl::unexpected(ranks.error());
    for (const Json& rank : *ranks) {
      if (first.is_null()) first = rank;
      if (rank.at("digest") != first.at("digest")) {
        return fail(ErrorCode::kInternal, "ranks ended with different parameters: digest " + first.at("digest").dump() +
                                              " and " + rank.at("digest").dump());
      }
      loss_sum += train_loss_sum(rank);
      samples += rank.at("train_samples").get<double>();
    }
    return Json{{"lab", lab.config().name},
                {"kind", "job"},
                {"mode", mode},
                {"job", first.at("job")},
                {"model_bytes", first.at("model_bytes")},
                {"rounds", first.at("rounds")},
                {"samples", first.at("samples")},
                {"digest", first.at("digest")},
                {"test_accuracy", first.at("test_accuracy")},
                {"test_loss", first.at("test_loss")},
                {"train_loss", samples > 0.0 ? Json(loss_sum / samples) : Json(nullptr)},
                {"seconds", first.at("seconds")}};
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kMalformed, std::string("a rank's result is not as expected: ") + e.what());
  }
}

}  // namespace

Result<Json> run_job(const Lab& lab, const RunOptions& options) {
  const LabJob& lab_job = lab.config().job;
  const std::string& file = options.job_file.empty() ? lab_job.file : options.job_file;
  if (file.empty()) {
    return fail(ErrorCode::kInvalidArgument, "the lab file names no job: set file in [job], or give --exchange");
  }
  std::vector<std::string> overrides = lab_job.overrides;
  // Without a store there is nothing to take snapshots to.
  if (!lab_job.store) overrides.insert(overrides.begin(), {"snapshot.every_s=0", "snapshot.every_rounds=0"});
  overrides.insert(overrides.end(), options.overrides.begin(), options.overrides.end());
  const auto job = load_job_config(file, overrides);
  if (!job) return tl::unexpected(job.error());
  auto started = start_cluster(lab, options, servers_for(*job), lab_job.store);
  if (!started) return tl::unexpected(started.error());
  LocalCluster& cluster = **started;
  const auto train = [&]() -> Result<Json> {
    const std::string socket = cluster.socket_dir() + "/progress.sock";
    const auto progress = ProgressSocket::listen(socket);
    if (!progress) return tl::unexpected(progress.error());
    if (auto ok = cluster.start_trainers(
            {.command = cluster.train_command(file, overrides, {"--json", "--quiet"}), .progress_socket = socket});
        !ok)
      return tl::unexpected(ok.error());
    const std::vector<Watched> processes = watched(cluster);
    const auto before = read_now(lab, processes);
    if (!before) return tl::unexpected(before.error());
    StepTimes times(lab.config().world_size());
    const auto take = [&](std::string_view datagram) { times.take(datagram); };
    while (cluster.trainers_running()) {
      progress->drain(take);
      if (auto ok = healthy(cluster, options); !ok) return tl::unexpected(ok.error());
      std::this_thread::sleep_for(kJobPoll);
    }
    progress->drain(take);
    if (auto ok = healthy(cluster, options); !ok) return tl::unexpected(ok.error());  // how they ended
    const auto after = read_now(lab, processes);
    if (!after) return tl::unexpected(after.error());
    auto result = result_of(lab, cluster, word(job->mode));
    if (!result) return result;
    result->update(times.result());
    result->update(usage_between(lab, processes, *before, *after));
    return result;
  };
  auto result = train();
  result ? cluster.stop() : cluster.stop_now();
  return result;
}

}  // namespace tributary::lab
