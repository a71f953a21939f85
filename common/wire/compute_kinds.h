// What ranks compute gradients with, each as it says itself: "OpenBLAS 0.3.21 (Haswell)", "torch 2.13.0 NVIDIA H200".
// Two kinds add in other orders, so that equal bits are promised only where all ranks, from the first round on,
// computed with one.
#pragma once

#include <cstddef>
#include <set>
#include <string>

namespace tributary {

inline constexpr std::size_t kMaxComputeKindBytes = 128;  // of one
inline constexpr std::size_t kMaxComputeKinds = 16;       // that are told apart, of a node or a job

using ComputeKinds = std::set<std::string>;

// A rank that says nothing is not compared.
inline void add_kind(ComputeKinds& kinds, const std::string& kind) {
  if (!kind.empty() && kinds.size() < kMaxComputeKinds) kinds.insert(kind);
}

}  // namespace tributary
