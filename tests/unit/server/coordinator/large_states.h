// States of ranks with a large part, for tests, and the peers that give them.
#pragma once

#include <string>
#include <vector>

#include "common/base/checksum.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::testing {

inline std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

struct LargeState {
  std::vector<std::byte> bytes;  // of the large part
  LargePart large;
  std::vector<std::byte> state;

  std::vector<std::byte> piece(std::uint64_t offset) const {
    const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(offset);
    return {from, from + static_cast<std::ptrdiff_t>(std::min<std::size_t>(kPartBytes, bytes.size() - offset))};
  }
};

inline LargeState large_state(char content, std::size_t size = 10, bool whole = true) {
  LargeState made;
  made.bytes.assign(size, static_cast<std::byte>(content));
  const auto [high, low] = Checksum128().add(made.bytes.data(), made.bytes.size()).value();
  made.large = {size, high, low};
  made.state = StateHead{made.large, whole}.before(bytes_of("small"));
  return made;
}

inline void give(Cluster& cluster, std::uint32_t w, std::uint64_t round, const std::vector<std::byte>& state,
                 std::uint32_t local_rank = 0) {
  cluster.say(worker_peer(w),
              NodeRankState{cluster.open().job, cluster.open().view, NodeRank(w), local_rank, {Round(round), state}});
}

// Answers the coordinator's requests for `state`, and no others, until they end. Returns the number of pieces.
inline std::size_t deliver(Cluster& cluster, std::uint32_t w, const LargeState& state) {
  std::size_t pieces = 0;
  for (;; ++pieces) {
    const auto wants = cluster.to<WantPart>(worker_peer(w));
    const auto mine = std::ranges::find(wants, state.large, &WantPart::large);
    if (mine == wants.end()) return pieces;
    const WantPart want = *mine;
    std::erase_if(cluster.sent, [&](const auto& sent) {
      const auto* one = std::get_if<WantPart>(&sent.second);
      return sent.first == worker_peer(w) && one && one->large == want.large && one->offset == want.offset;
    });
    cluster.say(worker_peer(w), StatePart{want, state.piece(want.offset)});
  }
}

inline void join_all(Cluster& cluster, JoinOptions options, std::uint32_t nodes) {
  options.nodes = nodes;
  for (std::uint32_t w = 0; w < nodes; ++w) {
    options.node = w;
    cluster.join(w, options);
  }
  cluster.all_ready();
}

inline JoinOptions rewinding() {
  JoinOptions options;
  options.config.membership.on_state_lost = OnStateLost::kRewind;
  return options;
}

}  // namespace tributary::testing
