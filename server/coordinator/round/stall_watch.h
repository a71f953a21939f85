// StallWatch: the cause why no round of a running job is completed: the one answer of status, log and metrics
// (docs/membership.md). Pure: reports of nodes and servers in, words out. The job's ledger owns it, so that a view
// knows the duration of earlier rounds.
//
// A job is examined when it has had no round for several times the usual duration. The answer is the first of these
// that is true: a peer is silent; a rank waits for values that others have not given; ranks have not given their
// gradients, and others have; nodes keep no more pushes until a snapshot is written; a server is behind; none of these,
// so that bytes are under way.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"

namespace tributary {

class StallWatch {
 public:
  static constexpr std::uint64_t kQuietMs = 5000;    // without a round, at least, before it is a stall
  static constexpr std::uint64_t kFirstMs = 60'000;  // while it is not known how long a round takes
  static constexpr std::uint64_t kTimesUsual = 4;    // and so many times what a round usually takes
  static constexpr std::uint64_t kUnheardMs = 3000;  // at least, for a peer that should report every second

  // A view begins, at that round. How long rounds take is known from earlier ones.
  void begin_view(Round start, std::uint64_t now_ms) {
    reached_ = start;
    since_ms_ = now_ms;
    any_ = false;
  }
  // The round that all chunks have seen.
  void reached(Round round, std::uint64_t now_ms);

  // The facts at the time of look().
  struct Peer {
    std::string name;            // "node 1 (worker host1)"
    std::uint64_t heard_ms = 0;  // last
  };
  struct Rank {
    std::uint32_t rank = 0;
    std::string node;  // "node 1"
    Round said;        // of which it has given all gradients
  };
  struct Server {
    std::uint16_t index = 0;
    Version version;  // that all its chunks have seen
  };
  struct Facts {
    std::uint64_t unheard_ms = kUnheardMs;  // after which it is worth a word
    std::vector<Peer> peers;
    std::vector<Rank> ranks;
    std::vector<Server> servers;
    std::string values;  // ranks whose values others wait for; empty: none
    // The number of rounds that nodes keep, and the last durable round.
    std::uint64_t kept_most = 0;  // 0: they keep none, or all that comes
    Round durable;
    std::optional<Round> snapshot;              // under way
    std::vector<std::uint16_t> snapshot_waits;  // servers that have still to write it
  };
  struct Stall {
    std::uint64_t ms = 0;  // without a round
    std::string why;
  };
  // Returns whether the last round is so long ago that the job is to be examined.
  bool quiet(std::uint64_t now_ms) const { return now_ms >= since_ms_ + patience_ms(); }
  // Returns the stall and its cause; none: no stall is known.
  std::optional<Stall> look(const Facts& facts, std::uint64_t now_ms) const;

 private:
  // Uses the lower quartile of durations, because past stalls are not usual rounds.
  std::uint64_t patience_ms() const {
    if (known_ == 0) return kFirstMs;
    auto usual = last_ms_;
    const auto quartile = usual.begin() + known_ / 4;
    std::nth_element(usual.begin(), quartile, usual.begin() + known_);
    return std::max(kQuietMs, kTimesUsual * *quartile);
  }

  Round reached_;
  bool any_ = false;                        // a round has been done since the view began
  std::uint64_t since_ms_ = 0;              // it was, or the view began
  std::array<std::uint64_t, 8> last_ms_{};  // how long the last ones took, as heartbeats show it
  std::size_t known_ = 0, next_ = 0;
};

}  // namespace tributary
