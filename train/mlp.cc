#include "train/mlp.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/assert.h"
#include "train/product.h"

namespace tributary::train {

namespace {

// out[r, c] += bias[c], and ReLU unless it is the last layer.
void add_bias(float* out, std::uint32_t rows, std::uint32_t columns, const float* bias, bool relu) {
  for (std::uint32_t r = 0; r < rows; ++r, out += columns) {
    if (relu) {
      for (std::uint32_t c = 0; c < columns; ++c) out[c] = std::max(out[c] + bias[c], 0.0f);
    } else {
      for (std::uint32_t c = 0; c < columns; ++c) out[c] += bias[c];
    }
  }
}

// gradient[c] (+)= sum over rows of delta[r, c], rows in ascending order.
void sum_rows(const float* delta, std::uint32_t rows, std::uint32_t columns, float* gradient, bool accumulate) {
  if (!accumulate) std::fill_n(gradient, columns, 0.0f);
  for (std::uint32_t r = 0; r < rows; ++r, delta += columns) {
    for (std::uint32_t c = 0; c < columns; ++c) gradient[c] += delta[c];
  }
}

}  // namespace

Result<Mlp> Mlp::make(std::vector<std::uint32_t> sizes, std::uint32_t max_batch) {
  Result<MlpShape> shape = MlpShape::make(std::move(sizes), max_batch);
  if (!shape) return tl::unexpected(shape.error());
  return Mlp(std::move(*shape));
}

Mlp::Mlp(MlpShape shape) : MlpShape(std::move(shape)) {
  for (std::size_t l = 0; l < layers(); ++l) {
    outputs_.emplace_back(std::size_t{max_batch()} * sizes()[l + 1]);
    deltas_.emplace_back(std::size_t{max_batch()} * sizes()[l + 1]);
  }
}

bool Mlp::forward(const float* inputs, std::uint32_t batch, std::span<const float* const> parameters,
                  const NeedTensor& need) {
  TRIB_ASSERT(batch >= 1 && batch <= max_batch() && parameters.size() == tensors().size());
  inputs_ = inputs;
  batch_ = batch;
  const float* in = inputs;
  for (std::size_t l = 0; l < layers(); ++l) {
    if (need && (!need(2 * l) || !need(2 * l + 1))) return false;
    const std::size_t fan_in = sizes()[l], fan_out = sizes()[l + 1];
    float* out = outputs_[l].data();
    multiply({in, fan_in, 1}, {parameters[2 * l], 1, fan_in}, {batch, fan_in, fan_out}, out, false);
    add_bias(out, batch, sizes()[l + 1], parameters[2 * l + 1], l + 1 < layers());
    in = out;
  }
  return true;
}

BatchStats Mlp::loss(std::span<const std::uint8_t> labels, float scale) {
  TRIB_ASSERT(labels.size() == batch_);
  const std::uint32_t classes = sizes().back();
  BatchStats stats;
  stats.samples = batch_;
  const float* logits = outputs_.back().data();
  float* delta = deltas_.back().data();
  for (std::uint32_t r = 0; r < batch_; ++r, logits += classes, delta += classes) {
    const std::uint8_t label = labels[r];
    TRIB_ASSERT(label < classes);
    const float* top = std::max_element(logits, logits + classes);
    float sum = 0.0f;
    for (std::uint32_t c = 0; c < classes; ++c) {
      delta[c] = exp_not_positive(logits[c] - *top);
      sum += delta[c];
    }
    for (std::uint32_t c = 0; c < classes; ++c) delta[c] /= sum;
    delta[label] -= 1.0f;
    for (std::uint32_t c = 0; c < classes; ++c) delta[c] *= scale;
    stats.loss_sum +=
        std::log(static_cast<double>(sum)) - (static_cast<double>(logits[label]) - static_cast<double>(*top));
    stats.correct += top - logits == label ? 1 : 0;
  }
  return stats;
}

void Mlp::backward(std::span<const float* const> parameters, std::span<float* const> gradients, bool accumulate,
                   const TensorReady& ready) {
  TRIB_ASSERT(parameters.size() == tensors().size() && gradients.size() == tensors().size());
  for (std::size_t l = layers(); l-- > 0;) {
    const std::size_t fan_in = sizes()[l], fan_out = sizes()[l + 1];
    const float* delta = deltas_[l].data();
    const float* in = l == 0 ? inputs_ : outputs_[l - 1].data();
    if (l > 0) {
      float* below = deltas_[l - 1].data();
      multiply({delta, fan_out, 1}, {parameters[2 * l], fan_in, 1}, {batch_, fan_out, fan_in}, below, false);
      const std::size_t size = std::size_t{batch_} * sizes()[l];
      for (std::size_t i = 0; i < size; ++i) below[i] = in[i] > 0.0f ? below[i] : 0.0f;
    }
    multiply({delta, 1, fan_out}, {in, fan_in, 1}, {fan_out, batch_, fan_in}, gradients[2 * l], accumulate);
    if (ready) ready(2 * l);
    sum_rows(delta, batch_, sizes()[l + 1], gradients[2 * l + 1], accumulate);
    if (ready) ready(2 * l + 1);
  }
}

}  // namespace tributary::train
