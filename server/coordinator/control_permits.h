// ControlPermits: which of the coordinator's peers may say what, in a cluster with keys (docs/security.md). Pure. The
// coordinator's shell owns it, and hands on what it permits.
//
// A key is a name and a role. A peer says hello as who it is, a role says what is its to say, and whoever speaks for a
// process (its incarnation) has the key that it said hello with.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/security/keys.h"
#include "common/wire/messages.h"

namespace tributary {

class ControlPermits {
 public:
  static constexpr std::size_t kMaxProcesses = 65536;  // remembered; the oldest are forgotten, and say hello again

  // kInvalidArgument: not by this peer. In words for it.
  Status check(const Identity& who, const ControlMessage& message);

 private:
  Status check_process(const Identity& who, std::uint64_t incarnation) const;
  void remember(const Identity& who, std::uint64_t incarnation);

  std::map<std::uint64_t, std::string> processes_;  // whose key each said hello with, by incarnation
};

}  // namespace tributary
