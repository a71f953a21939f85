// How much memory a server needs for the jobs it holds, as a formula that an operator can check with a pencil, and the
// process's real figure next to it. Both are exported: tributary_memory_formula_bytes and tributary_owned_bytes. The
// formula is an upper bound.
//
// Arrays of a chunk are in blocks of one size: that of the largest chunk, and up to 8 KiB for whole pages and different
// cache sets. A: blocks of one array of the shard, that is, its chunks times the size of a block; some more than P * 4,
// where P are the parameters that the server owns. For an optimizer with S state arrays and n nodes:
//
//     state      A * (1 + S)                         fp32 parameters and optimizer state; A more with recovery: the
//                                                    parameters before the last step
//     answers    A                                   at most one more copy: parameters that are still being sent
//                                                    while the next round is written (not with recovery, which has
//                                                    them anyway), or the encoded answers
//     told       n * A in modes ssp and async        what every node was answered and has not pushed after: it may be
//                                                    reading there
//     estimate   A with a delta pull encoding        what the workers hold
//     residuals  n * A                               with error feedback: what nodes have yet to say, of a snapshot, until
//                                                    the first round of the view is complete (n: nodes that hold a
//                                                    chunk, at most)
//     held       n * push frame * chunks in flight   gradient frames that wait for the other nodes (the most seen so
//                                                    far; fewer where fp32 frames are added before all are there)
//     arriving   n * L * window                      frames that ZeroMQ has received and the lane has not looked at
//                                                    yet; at most one push of each chunk
//     sums       A                                   with a gate: rounds that wait for their decision
//     snapshot   blocks kept by copy-on-write        while a snapshot is being written, and half a minute longer;
//                                                    where a worker reads the pool, as long as the job has it
//     process    12 MiB + 1 MiB a lane               once, without any job: stacks, sockets, RocksDB's tables. It does
//                                                    not grow with the model (measured: up to 9 MiB)
//
// Memory that workers on this machine share with the server (their frames, and what they keep for lost servers) is
// theirs, and all processes share the programs' code: neither is counted, here or in tributary_owned_bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/ids.h"
#include "server/shard/chunk_arrays.h"

namespace tributary {

// The client's default cap on unacknowledged bytes of one worker lane (WorkerConfig::window_bytes).
inline constexpr std::uint64_t kAssumedWindowBytes = 16u << 20;
// The most that a block of common/system/buffer_pool.h has beyond its capacity.
inline constexpr std::uint64_t kBlockSlack = 8u << 10;

// The formula's input: one job on one server.
struct ShardMemory {
  std::uint64_t elements = 0;  // of the chunks this server owns
  std::uint32_t chunks = 0;
  std::uint64_t largest_chunk = 0;  // elements
  ChunkArrays arrays;
  std::uint32_t nodes = 1;
  std::uint16_t lanes = 1;
  EncodingSpec push;
  std::uint64_t max_held_bytes = 0;  // most gradient bytes held at once so far
  std::uint64_t snapshot_bytes = 0;  // kept by copy-on-write now
};

struct MemoryTerms {
  std::uint64_t state = 0, answers = 0, estimate = 0, held = 0, arriving = 0, snapshot = 0, told = 0, sums = 0,
                residuals = 0, process = 0;
  std::uint64_t blocks() const {
    return state + answers + estimate + told + sums + residuals;
  }  // of pools, without snapshots
  std::uint64_t total() const { return blocks() + held + arriving + snapshot + process; }
  MemoryTerms& operator+=(const MemoryTerms& other);
};

MemoryTerms memory_formula(const ShardMemory& shard);
// Most that the job may make this server take, in bytes, without frames that wait for late nodes: the formula while a
// snapshot keeps a copy of all that it shares. snapshots: there is a store for them.
std::uint64_t memory_at_most(ShardMemory shard, bool snapshots);
// The term `process`, of a server with so many lanes.
std::uint64_t process_formula(std::size_t lanes);

// Anonymous memory of this process that is resident, in bytes (RssAnon in /proc/self/status); 0 where /proc is not
// there.
std::uint64_t anonymous_bytes();

}  // namespace tributary
