#include "tests/sim/reference.h"

#include <algorithm>

#include "common/schedule.h"
#include "tests/sim/random.h"

namespace tributary::sim {
namespace {

float unit(std::uint64_t bits) {
  return static_cast<float>(bits >> 40) * 0x1.0p-23f - 1.0f;
}  // [-1, 1)

// kernels/tree_sum.h's tree, written as its definition.
std::vector<float> add_in_tree_order(std::vector<std::vector<float>> level) {
  while (level.size() > 1) {
    std::vector<std::vector<float>> above;
    for (std::size_t i = 0; i < level.size(); i += 2) {
      if (i + 1 < level.size()) {
        for (std::size_t e = 0; e < level[i].size(); ++e) level[i][e] += level[i + 1][e];
      }
      above.push_back(std::move(level[i]));
    }
    level = std::move(above);
  }
  return std::move(level.front());
}

std::vector<float> through(EncodingId id, const std::vector<float>& values) {
  const Encoding& encoding = encoding_for(id);
  std::vector<std::byte> frame(encoding.bytes(values.size()));
  encoding.encode(values.data(), values.size(), 0, values.size(), frame.data());
  std::vector<float> out(values.size());
  encoding.decode(frame.data(), values.size(), 0, values.size(), out.data());
  return out;
}

}  // namespace

float initial_value(std::uint64_t seed, std::uint64_t element) {
  return unit(Random::mix(seed * 31 + element));
}

float gradient_value(std::uint64_t seed, std::uint32_t rank, std::uint64_t round, std::uint64_t element,
                     float parameter) {
  const std::uint64_t key = ((seed * 1000003 + rank) * 1000003 + round) * 1000003 + element;
  return unit(Random::mix(key)) + 0.125f * parameter;
}

std::uint64_t sample_weight(std::uint64_t seed, std::uint32_t rank, std::uint64_t round) {
  return Random::mix(seed + rank * 7919 + round * 104729) % 6;
}

Reference::Reference(const ReferenceOptions& o) {
  std::vector<float> params(o.elements);
  for (std::uint64_t e = 0; e < o.elements; ++e) params[e] = initial_value(o.seed, e);
  std::vector<std::vector<float>> slots;
  for (int s = 0; s < o.optimizer->slots(); ++s) slots.emplace_back(o.elements, o.optimizer->initial_state(s));
  master_.push_back(params);
  visible_.push_back(through(o.pull, params));
  steps_.push_back(0);
  for (std::uint64_t round = 1; round <= o.rounds; ++round) {
    std::vector<std::vector<float>> node_sums;
    std::uint64_t weight = 0;
    for (std::uint32_t node = 0; node < o.nodes; ++node) {
      std::vector<std::vector<float>> ranks;
      for (std::uint32_t local = 0; local < o.ranks_per_node; ++local) {
        const std::uint32_t rank = node * o.ranks_per_node + local;
        weight += sample_weight(o.seed, rank, round);
        std::vector<float>& gradient = ranks.emplace_back(o.elements);
        for (std::uint64_t e = 0; e < o.elements; ++e) {
          gradient[e] = gradient_value(o.seed, rank, round, e, visible_.back()[e]);
        }
      }
      node_sums.push_back(through(o.push, add_in_tree_order(std::move(ranks))));
    }
    if (o.reverse_nodes) std::ranges::reverse(node_sums);
    std::vector<float> sum = add_in_tree_order(std::move(node_sums));
    std::uint64_t step = steps_.back();
    if (weight != 0) {
      ++step;
      const float scale = static_cast<float>(1.0 / static_cast<double>(weight));
      for (float& value : sum) value *= scale;
      kernels::BlockArgs block;
      block.count = o.elements;
      block.grad = sum.data();
      block.param_in = block.param_out = params.data();
      for (std::size_t s = 0; s < slots.size(); ++s) block.state_in[s] = block.state_out[s] = slots[s].data();
      o.optimizer->step(o.optimizer->scalars(step, scheduled_lr(o.schedule, o.lr, step)), block);
    }
    master_.push_back(params);
    visible_.push_back(through(o.pull, params));
    steps_.push_back(step);
  }
}

}  // namespace tributary::sim
