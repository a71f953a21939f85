#include "tests/sim/judge/reference.h"

#include <algorithm>

#include "common/config/gate_rules.h"
#include "common/config/schedule.h"
#include "tests/sim/random.h"

namespace tributary::sim {
namespace {

float unit(std::uint64_t bits) {
  return static_cast<float>(bits >> 40) * 0x1.0p-23f - 1.0f;
}  // [-1, 1)

// All chunks of a flat array, one after another.
template <class Function>
std::vector<float> by_chunk(const Layout& layout, Function&& function) {
  std::vector<float> flat(layout.flat_elements());
  for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
    const ChunkRange range = layout.chunk(ChunkIndex(c));
    std::ranges::copy(function(ChunkIndex(c), range), flat.begin() + static_cast<std::ptrdiff_t>(range.begin));
  }
  return flat;
}

// A round's sum of each chunk: over the ranks that hold it on each node, then over the nodes that have it.
struct RoundSum {
  std::vector<float> values;
  std::uint64_t weight = 0;  // samples
};
RoundSum sum_of_round(const ReferenceOptions& o, std::uint64_t round, const std::vector<float>& seen, float scale,
                      std::vector<std::vector<float>>& residuals) {
  const auto push = make_encoding(o.push);
  RoundSum sum;
  sum.values = by_chunk(*o.layout, [&](ChunkIndex chunk, ChunkRange range) {
    const TensorSpec& tensor = o.layout->tensors()[o.layout->tensors_of(chunk).first];
    std::vector<std::vector<float>> nodes;
    std::uint64_t weight = 0;
    for (std::uint32_t node = 0; node < o.nodes; ++node) {
      std::vector<std::vector<float>> ranks;
      std::uint64_t own = 0;
      for (std::uint32_t rank = node * o.ranks_per_node; rank < (node + 1) * o.ranks_per_node; ++rank) {
        if (!tensor.held_at(o.model_ranks.by_rank(), rank)) continue;
        own += sample_weight(o.seed, replica_of(o.model_ranks, rank), round);
        std::vector<float>& gradient = ranks.emplace_back(range.elements);
        for (std::uint64_t e = 0; e < range.elements; ++e) {
          gradient[e] = gradient_value(o.seed, rank, round, range.begin + e, seen[range.begin + e]) * scale;
        }
      }
      if (ranks.empty()) continue;
      weight += own;
      nodes.push_back(pushed_chunk(*push, add_in_tree_order(std::move(ranks)), own,
                                   std::span(residuals[node]).subspan(range.begin, range.elements)));
    }
    sum.weight = weight / o.model_ranks.copies(tensor);
    return add_in_tree_order(std::move(nodes));
  });
  return sum;
}

// `seen` is what they saw before it.
std::vector<float> pulled(EncodingSpec spec, const Layout& layout, std::span<const float> params,
                          std::span<const float> seen) {
  const auto encoding = make_encoding(spec);
  return by_chunk(layout, [&](ChunkIndex, ChunkRange range) {
    const std::span<const float> before = seen.subspan(range.begin, range.elements);
    return pulled_chunk(*encoding, params.subspan(range.begin, range.elements), {before.begin(), before.end()});
  });
}

}  // namespace

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

std::vector<float> pushed_chunk(const Encoding& push, std::span<const float> sum, std::uint64_t weight,
                                std::span<float> residual) {
  std::vector<std::byte> frame(push.bytes(sum.size()));
  std::vector<std::uint32_t> scratch(push.scratch_words(sum.size()));
  float* left = push.keeps_residual() ? residual.data() : nullptr;
  std::vector<float> scaled(sum.begin(), sum.end());
  for (float& value : scaled) value *= push.push_scale(weight);
  push.encode(scaled.data(), sum.size(), 0, sum.size(), left, frame.data());
  push.finish(sum.size(), left, frame.data(), scratch);
  std::vector<float> out(sum.size());
  decode_push(push, frame.data(), weight, sum.size(), 0, sum.size(), out.data());
  return out;
}

std::vector<float> pulled_chunk(const Encoding& pull, std::span<const float> params, std::vector<float> seen) {
  std::vector<std::byte> frame(pull.bytes(params.size()));
  std::vector<float> estimate = seen;
  pull.encode_update(params.data(), params.size(), 0, params.size(), estimate.data(), frame.data());
  pull.apply(frame.data(), params.size(), seen.data());
  return seen;
}

float initial_value(std::uint64_t seed, std::uint64_t element) {
  return unit(Random::mix(seed * 31 + element));
}

float gradient_value(std::uint64_t seed, std::uint32_t rank, std::uint64_t round, std::uint64_t element,
                     float parameter) {
  const std::uint64_t key = ((seed * 1000003 + rank) * 1000003 + round) * 1000003 + element;
  return unit(Random::mix(key)) + 0.125f * parameter;
}

