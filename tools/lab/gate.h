// Gates: all ranks stop at the same point for a moment, while the lab reads counters. Gates are files in one folder,
// because ranks and lab share only the disk (the hosts' networks are being measured).
//
// A rank writes NAME.RANK and waits for NAME.open, which the lab writes when all are there.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "common/base/result.h"

namespace tributary::lab {

inline constexpr const char* kGateBefore = "before";  // after the warm-up, before the first measured round
inline constexpr const char* kGateAfter = "after";    // after the last measured round
inline constexpr std::chrono::seconds kGatePatience{120};

// A rank's side: waits at the gate. Passes at once if `folder` is empty. kTimeout after kGatePatience.
Status pass_gate(const std::string& folder, const std::string& name, std::uint32_t rank);

// The lab's side: whether this rank has come to the gate.
bool at_gate(const std::string& folder, const std::string& name, std::uint32_t rank);
Status open_gate(const std::string& folder, const std::string& name);

}  // namespace tributary::lab
