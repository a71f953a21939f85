// KeptState: a rank's state after a round, with its large part, if it has one. Trainers and their worker share the
// large part's memory.
#pragma once

#include <memory>
#include <span>

#include "common/system/sealed_bytes.h"
#include "common/wire/attach_messages.h"

namespace tributary {

struct KeptState {
  RankState state;  // begins with its StateHead
  std::shared_ptr<const SealedBytes> large = nullptr;

  Round round() const { return state.round; }
  StateHead head() const { return StateHead::of(state.state); }
  std::span<const std::byte> body() const { return StateHead::body(state.state); }
  // Whether all parts that its head names are there.
  bool complete() const { return !state.state.empty() && (!head().large || large); }
};

}  // namespace tributary
