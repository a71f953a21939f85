// TraceWindow: the part of a rank's region in which a trainer records its rounds while its job is traced
// (docs/trace.md). The worker names the rounds; the trainer looks once a round, and writes to places of its own through
// its TraceWriter.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/wire/trace_messages.h"

namespace tributary {

struct TraceWindow {
  // Written by the worker: first before last. last 0: no trace.
  std::atomic<std::uint64_t> first{0}, last{0};
  // Written by the trainer, by round - first, on the steady clock. end_ns 0: not recorded.
  struct Place {
    std::atomic<std::uint64_t> round{0};
    std::atomic<std::uint64_t> begin_ns{0};  // the end of the round before
    std::atomic<std::uint64_t> ready_ns{0};  // its last gradient was ready
    std::atomic<std::uint64_t> end_ns{0};    // its last wait was over
  };
  Place places[kMaxTraceRounds];
};

// Records a session's rounds while its job is traced. Otherwise it costs a comparison a tensor and one relaxed load a
// round. Thread rule: the session's.
class TraceWriter {
 public:
  // Records that a gradient of this round is ready.
  void ready(TraceWindow& window, Round round) {
    if (round > round_) begin(window, round);
    if (place_) place_->ready_ns.store(steady_ns(), std::memory_order_relaxed);
  }
  // Records that a wait for parameters of a round is over.
  void waited() {
    if (!traced_) return;
    end_ns_ = steady_ns();
    if (place_) place_->end_ns.store(end_ns_, std::memory_order_release);
  }

 private:
  void begin(TraceWindow& window, Round round) {
    round_ = round;
    place_ = nullptr;
    const std::uint64_t last = window.last.load(std::memory_order_acquire);
    // Starts with the round before the first one: its end is the beginning of the first.
    traced_ = last != 0 && round.value <= last && round.value + 1 >= window.first.load(std::memory_order_relaxed);
    if (!traced_) return;
    const std::uint64_t at = round.value - window.first.load(std::memory_order_relaxed);
    if (at >= kMaxTraceRounds) return;
    place_ = &window.places[at];
    place_->round.store(round.value, std::memory_order_relaxed);
    place_->begin_ns.store(end_ns_ == 0 ? steady_ns() : end_ns_, std::memory_order_relaxed);
    place_->end_ns.store(0, std::memory_order_relaxed);
  }

  Round round_;  // of the newest gradient
  bool traced_ = false;
  TraceWindow::Place* place_ = nullptr;  // null: the round is none of the trace's
  std::uint64_t end_ns_ = 0;             // of the newest wait that was noted
};

}  // namespace tributary
