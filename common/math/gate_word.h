// GateWord: the decision about a round, in memory that processes share. All writers of a round write the same decision.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/math/gate_decision.h"

namespace tributary {

struct GateWord {
  static constexpr std::uint64_t kNoRound = ~0ull;
  std::atomic<std::uint64_t> round{kNoRound};
  std::atomic<double> coefficient{0.0}, norm{0.0};
  std::atomic<float> loss_scale{1.0f};
  std::atomic<std::uint32_t> good_rounds{0}, verdict{0};

  void write(std::uint64_t of, const GateDecision& gate) {
    coefficient.store(gate.coefficient, std::memory_order_relaxed);
    norm.store(gate.norm, std::memory_order_relaxed);
    loss_scale.store(gate.loss_scale, std::memory_order_relaxed);
    good_rounds.store(gate.good_rounds, std::memory_order_relaxed);
    verdict.store(static_cast<std::uint32_t>(gate.verdict), std::memory_order_relaxed);
    round.store(of, std::memory_order_release);
  }
  // Returns the decision about round `of`; kNone if the word is another round's.
  GateDecision read(std::uint64_t of) const {
    if (round.load(std::memory_order_acquire) != of) return {};
    const auto known = static_cast<GateVerdict>(verdict.load(std::memory_order_relaxed));
    return {known, coefficient.load(std::memory_order_relaxed), norm.load(std::memory_order_relaxed),
            loss_scale.load(std::memory_order_relaxed), good_rounds.load(std::memory_order_relaxed)};
  }
};

}  // namespace tributary
