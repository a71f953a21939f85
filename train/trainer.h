// The built-in trainer: one rank of a distributed job, attached to its node's worker
// daemon as any user's trainer would be.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/result.h"
#include "common/config/config.h"
#include "session/session.h"
#include "train/dataset.h"
#include "train/report.h"
#include "train/stop_signal.h"

namespace tributary::train {

struct TrainerOptions {
  JobConfig job;
  std::string socket;  // of the worker daemon
  std::chrono::seconds attach_timeout = kAttachTimeout;
  Topology topology;
  // For measurements and tests.
  double us_per_sample = 0.0;  // asleep (RankCompute::slow_down)
  // A file. Until the file is there, the last round waits, and the rounds of the second half are slow.
  std::string last_round_after = {};
};

// Trains until the job's last round, or until it is asked to stop: by a signal, or by the job's coordinator. `test` is
// evaluated on if it is not null (rank 0's). `progress` may be null. Errors: kConfig and kTopology before anything was
// started; else those of Session, when they do not end with a restart.
Result<RunSummary> train_rank(const TrainerOptions& options, const ImageSet& training, const ImageSet* test,
                              ProgressBar& bar, const ProgressSender* progress, StopSignal& stop_signal);

}  // namespace tributary::train
