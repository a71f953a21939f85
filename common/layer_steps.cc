#include "common/layer_steps.h"

#include <algorithm>
#include <cmath>

#include "common/gate_rules.h"
#include "kernels/facts.h"

namespace tributary {

std::vector<LayerPart> layer_parts(const Layout& layout, ChunkIndex index) {
  const ChunkRange chunk = layout.chunk(index);
  std::vector<LayerPart> parts;
  const auto [first, last] = layout.tensors_of(index);
  for (std::size_t t = first; t < last; ++t) {
    const std::uint64_t offset = std::max<std::uint64_t>(layout.tensor_offset(t), chunk.begin);
    parts.push_back({static_cast<std::uint32_t>(t), static_cast<std::size_t>(offset - chunk.begin)});
  }
  return parts;
}

void add_layer_norms(const kernels::Optimizer& optimizer, const kernels::StepScalars& scalars, const LayerArgs& args,
                     std::vector<TensorNorms>& norms) {
  alignas(64) float update[kGateBlock];
  for (std::size_t p = 0; p < args.parts.size(); ++p) {
    const std::size_t end = p + 1 < args.parts.size() ? args.parts[p + 1].begin : args.elements;
    std::size_t at = args.parts[p].begin;
    TreeTotal of_params(at / kGateBlock), of_update(at / kGateBlock);
    while (at < end) {
      const std::size_t count = std::min(end, (at / kGateBlock + 1) * kGateBlock) - at;
      kernels::BlockArgs block;
      block.count = count;
      block.grad = args.sum + at;
      block.grad_scale = args.scale;
      block.param_in = args.params + at;
      for (int slot = 0; slot < optimizer.slots(); ++slot) block.state_in[slot] = args.state[slot] + at;
      optimizer.direction(scalars, block, update);
      of_params.add(kernels::gradient_facts(args.params + at, count).sum_squares);
      of_update.add(kernels::gradient_facts(update, count).sum_squares);
      at += count;
    }
    norms.push_back({args.chunk, args.parts[p].tensor, of_params.total(), of_update.total()});
  }
}

std::vector<float> trust_ratios(std::size_t tensors, std::vector<TensorNorms> norms) {
  std::vector<float> ratios(tensors, 1.0f);
  std::ranges::sort(norms, [](const TensorNorms& a, const TensorNorms& b) {
    return a.tensor != b.tensor ? a.tensor < b.tensor : a.chunk < b.chunk;
  });
  for (std::size_t i = 0; i < norms.size();) {
    const std::uint32_t tensor = norms[i].tensor;
    TreeTotal of_params(norms[i].chunk.value), of_update(norms[i].chunk.value);
    for (; i < norms.size() && norms[i].tensor == tensor; ++i) {
      of_params.add(norms[i].params);
      of_update.add(norms[i].update);
    }
    const double params = std::sqrt(of_params.total()), update = std::sqrt(of_update.total());
    const bool usable = params > 0.0 && update > 0.0 && std::isfinite(params) && std::isfinite(update);
    if (usable) ratios[tensor] = static_cast<float>(params / update);
  }
  return ratios;
}

}  // namespace tributary
