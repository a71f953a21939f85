#include "tests/sim/reference.h"

#include <algorithm>

#include "common/gate_rules.h"
#include "common/layer_steps.h"
#include "common/schedule.h"
#include "tests/sim/random.h"

namespace tributary::sim {
namespace {

float unit(std::uint64_t bits) {
  return static_cast<float>(bits >> 40) * 0x1.0p-23f - 1.0f;
}  // [-1, 1)

template <class Function>
void for_each_chunk(const Layout& layout, Function&& function) {
  for (std::uint32_t c = 0; c < layout.chunks(); ++c) function(layout.chunk(ChunkIndex(c)));
}

// What arrives of a node's sum; the residual is updated, if the encoding keeps one.
std::vector<float> pushed(EncodingSpec spec, const Layout& layout, const std::vector<float>& values,
                          std::vector<float>& residual) {
  const auto encoding = make_encoding(spec);
  std::vector<float> out(values.size());
  for_each_chunk(layout, [&](ChunkRange range) {
    std::vector<std::byte> frame(encoding->bytes(range.elements));
    std::vector<std::uint32_t> scratch(encoding->scratch_words(range.elements));
    float* left = encoding->keeps_residual() ? residual.data() + range.begin : nullptr;
    encoding->encode(values.data() + range.begin, range.elements, 0, range.elements, left, frame.data());
    encoding->finish(range.elements, left, frame.data(), scratch);
    encoding->decode(frame.data(), range.elements, 0, range.elements, out.data() + range.begin);
  });
  return out;
}

// What trainers see after an answer with these parameters; `seen` is what they saw before it.
std::vector<float> pulled(EncodingSpec spec, const Layout& layout, const std::vector<float>& params,
                          std::vector<float> seen) {
  const auto encoding = make_encoding(spec);
  for_each_chunk(layout, [&](ChunkRange range) {
    std::vector<std::byte> frame(encoding->bytes(range.elements));
    std::vector<float> estimate(seen.begin() + static_cast<std::ptrdiff_t>(range.begin),
                                seen.begin() + static_cast<std::ptrdiff_t>(range.begin + range.elements));
    encoding->encode_update(params.data() + range.begin, range.elements, 0, range.elements, estimate.data(),
                            frame.data());
    encoding->apply(frame.data(), range.elements, seen.data() + range.begin);
  });
  return seen;
}

// Tensor by tensor: norms first, then the step.
void step_by_layers(const ReferenceOptions& o, const kernels::StepScalars& scalars, const kernels::BlockArgs& all) {
  std::vector<LayerPart> parts;
  for (std::uint32_t t = 0; t < o.layout->tensors().size(); ++t) parts.push_back({t, o.layout->tensor_offset(t)});
  LayerArgs args{
      .chunk = ChunkIndex(0), .elements = all.count, .parts = parts, .sum = all.grad, .params = all.param_in};
  for (int slot = 0; slot < o.optimizer->slots(); ++slot) args.state[slot] = all.state_in[slot];
  std::vector<TensorNorms> norms;
  add_layer_norms(*o.optimizer, scalars, args, norms);
  const std::vector<float> ratios = trust_ratios(parts.size(), norms);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    kernels::BlockArgs block = all;
    const std::size_t begin = parts[p].begin;
    block.count = (p + 1 < parts.size() ? parts[p + 1].begin : all.count) - begin;
    block.grad += begin;
    block.param_in += begin;
    block.param_out += begin;
    for (int slot = 0; slot < o.optimizer->slots(); ++slot) {
      block.state_in[slot] += begin;
      block.state_out[slot] += begin;
    }
    kernels::StepScalars own = scalars;
    own.a[kernels::kLayerStep] *= ratios[p];
    o.optimizer->step(own, block);
  }
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
  const bool delta = make_encoding(o.pull)->is_delta();
  visible_.push_back(delta ? params : pulled(o.pull, *o.layout, params, params));
  residuals_.emplace_back(o.nodes, std::vector<float>(o.elements));
  steps_.push_back(0);
  GateDecision gate = o.gate ? first_gate_state(*o.gate) : GateDecision{};
  for (std::uint64_t round = 1; round <= o.rounds; ++round) {
    std::vector<std::vector<float>> node_sums;
    std::uint64_t weight = 0;
    residuals_.push_back(residuals_.back());
    for (std::uint32_t node = 0; node < o.nodes; ++node) {
      std::vector<std::vector<float>> ranks;
      for (std::uint32_t local = 0; local < o.ranks_per_node; ++local) {
        const std::uint32_t rank = node * o.ranks_per_node + local;
        weight += sample_weight(o.seed, rank, round);
        std::vector<float>& gradient = ranks.emplace_back(o.elements);
        for (std::uint64_t e = 0; e < o.elements; ++e) {
          gradient[e] = gradient_value(o.seed, rank, round, e, visible_.back()[e]) * gate.loss_scale;
        }
      }
      node_sums.push_back(pushed(o.push, *o.layout, add_in_tree_order(std::move(ranks)), residuals_.back()[node]));
    }
    if (o.reverse_nodes) std::ranges::reverse(node_sums);
    std::vector<float> sum = add_in_tree_order(std::move(node_sums));
    std::uint64_t step = steps_.back();
    // As one chunk: the tree is the same.
    if (o.gate) gate = decide_gate(*o.gate, gate, std::vector{gate_facts(sum, weight)});
    const bool applies = o.gate ? gate.applies() : weight != 0;
    if (applies) {
      ++step;
      const float scale = o.gate ? gate_scale(gate, weight) : static_cast<float>(1.0 / static_cast<double>(weight));
      for (float& value : sum) value *= scale;
      kernels::BlockArgs block;
      block.count = o.elements;
      block.grad = sum.data();
      block.param_in = block.param_out = params.data();
      for (std::size_t s = 0; s < slots.size(); ++s) block.state_in[s] = block.state_out[s] = slots[s].data();
      const kernels::StepScalars scalars = o.optimizer->scalars(step, scheduled_lr(o.schedule, o.lr, step));
      if (o.optimizer->layerwise()) {
        step_by_layers(o, scalars, block);
      } else {
        o.optimizer->step(scalars, block);
      }
    }
    master_.push_back(params);
    // A round that is not applied sends no change.
    visible_.push_back(!applies && delta ? visible_.back() : pulled(o.pull, *o.layout, params, visible_.back()));
    steps_.push_back(step);
  }
}

}  // namespace tributary::sim
