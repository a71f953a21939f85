#include "worker/node_trace.h"

#include <utility>

#include "worker/node/lane_job.h"

namespace tributary {

NodeTrace::NodeTrace(const TraceRounds& order, std::shared_ptr<NodeJob> job) : order_(order), job_(std::move(job)) {
  const auto lanes = static_cast<std::uint16_t>(job_->lanes());
  for (std::uint16_t lane = 0; lane < lanes; ++lane) {
    const std::uint64_t chunks = LaneChunks::count(job_->layout(), lane, lanes);
    const std::uint64_t events = chunks * kWorkerEventsPerChunk + kWorkerEventsPerRound;
    buffers_.push_back(chunks == 0 ? nullptr : TraceBuffer::for_events(order.first, order.last, events));
  }
  for (std::uint32_t rank = 0; rank < job_->spec().ranks; ++rank) {
    TraceWindow& window = job_->trace_window(rank);
    window.last.store(0, std::memory_order_relaxed);
    for (TraceWindow::Place& place : window.places) place.end_ns.store(0, std::memory_order_relaxed);
    window.first.store(order.first.value, std::memory_order_relaxed);
    window.last.store(order.last.value, std::memory_order_release);
  }
}

NodeTrace::~NodeTrace() {
  for (std::uint32_t rank = 0; rank < job_->spec().ranks; ++rank)
    job_->trace_window(rank).last.store(0, std::memory_order_relaxed);
}

// Trainers write to this memory, and may write anything.
std::vector<TraceEvent> NodeTrace::rounds_of(std::uint32_t rank) const {
  std::vector<TraceEvent> events;
  const TraceWindow& window = job_->trace_window(rank);
  for (std::uint64_t at = 0; at <= order_.last.value - order_.first.value; ++at) {
    const TraceWindow::Place& place = window.places[at];
    const std::uint64_t end = place.end_ns.load(std::memory_order_acquire);
    const std::uint64_t begin = place.begin_ns.load(std::memory_order_relaxed);
    const std::uint64_t ready = place.ready_ns.load(std::memory_order_relaxed);
    const bool sound = begin <= ready && ready <= end;
    if (end == 0 || !sound || place.round.load(std::memory_order_relaxed) != order_.first.value + at) continue;
    const auto round = static_cast<std::uint16_t>(at);
    events.push_back({begin, ready, 0, 0, round, TraceKind::kComputed});
    events.push_back({ready, end, 0, 0, round, TraceKind::kWaited});
  }
  return events;
}

void NodeTrace::tell(const std::function<void(const TracePart&)>& send) const {
  std::vector<TraceTrackEvents> tracks;
  for (std::size_t lane = 0; lane < buffers_.size(); ++lane) {
    const TraceBuffer* buffer = buffers_[lane].get();
    if (buffer) {
      tracks.push_back({TraceTrack::kWorkerLane, static_cast<std::uint16_t>(lane), buffer->events(), buffer->lost()});
    }
  }
  std::vector<std::vector<TraceEvent>> trainers;
  for (std::uint32_t rank = 0; rank < job_->spec().ranks; ++rank) trainers.push_back(rounds_of(rank));
  for (std::size_t rank = 0; rank < trainers.size(); ++rank)
    tracks.push_back({TraceTrack::kTrainer, static_cast<std::uint16_t>(rank), trainers[rank], 0});
  TracePart about;
  about.job = order_.job;
  about.view = order_.view;
  about.first = order_.first;
  send_trace(about, tracks, send);
}

}  // namespace tributary
