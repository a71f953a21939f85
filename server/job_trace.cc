#include "server/job_trace.h"

#include <cstdint>

namespace tributary {

void JobTrace::on(const TraceRounds& order, const ServerJob* job) {
  const bool known = order_ && order_->job == order.job && order_->view == order.view;
  if (order.last == Round()) {
    if (known) send_records();
    return;
  }
  if (known && order_->first == order.first) return;  // repeated
  end();
  const bool sound = order.first <= order.last && order.last.value - order.first.value < kMaxTraceRounds;
  if (job && sound) begin(order, *job);
}

void JobTrace::tick(const ServerJob* job) {
  if (!order_) return;
  const bool none = !job || job->lanes.empty();
  if (none || job->status.min_version().value > order_->last.value) send_records();
}

void JobTrace::begin(const TraceRounds& order, const ServerJob& job) {
  order_ = order;
  for (const LaneIndex lane : job.lanes) {
    const std::uint64_t chunks = job.view().layout->chunks_owned_by(own_, lane).size();
    const std::uint64_t events = chunks * (kServerEventsPerPush * job.view().nodes + 1);
    const auto& [of, buffer] = buffers_.emplace_back(lane, TraceBuffer::for_events(order.first, order.last, events));
    lanes_[of.value]->trace(order.job, order.view, buffer);
  }
}

// Lanes record nothing more.
void JobTrace::end() {
  for (const auto& [lane, buffer] : buffers_) lanes_[lane.value]->trace(order_->job, order_->view, nullptr);
  buffers_.clear();
  order_.reset();
}

void JobTrace::send_records() {
  TracePart about;
  about.job = order_->job;
  about.view = order_->view;
  about.first = order_->first;
  const auto buffers = buffers_;
  end();
  std::vector<TraceTrackEvents> tracks;
  for (const auto& [lane, buffer] : buffers)
    tracks.push_back({TraceTrack::kServerLane, lane.value, buffer->events(), buffer->lost()});
  send_trace(about, tracks, send_);
}

}  // namespace tributary
