// NodeTrace: a trace of a job on this node, from the coordinator's order until the records of lanes and trainers are on
// their way (docs/trace.md). The job on this node owns it. Thread rule: the attach thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "common/wire/trace_buffer.h"
#include "worker/node/job.h"

namespace tributary {

class NodeTrace {
 public:
  // Trainers record from now on.
  NodeTrace(const TraceRounds& order, std::shared_ptr<NodeJob> job);
  ~NodeTrace();  // trainers record no more
  NodeTrace(const NodeTrace&) = delete;
  NodeTrace& operator=(const NodeTrace&) = delete;

  const TraceRounds& order() const { return order_; }
  const std::shared_ptr<NodeJob>& job() const { return job_; }
  // By lane; null: it has no chunk of the job.
  const std::vector<std::shared_ptr<TraceBuffer>>& buffers() const { return buffers_; }
  // Every chunk here is beyond the rounds, so trainers are in the next one.
  bool over() const { return job_->min_version().value > order_.last.value; }
  void tell(const std::function<void(const TracePart&)>& send) const;

 private:
  std::vector<TraceEvent> rounds_of(std::uint32_t rank) const;

  const TraceRounds order_;
  const std::shared_ptr<NodeJob> job_;
  std::vector<std::shared_ptr<TraceBuffer>> buffers_;
};

}  // namespace tributary
