#include "common/config/gate_rules.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#include "kernels/facts.h"

namespace tributary {
namespace {

constexpr double kClipEpsilon = 1e-6;  // torch's

}  // namespace

void TreeTotal::add(double term) {
  // As a binary counter: a level that is taken is added to, and carried.
  int level = 0;
  for (std::uint64_t rest = count_; (rest & 1) != 0; rest >>= 1) term = levels_[level++] + term;
  levels_[level] = term;
  ++count_;
}

double TreeTotal::total() const {
  double total = 0.0;
  for (int level = 0; level < 64; ++level) {
    if ((count_ >> level & 1) != 0) total = levels_[level] + total;
  }
  return total;
}

GateFacts gate_facts(std::span<const float> sum, std::uint64_t weight) {
  GateFacts facts{.sum_squares = 0.0, .weight = weight, .finite = true};
  TreeTotal total;
  for (std::size_t first = 0; first < sum.size(); first += kGateBlock) {
    const std::size_t count = std::min(kGateBlock, sum.size() - first);
    const kernels::GradientFacts block = kernels::gradient_facts(sum.data() + first, count);
    facts.finite = facts.finite && block.non_finite == 0;
    total.add(block.sum_squares);
  }
  facts.sum_squares = total.total();
  return facts;
}

GateDecision first_gate_state(const GateConfig& config) {
  GateDecision first;
  first.verdict = GateVerdict::kVoid;
  first.loss_scale = static_cast<float>(initial_loss_scale(config));
  return first;
}

GateDecision decide_gate(const GateConfig& config, const GateDecision& before, std::span<const GateFacts> chunks) {
  GateDecision decision;
  decision.loss_scale = before.loss_scale;
  decision.good_rounds = before.good_rounds;
  const bool dynamic = has_dynamic_scale(config);
  std::uint64_t weight = 0;
  bool finite = true, one_weight = true;
  for (const GateFacts& chunk : chunks) {
    finite = finite && (chunk.finite || chunk.weight == 0);
    one_weight = one_weight && chunk.weight == chunks.front().weight;
    weight = std::max(weight, chunk.weight);
  }
  if (weight == 0) {
    decision.verdict = GateVerdict::kVoid;
    return decision;
  }
  if (!finite) {
    decision.verdict = GateVerdict::kSkipped;
    decision.good_rounds = 0;
    if (dynamic) {
      decision.loss_scale = std::max(decision.loss_scale * static_cast<float>(config.backoff_factor), kMinLossScale);
    }
    return decision;
  }
  // Every node's weight of a round is the same on all chunks; should that ever not be so, each counts by its own.
  TreeTotal squares;
  for (const GateFacts& chunk : chunks) {
    const double of_mean = static_cast<double>(chunk.weight) * static_cast<double>(chunk.weight);
    squares.add(one_weight ? chunk.sum_squares : chunk.weight == 0 ? 0.0 : chunk.sum_squares / of_mean);
  }
  const double mean =
      one_weight ? std::sqrt(squares.total()) / static_cast<double>(weight) : std::sqrt(squares.total());
  const double scale = before.loss_scale;
  decision.norm = mean / scale;
  decision.verdict = GateVerdict::kApplied;
  double clip = 1.0;
  if (config.clip_norm > 0.0) {
    clip = std::min(1.0, config.clip_norm / (decision.norm + kClipEpsilon));
    if (clip < 1.0) decision.verdict = GateVerdict::kClipped;
  }
  decision.coefficient = clip / scale;
  if (!dynamic) return decision;
  if (++decision.good_rounds >= config.growth_interval) {
    decision.good_rounds = 0;
    decision.loss_scale = std::min(decision.loss_scale * static_cast<float>(config.growth_factor), kMaxLossScale);
  }
  return decision;
}

}  // namespace tributary
