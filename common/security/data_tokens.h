// One-time tokens: by which a node shows a lane who it is where payloads are not encrypted (docs/security.md). Both
// sides make them of the key that their two pairs have in common (X25519), so that nobody has to bring them one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/security/keys.h"

namespace tributary {

// What one is good for: one connection of a node to a lane, in a view.
struct DataToken {
  JobId job;
  ViewId view;
  NodeRank node;
  ShardIndex shard;
  LaneIndex lane;
  std::uint32_t use = 1;  // of those of this node at this lane in this view; a lane takes each once, in order

  bool operator==(const DataToken&) const = default;
};

inline constexpr std::size_t kMaxTokenName = 64;  // bytes

// What goes in clear beside the proof; the lane knows where it came to itself.
std::string token_name(const DataToken& token);
// kMalformed.
Result<DataToken> token_named(std::string_view name, ShardIndex shard, LaneIndex lane);

// BLAKE2b-256 of all that the token says, keyed with what own and the peer's key have in common, in hexadecimal digits.
// kInvalidArgument: a key that is none.
Result<std::string> token_proof(const DataToken& token, const KeyPair& own, const std::string& peer_key);
// In a time that does not tell where they differ.
bool same_proof(std::string_view one, std::string_view other);

}  // namespace tributary
