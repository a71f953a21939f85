// Number of rounds that a job's nodes keep their pushes of, to push them again to servers that lost them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/layout.h"
#include "common/config/config.h"
#include "common/math/encoding.h"

namespace tributary {

// Bounds of the rounds kept. Fewer are not worth their memory: snapshots would have to follow each other too closely.
// More are of no use to any job.
inline constexpr std::uint32_t kMinRedoRounds = 16, kMaxRedoRounds = 256;
// Rounds that a ring keeps residuals of, where the encoding has them: the last one that the node encoded, and the one
// before, where a view may begin. A gate makes it one more: a round whose decision no answer has told cannot be repeated.
inline constexpr std::uint32_t kMinResidualRounds = 2, kMaxResidualRounds = 3;
inline std::uint32_t residual_rounds(const JobConfig& config) {
  return has_gate(config) ? kMaxResidualRounds : kMinResidualRounds;
}
// The most rounds that are pushed between the approach of a snapshot's round and its end on the disks.
inline constexpr std::uint64_t kRoundsOfSnapshot = 32;

// Bytes that a node pushes in a round.
inline std::uint64_t push_bytes(const Layout& layout, EncodingSpec push) {
  const auto encoding = make_encoding(push);
  std::uint64_t bytes = 0;
  for (std::uint32_t c = 0; c < layout.chunks(); ++c) bytes += encoding->bytes(layout.chunk(ChunkIndex(c)).elements);
  return bytes;
}

// Returns the rounds that are of use to a job: those since the last snapshot, twice, because a snapshot is taken when
// half of them are kept. With snapshots by time their number is not known in advance.
inline std::uint64_t redo_rounds_of_use(const SnapshotConfig& snapshot) {
  if (snapshot.every_s != 0 || snapshot.every_rounds == 0) return kMaxRedoRounds;
  return 2 * (std::min<std::uint64_t>(snapshot.every_rounds, kMaxRedoRounds) + kRoundsOfSnapshot);
}

// Rounds that a node keeps; 0: none.
inline std::uint32_t redo_rounds(const JobConfig& config, std::uint64_t bytes_of_round) {
  if (!has_rounds(config) || bytes_of_round == 0) return 0;
  const std::uint64_t fits = (std::uint64_t{config.recovery.redo_mb} << 20) / bytes_of_round;
  const std::uint64_t rounds = std::min<std::uint64_t>({fits, kMaxRedoRounds, redo_rounds_of_use(config.snapshot)});
  return fits < kMinRedoRounds ? 0 : static_cast<std::uint32_t>(rounds);
}

}  // namespace tributary
