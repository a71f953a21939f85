// Strong types for the numbers that must not be mixed up. The words are the ones of ARCHITECTURE.md, "Words".
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace tributary {

template <class Tag, class Rep>
struct StrongId {
  Rep value{};
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  constexpr auto operator<=>(const StrongId&) const = default;
  constexpr StrongId next() const { return StrongId(static_cast<Rep>(value + 1)); }
};

using JobId = StrongId<struct JobTag, std::uint64_t>;      // names one job forever, over restarts
using ViewId = StrongId<struct ViewTag, std::uint32_t>;    // a numbered membership of a job; grows with each (re)start
using NodeRank = StrongId<struct NodeTag, std::uint32_t>;  // torchrun's group_rank: 0 .. nodes-1
using Rank = StrongId<struct RankTag, std::uint32_t>;      // global rank: 0 .. world_size-1
using ShardIndex = StrongId<struct ShardTag, std::uint16_t>;  // which server
inline constexpr ShardIndex kNoShard{0xffff};                 // none
using Term = StrongId<struct TermTag, std::uint64_t>;         // of the coordinator: grows when another server takes it
using LaneIndex = StrongId<struct LaneTag, std::uint16_t>;    // which lane of a server
using ChunkIndex = StrongId<struct ChunkTag, std::uint32_t>;  // position of a chunk in the flat space
// Round r (r >= 1) turns a chunk of version r-1 into one of version r. 0 means "before the first round".
using Round = StrongId<struct RoundTag, std::uint64_t>;
using Version = StrongId<struct VersionTag, std::uint64_t>;  // rounds seen by a chunk
// A connection as the server's lane sees it; opaque to the cores (the shell packs ZeroMQ's routing id into it).
using PeerId = StrongId<struct PeerTag, std::uint64_t>;

// Encodings of values. Stable numbers: they are on the wire and in the store. Append only.
enum class EncodingId : std::uint8_t {
  kFp32 = 0,
  kBf16 = 1,
  kFp16 = 2,
  kInt8 = 3,
  kTopK = 4,
  kOneBit = 5,
  kInt8Delta = 6
};

// An encoding with its parameters, as a job names it ("int8", "topk:0.01").
struct EncodingSpec {
  EncodingId id = EncodingId::kFp32;
  std::uint32_t keep_ppm = 0;  // top-k: how many of a million values are sent

  constexpr EncodingSpec() = default;
  constexpr EncodingSpec(EncodingId encoding) : id(encoding) {}  // NOLINT: most have no parameters
  friend constexpr bool operator==(const EncodingSpec&, const EncodingSpec&) = default;
};

}  // namespace tributary

template <class Tag, class Rep>
struct std::hash<tributary::StrongId<Tag, Rep>> {
  std::size_t operator()(const tributary::StrongId<Tag, Rep>& id) const { return std::hash<Rep>{}(id.value); }
};
