// The libraries and devices that ranks compute gradients with, as each reports: "torch 2.13.0 Haswell", "torch
// 2.13.0 NVIDIA H200". Different kinds add in different orders: equal bits are promised only if all ranks compute with
// one kind from the first round on.
#pragma once

#include <cstddef>
#include <set>
#include <string>

namespace tributary {

inline constexpr std::size_t kMaxComputeKindBytes = 128;  // of one
inline constexpr std::size_t kMaxComputeKinds = 16;       // that are distinguished, of a node or a job

using ComputeKinds = std::set<std::string>;

// Adds a rank's kind. A rank that reports none is not compared.
inline void add_kind(ComputeKinds& kinds, const std::string& kind) {
  if (!kind.empty() && kinds.size() < kMaxComputeKinds) kinds.insert(kind);
}

}  // namespace tributary
