// TraceWindow: the part of a rank's region in which a trainer records its rounds while its job is traced
// (docs/trace.md). The worker names the rounds; the trainer looks once a round, and writes to places of its own.
#pragma once

#include <atomic>
#include <cstdint>

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

}  // namespace tributary
