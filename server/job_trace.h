// JobTrace: a trace of a job on this server, from the coordinator's order until the lanes' records are on their way
// (docs/trace.md). One at a time. Pure. A part of ControlJobs. Thread rule: one thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/wire/messages.h"
#include "common/wire/trace_buffer.h"
#include "server/lane/lane_commands.h"
#include "server/server_job.h"

namespace tributary {

class JobTrace {
 public:
  using Send = std::function<void(ControlMessage)>;
  JobTrace(ShardIndex own, Send send) : own_(own), send_(std::move(send)) {}
  void start(std::vector<LaneCommands*> lanes) { lanes_ = std::move(lanes); }

  // job: the order's; null: its view is not open here.
  void on(const TraceRounds& order, const ServerJob* job);
  // Sends the records when the rounds are over, or the view is. job: that of order().
  void tick(const ServerJob* job);
  const std::optional<TraceRounds>& order() const { return order_; }  // of the trace under way

 private:
  void begin(const TraceRounds& order, const ServerJob& job);
  void end();
  void send_records();

  const ShardIndex own_;
  const Send send_;
  std::vector<LaneCommands*> lanes_;
  std::optional<TraceRounds> order_;
  std::vector<std::pair<LaneIndex, std::shared_ptr<TraceBuffer>>> buffers_;
};

}  // namespace tributary
