// What a seed turns into.
#include "tests/sim/random.h"
#include "tests/sim/simulation.h"

namespace tributary::sim {

std::string Scenario::describe() const {
  return "seed " + std::to_string(seed) + ": " + std::to_string(nodes) + " nodes x " + std::to_string(ranks_per_node) +
         " ranks, " + std::to_string(shards) + " servers x " + std::to_string(lanes) + " lanes, " +
         std::to_string(parameters) + " parameters in chunks of " + std::to_string(chunk_elements) + ", " +
         std::to_string(rounds) + " rounds of " + optimizer + ", push " + push + ", pull " + pull + ", window " +
         std::to_string(window_bytes) + " bytes, loss " + std::to_string(lose) + ", duplication " +
         std::to_string(duplicate);
}

Scenario scenario_of(std::uint64_t seed) {
  Random random(seed);
  Scenario s;
  s.seed = seed;
  s.nodes = static_cast<std::uint32_t>(random.between(1, 4));
  s.ranks_per_node = static_cast<std::uint32_t>(random.between(1, 3));
  s.shards = static_cast<std::uint32_t>(random.between(1, 3));
  s.lanes = static_cast<std::uint32_t>(random.between(1, 2));
  s.chunk_elements = 1024 * random.between(1, 2);
  s.parameters = random.between(1000, 7000);
  s.rounds = random.between(2, 6);
  static constexpr const char* kOptimizers[] = {"sgd", "adam", "adamw", "adagrad", "lion"};
  static constexpr const char* kPushes[] = {"fp32",  "fp32", "bf16", "fp16", "int8", "topk:0.03", "topk:0.01:estimated",
                                            "onebit"};
  static constexpr const char* kPulls[] = {"fp32", "fp32", "bf16", "fp16", "int8-delta", "int8-delta"};
  s.optimizer = kOptimizers[random.below(5)];
  s.push = kPushes[random.below(std::size(kPushes))];
  s.pull = kPulls[random.below(std::size(kPulls))];
  s.lose = random.chance(0.5) ? 0.03 : 0.0;
  s.duplicate = random.chance(0.5) ? 0.1 : 0.0;
  s.window_bytes = s.chunk_elements * 4 * random.between(1, 4);
  return s;
}

}  // namespace tributary::sim
