#include "server/memory_formula.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "common/encoding.h"

namespace tributary {

MemoryTerms& MemoryTerms::operator+=(const MemoryTerms& other) {
  state += other.state;
  answers += other.answers;
  told += other.told;
  estimate += other.estimate;
  held += other.held;
  arriving += other.arriving;
  snapshot += other.snapshot;
  mapped += other.mapped;
  log += other.log;
  sums += other.sums;
  return *this;
}

MemoryTerms memory_formula(const ShardMemory& shard) {
  const std::uint64_t fp32 = shard.elements * sizeof(float);
  const auto push = make_encoding(shard.push);
  const std::uint64_t push_bytes = push->bytes(shard.elements);
  MemoryTerms terms;
  terms.state = fp32 * (1 + static_cast<std::uint64_t>(shard.slots));
  const auto pull = make_encoding(shard.pull);
  // Kept parameters are what is still being sent.
  terms.answers = pull->id() == EncodingId::kFp32 && shard.recovers ? 0 : pull->bytes(shard.elements);
  if (shard.recovers) terms.state += fp32;
  terms.told = shard.clocks ? shard.nodes * pull->bytes(shard.elements) : 0;
  terms.sums = shard.gate ? fp32 : 0;
  terms.estimate = pull->is_delta() ? fp32 : 0;
  terms.held = shard.max_held_bytes;
  terms.arriving = shard.nodes * std::min(push_bytes, shard.lanes * kAssumedWindowBytes);
  terms.snapshot = shard.snapshot_bytes;
  terms.log = shard.log_bytes;
  const std::uint64_t frames = push->keeps_residual() ? 2 * (push_bytes + fp32) : push_bytes;
  terms.mapped = shard.local_nodes == 0 ? 0 : shard.local_nodes * frames + fp32;
  return terms;
}

std::uint64_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (!file) return 0;
  unsigned long long total = 0, resident = 0;
  const int read = std::fscanf(file, "%llu %llu", &total, &resident);
  std::fclose(file);
  return read == 2 ? resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace tributary
