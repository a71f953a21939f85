// Lanes' reports to the openers of jobs on them.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/result.h"

namespace tributary {

class NodeJob;

// The reason why a job cannot continue, as a lane sees it.
struct LaneFailure {
  enum class Kind {
    kTrainer,   // `local_rank` broke the rules
    kRefused,   // a server refused something
    kViewOver,  // a server does not know this view any more, or the devices here are lost: it continues in another
  };
  Kind kind = Kind::kRefused;
  std::uint32_t local_rank = 0;
  Error error;
};

class WorkerLaneListener {
 public:
  virtual ~WorkerLaneListener() = default;
  // On the lane's thread, at most once per job and lane.
  virtual void lane_failed(std::shared_ptr<NodeJob> job, LaneFailure failure) = 0;
};

}  // namespace tributary
