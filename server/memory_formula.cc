#include "server/memory_formula.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "common/math/encoding.h"

namespace tributary {

MemoryTerms& MemoryTerms::operator+=(const MemoryTerms& other) {
  state += other.state;
  answers += other.answers;
  told += other.told;
  estimate += other.estimate;
  held += other.held;
  arriving += other.arriving;
  snapshot += other.snapshot;
  sums += other.sums;
  residuals += other.residuals;
  process += other.process;
  return *this;
}

namespace {

// Blocks of one array of the shard.
std::uint64_t array_bytes(const ShardMemory& shard) {
  return shard.chunks * (shard.largest_chunk * sizeof(float) + kBlockSlack);
}

}  // namespace

MemoryTerms memory_formula(const ShardMemory& shard) {
  const std::uint64_t array = array_bytes(shard);
  const std::uint64_t push_bytes = make_encoding(shard.push)->bytes(shard.elements);
  MemoryTerms terms;
  terms.state = array * (shard.arrays.state + shard.arrays.previous);
  // Kept parameters are what is still being sent.
  terms.answers = shard.arrays.encoded == 0 && shard.arrays.previous != 0 ? 0 : array;
  terms.told = array * shard.arrays.told;
  terms.sums = array * shard.arrays.sums;
  terms.residuals = array * shard.arrays.residuals;
  terms.estimate = array * shard.arrays.estimate;
  terms.held = shard.max_held_bytes;
  terms.arriving = shard.nodes * std::min(push_bytes, shard.lanes * kAssumedWindowBytes);
  terms.snapshot = shard.snapshot_bytes;
  return terms;
}

std::uint64_t memory_at_most(ShardMemory shard, bool snapshots) {
  shard.snapshot_bytes = snapshots ? array_bytes(shard) * shard.arrays.snapshot() : 0;
  return memory_formula(shard).total();
}

std::uint64_t process_formula(std::size_t lanes) {
  return (std::uint64_t{12} + lanes) << 20;
}

std::uint64_t anonymous_bytes() {
  constexpr std::string_view kAnonymous = "RssAnon:";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(kAnonymous)) return std::strtoull(line.c_str() + kAnonymous.size(), nullptr, 10) * 1024;
  }
  return 0;
}

}  // namespace tributary
