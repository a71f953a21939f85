// A chunk's open round: the pushes that wait for the others.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/math/gate_decision.h"
#include "common/math/step_settings.h"
#include "common/wire/payload.h"

namespace tributary {

struct Contribution {
  Payload frame;
  PeerId from;
  std::uint64_t weight = 0;
  bool present = false;
  std::uint32_t summed = 0;  // so many nodes' frames are in this one; 0: its own is in another's
  bool redo = false;
  GateDecision gate;      // Push::gate
  HeldSettings settings;  // Push::settings
};

struct OpenRound {
  std::uint32_t arrived = 0;
  std::vector<Contribution> pushes;  // by node
};

}  // namespace tributary
