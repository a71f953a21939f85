// A lane's counters, and its gauges of each job: relaxed atomics, for status and for the control thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "server/shard/shard_counts.h"

namespace tributary {

// Written by the lane's thread (those of shards at most kPublishMs late), read by any thread.
struct alignas(64) LaneCounters : ShardCounts<LaneCounter> {
  LaneCounter messages, malformed, unknown_job, internal_errors, dropped_sends, dropped_unreachable,
      socket_payload_bytes, shared_payload_bytes, jobs, pool_bytes, max_pool_bytes, links, mapped_bytes;

  static void visit(auto&& visit, auto&... sets) {
    using enum CountKind;
    ShardCounts<LaneCounter>::visit(visit, sets...);
    visit({kTotal, "messages", "Messages received."}, sets.messages...);
    visit({kTotal, "malformed", "Messages that are none of ours."}, sets.malformed...);
    visit({kTotal, "unknown_job", "Messages for a job that is not open."}, sets.unknown_job...);
    visit({kTotal, "internal_errors", "Messages that failed for a reason of the server's own."},
          sets.internal_errors...);
    visit({kTotal, "dropped_sends", "Messages given up because the receiver takes nothing or is gone."},
          sets.dropped_sends...);
    visit({kTotal, "dropped_unreachable", "Those of them whose receiver is gone."}, sets.dropped_unreachable...);
    visit({kTotal, "socket_payload_bytes", "Payload bytes both ways that crossed a socket."},
          sets.socket_payload_bytes...);
    visit({kTotal, "shared_payload_bytes", "Payload bytes both ways in memory shared with a worker."},
          sets.shared_payload_bytes...);
    visit({kNow, "jobs", "Jobs open on the lane."}, sets.jobs...);
    visit({kNow, "pool_bytes", "Bytes of buffers for parameters and optimizer state."}, sets.pool_bytes...);
    visit({kMost, "max_pool_bytes", "Most bytes of such buffers at once."}, sets.max_pool_bytes...);
    visit({kNow, "links", "Nodes on this machine that share memory with the lane, by job."}, sets.links...);
    visit({kNow, "mapped_bytes", "Memory of workers on this machine that the lane has mapped."}, sets.mapped_bytes...);
  }
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
