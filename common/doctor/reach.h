// Tests whether this process can connect to endpoints, in the kernel's terms: before any protocol, whatever the keys.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace tributary {

struct Reach {
  std::string endpoint;
  std::string from;     // this machine's address on the way there; empty: not reached, or no way over a network
  std::string why_not;  // empty: it is reached. Else why, as a part of a sentence
  std::string cure;
};

inline constexpr std::chrono::milliseconds kReachPatience{3000};  // of a connection, without an answer
inline constexpr std::size_t kReachAtOnce = 128;                  // endpoints

// endpoints: "tcp://HOST:PORT" (IPv4, as daemons connect) and "ipc://PATH". kReachAtOnce at a time, each of which takes
// kReachPatience at most; besides, for each name the resolver's own patience. In their order; fewer if `stopping`.
std::vector<Reach> reach(const std::vector<std::string>& endpoints, const std::atomic<bool>& stopping);

// Returns whether the listener at a reachable endpoint begins as ZeroMQ does, which sends first (the signature of ZMTP
// 3.0's greeting). Waits kReachPatience for it.
bool speaks_zmtp(const std::string& endpoint);

}  // namespace tributary
