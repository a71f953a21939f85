// One-time tokens, which identify a node to a lane where payloads are not encrypted (docs/security.md). Both sides make
// them of the key that their two pairs have in common (X25519), so that tokens need not be distributed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/security/keys.h"

namespace tributary {

// The subject of a token: one connection of a node to a lane, in a view.
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

// Returns the clear text that goes with the proof; shard and lane are left out, because the lane knows its own.
std::string token_name(const DataToken& token);
// kMalformed.
Result<DataToken> token_named(std::string_view name, ShardIndex shard, LaneIndex lane);

// Returns the BLAKE2b-256 of all fields of the token, keyed with the common key of own and the peer's, in hexadecimal
// digits. kInvalidArgument: a key that is none.
Result<std::string> token_proof(const DataToken& token, const KeyPair& own, const std::string& peer_key);
// Compares two proofs in a time that does not depend on where they differ.
bool same_proof(std::string_view one, std::string_view other);

}  // namespace tributary
