// What a lane counts, and what it says of each job: relaxed atomics, for status and for the control thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "common/metrics.h"

namespace tributary {

// Written by the lane's thread (relaxed, at most kPublishMs late), read by anybody.
struct alignas(64) LaneCounters {
  LaneCounter messages, malformed, unknown_job, internal_errors;
  LaneCounter dropped_full;         // answers given up because the peer takes nothing
  LaneCounter dropped_unreachable;  // because the peer is gone
  // Payload bytes of messages, by the way they went: over the socket, or in memory shared with the worker.
  LaneCounter socket_payload_bytes, shared_payload_bytes;
  LaneCounter pushes, duplicates, rejected, answers, steps, out_of_place_steps, starved, push_bytes, answer_bytes;
  LaneGauge jobs, held_frames, held_bytes, max_held_bytes, withheld, pool_bytes, max_pool_bytes, links, mapped_bytes;
  std::uint64_t dropped() const { return dropped_full.value() + dropped_unreachable.value(); }
};

// The same for one job on one lane; shared between the lane and the control thread.
struct alignas(64) LaneJobGauges {
  // clock_nodes: how many nodes have clocks of their own (modes ssp and async); 0: none.
  explicit LaneJobGauges(std::uint32_t clock_nodes = 0) : clocks(clock_nodes) {}

  std::atomic<std::uint64_t> min_version{0}, max_version{0};
  std::atomic<bool> initialised{false};
  std::atomic<bool> prepared{false};  // what the last prepare_snapshot() was for
  std::atomic<std::uint64_t> max_held_bytes{0}, pool_bytes{0};
  std::atomic<std::uint64_t> links{0};  // nodes whose memory the lane has mapped
  std::atomic<std::uint64_t> withheld{0};
  struct Clock {
    std::atomic<std::uint64_t> last{0}, furthest{0};  // on the chunks where it is so
  };
  std::vector<Clock> clocks;  // by node
};

}  // namespace tributary
