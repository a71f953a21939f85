// How much memory a server needs for the jobs it holds, as a formula that an operator can check with a pencil, and the
// process's real figure beside it. Both are exported: tributary_memory_formula_bytes and tributary_resident_bytes.
//
// For a shard of P parameters (elements of the chunks it owns), an optimizer with S state arrays, n nodes:
//
//     state      P * 4 * (1 + S)                     fp32 parameters and optimizer state
//     answers    P * 4, or P * pull bytes            at most one more copy: parameters that are still being sent
//                                                    while the next round is written, or the encoded answers
//     told       n * P * pull bytes in modes         what every node was answered and has not pushed after: it may be
//                ssp and async                       reading there
//     estimate   P * 4 with a delta pull encoding    what the workers hold
//     held       n * push frame * chunks in flight   gradient frames that wait for the other nodes (the most seen so
//                                                    far)
//     arriving   n * L * window                      frames that ZeroMQ has received and the lane has not looked at
//                                                    yet; at most one push of each chunk
//     mapped     l * push frame + P * 4              l nodes on this machine: their frames, which are read where they
//                                                    lie, and the initial values. The workers' memory, but counted in
//                                                    this process's resident set as well. With encodings that keep a
//                                                    residual: l * 2 * (push frame + P * 4)
//     sums       P * 4                               with a gate: rounds that wait for their decision
//     snapshot   blocks kept by copy-on-write        while a snapshot is being written
//     log        steps on their way to the disk      redo_log = "disk": at most P * 4 (a round) and kMaxLogBytes a lane
//
// Code, thread stacks and RocksDB's tables come on top; they do not grow with the model (some tens of MB).
#pragma once

#include <cstdint>

#include "common/ids.h"

namespace tributary {

// The client's default cap on unacknowledged bytes of one worker lane (WorkerConfig::window_bytes).
inline constexpr std::uint64_t kAssumedWindowBytes = 16u << 20;

// What the formula needs to know about one job on one server.
struct ShardMemory {
  std::uint64_t elements = 0;  // of the chunks this server owns
  std::uint32_t chunks = 0;
  int slots = 0;
  std::uint32_t nodes = 1;
  std::uint16_t lanes = 1;
  EncodingSpec push;
  EncodingSpec pull;
  bool clocks = false;               // modes ssp and async
  bool gate = false;                 // rounds wait for one decision
  bool recovers = false;             // keeps the parameters before the last step
  std::uint64_t local_nodes = 0;     // that share their memory with it
  std::uint64_t max_held_bytes = 0;  // most gradient bytes held at once so far
  std::uint64_t snapshot_bytes = 0;  // held by copy-on-write now
  std::uint64_t log_bytes = 0;       // of blocks for steps on their way to the redo log
};

struct MemoryTerms {
  std::uint64_t state = 0, answers = 0, estimate = 0, held = 0, arriving = 0, snapshot = 0, mapped = 0, told = 0,
                sums = 0, log = 0;
  std::uint64_t total() const {
    return state + answers + estimate + held + arriving + snapshot + mapped + told + sums + log;
  }
  MemoryTerms& operator+=(const MemoryTerms& other);
};

MemoryTerms memory_formula(const ShardMemory& shard);

// Resident set of this process in bytes (/proc/self/statm); 0 where /proc is not there.
std::uint64_t resident_bytes();

}  // namespace tributary
