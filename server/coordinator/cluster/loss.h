// How a daemon was lost, as the log and the metric tributary_coordinator_losses_total have it.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace tributary {

enum class LossKind : std::uint8_t {
  kSilent,     // it has sent nothing for peer_timeout_ms
  kRestarted,  // another process has taken its place
  kRevoked,    // its key is let in no more
};
inline constexpr std::array<const char*, 3> kLossWords = {"silent", "restarted", "revoked"};

struct Loss {
  LossKind kind;
  std::string why;  // for people
};

// Since the coordinator began, by kind of loss.
struct LossCounts {
  std::array<std::uint64_t, kLossWords.size()> servers{}, workers{};
};

}  // namespace tributary
