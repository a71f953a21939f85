// A cluster under `tributary bench pushpull`, and its measurement.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/pushpull/pushpull.h"
#include "bench/pushpull/pushpull_ranks.h"
#include "bench/scratch_folder.h"
#include "common/base/result.h"
#include "common/math/median.h"
#include "tools/cluster/local_cluster.h"

namespace tributary::bench {

inline constexpr SnapshotConfig kNoSnapshots{.every_s = 0, .every_rounds = 0};

JobConfig pushpull_job(const PushPullOptions& options);

// Measures in slices, between which all ranks are paused.
class PushPullBenchmark {
 public:
  static constexpr std::uint64_t kWarmRounds = 2;  // at the beginning of a slice

  // The servers' state on disk.
  struct Kept {
    bool busy = false;                  // there is more to write
    std::uint64_t snapshot_bytes = 0;   // of the newest
    std::uint64_t newest_snapshot = 0;  // its round; 0: none yet
    // So far, by counted().
    double written_bytes = 0.0, copied_bytes = 0.0;  // of all snapshots
    double server_cpu_seconds = 0.0;
    std::uint64_t rounds = 0;
  };

  // The ranks attach at once. options and cluster must outlive this object.
  PushPullBenchmark(const PushPullOptions& options, LocalCluster& cluster, std::string folder);

  Status wait_paused() { return ranks_.wait_paused(healthy()); }
  // Runs rounds outside slices: at least so many, and until the servers have their first snapshot, if they take any.
  Status warm_up(std::uint64_t rounds);
  Status slice();
  Status ceiling();
  // Waits until the servers have nothing more to write or to copy. kTimeout: they do not come to an end.
  Result<Kept> written();
  // Ends the job, and does the checks of run_pushpull().
  Result<nlohmann::ordered_json> finish();
  // Ends the ranks without a result, if they get their answers.
  void end() { ranks_.end(); }

  double rate() const { return median(measured_.slices); }
  const std::vector<double>& slices() const { return measured_.slices; }  // GB/s each way
  std::uint64_t chunk_bytes() const { return ranks_.chunk_bytes(); }
  std::uint16_t lanes() const { return lanes_; }

 private:
  // Processor time so far, in seconds.
  struct Cpu {
    double servers = 0.0, workers = 0.0, trainers = 0.0;
    double total() const { return servers + workers + trainers; }
  };
  // The sums over the slices.
  struct Measured {
    std::vector<double> slices, pushed, pulled;  // GB/s
    double seconds = 0.0, gigabytes = 0.0, rounds = 0.0;
    std::vector<std::uint64_t> owned_bytes, formula_bytes;  // of servers, in order: the most
    double memory_ratio = 0.0;                              // of the two at one time, the highest
    Cpu cpu;
  };

  Cpu cpu_now();
  Ranks::Healthy healthy();
  Result<Kept> kept();  // from the servers' status
  Result<Kept> counted(Kept kept);
  Status watch_memory();
  Result<nlohmann::ordered_json> ask_daemons();
  Status ask_devices(nlohmann::ordered_json& found);  // the first node's devices, as its worker reports them
  nlohmann::ordered_json rates() const;
  nlohmann::ordered_json settings() const;

  const PushPullOptions& options_;
  LocalCluster& cluster_;
  const std::string folder_;
  Ranks ranks_;
  const std::uint16_t lanes_;
  Measured measured_;
  std::vector<double> ceilings_, ceiling_cpu_;
};

class PushPullSetup {
 public:
  static Result<std::unique_ptr<PushPullSetup>> start(const PushPullOptions& options);
  // Without stop() an operation failed. Paused ranks end by themselves; then the daemons end, as no rank may wait for
  // an answer that never comes.
  ~PushPullSetup();
  PushPullBenchmark& benchmark() { return *benchmark_; }
  Status stop();  // after finish()

 private:
  explicit PushPullSetup(const PushPullOptions& options) : options_(options) {}

  const PushPullOptions options_;
  const ScratchFolder folder_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<PushPullBenchmark> benchmark_;
};

}  // namespace tributary::bench
