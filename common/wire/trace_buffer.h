// TraceBuffer: a lane's records of a trace's rounds. Its memory is allocated and touched before the lane gets it;
// events that do not fit are counted. Written by the lane's thread, read by any thread at any time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/wire/trace_messages.h"

namespace tributary {

class TraceBuffer {
 public:
  TraceBuffer(Round first, Round last, std::size_t capacity)
      : first_(first), last_(last), capacity_(capacity), events_(std::make_unique<TraceEvent[]>(capacity)) {}

  // Makes room for `a_round` events in every round, and a quarter more for repeated ones.
  static std::shared_ptr<TraceBuffer> for_events(Round first, Round last, std::uint64_t a_round) {
    const std::uint64_t events = (last.value - first.value + 1) * a_round;
    return std::make_shared<TraceBuffer>(first, last, std::min<std::size_t>(events + events / 4, kMaxTraceEvents));
  }

  Round first() const { return first_; }
  Round last() const { return last_; }
  bool covers(Round round) const { return round >= first_ && round <= last_; }

  // Nothing happens if the trace does not cover the round.
  void record(TraceKind kind, ChunkIndex chunk, Round round, std::uint64_t begin_ns, std::uint64_t end_ns,
              std::uint32_t peer = 0) {
    if (!covers(round)) return;
    const std::size_t at = used_.load(std::memory_order_relaxed);
    if (at == capacity_) {
      lost_.store(lost_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      return;
    }
    events_[at] = {begin_ns, end_ns, chunk.value, peer, static_cast<std::uint16_t>(round.value - first_.value), kind};
    used_.store(at + 1, std::memory_order_release);
  }

  std::span<const TraceEvent> events() const { return {events_.get(), used_.load(std::memory_order_acquire)}; }
  std::uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  const Round first_, last_;
  const std::size_t capacity_;
  const std::unique_ptr<TraceEvent[]> events_;
  std::atomic<std::size_t> used_{0};
  std::atomic<std::uint64_t> lost_{0};
};

// A daemon's records in one track.
struct TraceTrackEvents {
  TraceTrack track = TraceTrack::kServerLane;
  std::uint16_t index = 0;
  std::span<const TraceEvent> events;
  std::uint64_t lost = 0;
};

// Sends the tracks in messages of at most kMaxPartEvents; the last one is marked. about: job, view and first round.
inline void send_trace(const TracePart& about, const std::vector<TraceTrackEvents>& tracks,
                       const std::function<void(const TracePart&)>& send) {
  for (const TraceTrackEvents& track : tracks) {
    std::uint64_t lost = track.lost;
    for (std::size_t at = 0; at < track.events.size() || lost != 0; at += kMaxPartEvents, lost = 0) {
      TracePart part = about;
      part.track = track.track;
      part.index = track.index;
      part.lost = lost;
      const std::size_t begin = std::min(at, track.events.size());
      const auto events = track.events.subspan(begin, std::min(kMaxPartEvents, track.events.size() - begin));
      part.events.assign(events.begin(), events.end());
      send(part);
    }
  }
  TracePart done = about;
  done.done = true;
  send(done);
}

}  // namespace tributary