std::uint32_t replica_of(const ModelRanks& model_ranks, std::uint32_t rank) {
  if (model_ranks.whole()) return rank;
  const std::vector<std::uint32_t>& all = model_ranks.by_rank();
  return static_cast<std::uint32_t>(std::count(all.begin(), all.begin() + rank, all[rank]));
}

std::uint64_t sample_weight(std::uint64_t seed, std::uint32_t rank, std::uint64_t round) {
  return Random::mix(seed + rank * 7919 + round * 104729) % 6;
}

StepSettings settings_of(std::uint64_t seed, std::uint64_t round, std::uint32_t group,
                         const kernels::Optimizer& optimizer) {
  const std::uint64_t drawn = Random::mix(seed + round * 7919 + group * 104729);
  StepSettings settings{.lr = 0.005 * static_cast<double>(1 + drawn % 20)};
  if (drawn >> 8 & 1) settings.weight_decay = 0.03125 * static_cast<double>(drawn >> 9 & 3);
  StepSettings moved = settings;
  moved.momentum = 0.5 + 0.0625 * static_cast<double>(drawn >> 11 & 7);
  return (drawn >> 14 & 1) && takes(optimizer, moved) ? moved : settings;
}

void step_elements(const ReferenceOptions& o, std::uint64_t first, std::span<const float> gradient,
                   std::span<float> params, std::vector<std::vector<float>>& slots, const StepNumber& number) {
  const std::size_t tensors = o.layout->tensors().size();
  for (std::size_t t = 0; t < tensors; ++t) {
    const std::uint32_t group = o.layout->tensors()[t].group;
    // With the padding behind it.
    const std::uint64_t next = t + 1 < tensors ? o.layout->tensor_offset(t + 1) : o.layout->flat_elements();
    const std::uint64_t begin = std::max(o.layout->tensor_offset(t), first);
    const std::uint64_t end = std::min(next, first + gradient.size());
    if (begin >= end) continue;
    kernels::BlockArgs block;
    block.count = end - begin;
    block.grad = gradient.data() + (begin - first);
    block.param_in = block.param_out = params.data() + (begin - first);
    for (std::size_t s = 0; s < slots.size(); ++s) {
      block.state_in[s] = block.state_out[s] = slots[s].data() + (begin - first);
    }
    const kernels::Optimizer& optimizer = group == 0 ? *o.optimizer : *o.other_group;
    const StepSettings settings = o.other_group ? settings_of(o.seed, number.round, group, optimizer)
                                                : StepSettings{.lr = scheduled_lr(o.schedule, o.lr, number.position)};
    optimizer.step(optimizer.scalars(number.step, settings.over(optimizer)), block);
  }
}

Reference::Reference(const ReferenceOptions& o) {
  const std::uint64_t elements = o.layout->flat_elements();
  std::vector<float> params(elements);
  for (std::uint64_t e = 0; e < elements; ++e) params[e] = initial_value(o.seed, e);
  std::vector<std::vector<float>> slots;
  for (int s = 0; s < o.optimizer->slots(); ++s) slots.emplace_back(elements, o.optimizer->initial_state(s));
  master_.push_back(params);
  const bool delta = make_encoding(o.pull)->is_delta();
  visible_.push_back(delta ? params : pulled(o.pull, *o.layout, params, params));
  residuals_.emplace_back(o.nodes, std::vector<float>(elements));
  steps_.push_back(0);
  GateDecision gate = o.gate ? first_gate_state(*o.gate) : GateDecision{};
  for (std::uint64_t round = 1; round <= o.rounds; ++round) {
    residuals_.push_back(residuals_.back());
    auto [sum, weight] = sum_of_round(o, round, visible_.back(), gate.loss_scale, residuals_.back());
    std::uint64_t step = steps_.back();
    if (o.gate) {
      std::vector<GateFacts> facts;
      for (std::uint32_t c = 0; c < o.layout->chunks(); ++c) {
        const ChunkRange range = o.layout->chunk(ChunkIndex(c));
        facts.push_back(gate_facts(std::span(sum).subspan(range.begin, range.elements), weight));
      }
      gate = decide_gate(*o.gate, gate, facts);
    }
    const bool applies = o.gate ? gate.applies() : weight != 0;
    if (applies) {
      ++step;
      const float scale = o.gate ? gate_scale(gate, weight) : static_cast<float>(1.0 / static_cast<double>(weight));
      for (float& value : sum) value *= scale;
      step_elements(o, 0, sum, params, slots, {step, round, step});
    }
    master_.push_back(params);
    // A round that is not applied sends no change.
    visible_.push_back(!applies && delta ? visible_.back() : pulled(o.pull, *o.layout, params, visible_.back()));
    steps_.push_back(step);
  }
}

}  // namespace tributary::sim
