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
         std::to_string(duplicate) + ", mode " + mode +
         (mode == "sync" ? ""
                         : (mode == "ssp" ? " with staleness " + std::to_string(staleness) : "") +
                               (restarts ? ", cut off after " + std::to_string(cut_after_events) + " events" : "")) +
         (clip_norm > 0.0 ? ", clipped at " + std::to_string(clip_norm) : "") +
         (loss_scale != "none" ? ", loss scale " + loss_scale : "");
}

GateConfig Scenario::gate() const {
  GateConfig config;
  config.clip_norm = clip_norm;
  config.loss_scale = loss_scale;
  config.init_scale = 262144.0;  // too large for fp16
  config.growth_interval = 2;
  return config;
}

std::uint64_t Scenario::slowness(std::uint32_t node) const {
  if (mode == "sync") return 1;
  return 1ull << Random::mix(seed * 65537 + node) % 5;
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
  static constexpr const char* kPushes[] = {"fp32", "fp32", "bf16", "fp16", "int8", "topk:0.03", "topk:0.01", "onebit"};
  static constexpr const char* kPulls[] = {"fp32", "fp32", "bf16", "fp16", "int8-delta", "int8-delta"};
  s.optimizer = kOptimizers[random.below(5)];
  s.push = kPushes[random.below(std::size(kPushes))];
  s.pull = kPulls[random.below(std::size(kPulls))];
  s.lose = random.chance(0.5) ? 0.03 : 0.0;
  s.duplicate = random.chance(0.5) ? 0.1 : 0.0;
  s.window_bytes = s.chunk_elements * 4 * random.between(1, 4);
  // Drawn last, so that synchronous seeds are what they were before there were others.
  if (!random.chance(0.5)) {
    if (s.push.starts_with("int8") || s.push.starts_with("topk") || s.push == "onebit" || !random.chance(0.5)) return s;
    if (random.chance(0.7)) s.clip_norm = 0.25 * static_cast<double>(random.between(1, 40));
    if (random.chance(0.5)) s.loss_scale = random.chance(0.8) ? "dynamic" : "64";
    return s;
  }
  s.mode = random.chance(0.75) ? "ssp" : "async";
  s.staleness = random.below(4);
  s.rounds = random.between(4, 12);
  s.push = s.push.starts_with("fp") || s.push.starts_with("bf") ? s.push : "fp32";
  s.pull = s.pull.starts_with("int8") ? "fp32" : s.pull;
  s.restarts = random.chance(0.4);
  s.cut_after_events = random.between(200, 4000);
  return s;
}

}  // namespace tributary::sim
