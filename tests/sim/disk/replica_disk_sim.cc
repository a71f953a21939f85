#include "tests/sim/disk/replica_disk_sim.h"

#include <cstddef>
#include <iterator>
#include <ranges>
#include <utility>

#include "server/chunk/chunk_record.h"

namespace tributary::sim {
namespace {

constexpr std::ptrdiff_t kKept = 2;

}  // namespace

Status ReplicaDisk::write(Round round, const State& state) {
  if (full) return fail(ErrorCode::kIo, "the disk is full");
  std::map<std::uint32_t, Disk::Piece> pieces;
  for (const auto& [index, chunk] : state) {
    records::ChunkHeader header;
    header.round = round;
    header.chunk = ChunkIndex(index);
    std::string sealed;
    for (StoredEntry& entry : records::compose_chunk(std::move(header), chunk, sealed).entries) {
      pieces[index].entries.emplace_back(std::move(entry.key), entry.value);
    }
  }
  checkpoints_[round] = std::move(pieces);
  // As ReplicaCheckpoints::remove_older(): later ones were damaged when the job began, and stay.
  const auto older = std::distance(checkpoints_.begin(), checkpoints_.upper_bound(round));
  if (older > kKept) checkpoints_.erase(checkpoints_.begin(), std::next(checkpoints_.begin(), older - kKept));
  return {};
}

Status ReplicaDisk::read(Round round, const EachChunk& each) const {
  const auto found = checkpoints_.find(round);
  if (found == checkpoints_.end()) return fail(ErrorCode::kNotFound, "there is no such checkpoint");
  for (const auto& [index, piece] : found->second) {
    const StoredChunk stored = piece.stored(ChunkIndex(index));
    const auto header = records::unseal_chunk(stored.entries.front().value, "the header of a chunk");
    if (!header) return tl::unexpected(header.error());
    if (Status whole = records::check_arrays(*header, stored); !whole) return whole;
    if (Status taken = each(ChunkIndex(index), records::state_of(*header, stored)); !taken) return taken;
  }
  return {};
}

Result<Round> ReplicaDisk::newest() const {
  Status flaw;
  for (const auto& [round, pieces] : checkpoints_ | std::views::reverse) {
    flaw = read(round, [](ChunkIndex, const ChunkState&) -> Status { return {}; });
    if (flaw) return round;
  }
  return flaw ? Result<Round>(Round()) : tl::unexpected(flaw.error());
}

}  // namespace tributary::sim
