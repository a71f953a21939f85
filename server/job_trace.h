// JobTrace: a trace of a job on this server, from the coordinator's order until the lanes' records are on their way
// (docs/trace.md). ControlJobs owns it. Thread rule: the control thread.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "common/config/job_plan.h"
#include "common/wire/trace_buffer.h"
#include "server/lane/lane_commands.h"

namespace tributary {

class JobTrace {
 public:
  JobTrace(const TraceRounds& order, const ViewPlan& view, ShardIndex shard, const std::vector<LaneIndex>& lanes)
      : order_(order) {
    for (const LaneIndex lane : lanes) {
      const std::uint64_t chunks = view.layout->chunks_owned_by(shard, lane).size();
      lanes_.emplace_back(
          lane, TraceBuffer::for_events(order.first, order.last, chunks * (kServerEventsPerPush * view.nodes + 1)));
    }
  }

  const TraceRounds& order() const { return order_; }
  void begin(const std::vector<LaneCommands*>& lanes) const {
    for (const auto& [lane, buffer] : lanes_) lanes[lane.value]->trace(order_.job, order_.view, buffer);
  }
  void end(const std::vector<LaneCommands*>& lanes) const {
    for (const auto& [lane, buffer] : lanes_) lanes[lane.value]->trace(order_.job, order_.view, nullptr);
  }
  void tell(const std::function<void(const TracePart&)>& send) const {
    std::vector<TraceTrackEvents> tracks;
    for (const auto& [lane, buffer] : lanes_)
      tracks.push_back({TraceTrack::kServerLane, lane.value, buffer->events(), buffer->lost()});
    TracePart about;
    about.job = order_.job;
    about.view = order_.view;
    about.first = order_.first;
    send_trace(about, tracks, send);
  }

 private:
  const TraceRounds order_;
  std::vector<std::pair<LaneIndex, std::shared_ptr<TraceBuffer>>> lanes_;
};

}  // namespace tributary
