// LAMB, from the parts of tensors to the step, against the formula in double.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "common/fused_step.h"
#include "common/layer_steps.h"

namespace tributary {
namespace {

const std::vector<TensorSpec> kTensors = {{"a", {700}}, {"b", {3, 11}}, {"c", {5000}}, {"zero", {40}}, {"d", {1}}};
constexpr double kLr = 0.02;
const kernels::OptimizerOptions kOptions{.weight_decay = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6};

Layout layout_of(std::uint64_t chunk_elements) {
  const ShardSlots one{};
  return *Layout::make(kTensors, chunk_elements, {&one, 1});
}

// Gradient of a step, in the flat space; 0 where there is no tensor, and in "zero".
std::vector<float> gradient(const Layout& layout, unsigned step) {
  std::mt19937 random(step);
  std::normal_distribution<float> normal;
  std::vector<float> flat(layout.flat_elements());
  for (std::size_t t = 0; t < kTensors.size(); ++t) {
    for (std::uint64_t i = 0; i < kTensors[t].elements(); ++i) {
      const float value = normal(random);
      if (kTensors[t].name != "zero") flat[layout.tensor_offset(t) + i] = value * static_cast<float>(t + 1);
    }
  }
  return flat;
}

std::vector<float> initial(const Layout& layout) {
  std::vector<float> params = gradient(layout, 1000);
  for (float& value : params) value *= 0.25f;
  return params;
}

// Servers' way: norms of every chunk's parts, ratios, then the fused step of every chunk.
struct Training {
  Layout layout;
  std::unique_ptr<kernels::Optimizer> lamb = kernels::make_optimizer("lamb", kOptions);
  std::vector<float> params, m, v, ratios;

  explicit Training(std::uint64_t chunk_elements) : layout(layout_of(chunk_elements)) {
    params = initial(layout);
    m.assign(params.size(), 0.0f);
    v.assign(params.size(), 0.0f);
  }

  void step(unsigned t, float scale) {
    const std::vector<float> sum = gradient(layout, t);
    const kernels::StepScalars scalars = lamb->scalars(t, kLr);
    std::vector<TensorNorms> norms;
    for (std::uint32_t c = static_cast<std::uint32_t>(layout.chunks()); c-- > 0;) {  // in any order
      const ChunkRange chunk = layout.chunk(ChunkIndex(c));
      const std::vector<LayerPart> parts = layer_parts(layout, ChunkIndex(c));
      LayerArgs args{.chunk = ChunkIndex(c),
                     .elements = chunk.elements,
                     .parts = parts,
                     .sum = sum.data() + chunk.begin,
                     .scale = scale,
                     .params = params.data() + chunk.begin};
      args.state[0] = m.data() + chunk.begin;
      args.state[1] = v.data() + chunk.begin;
      add_layer_norms(*lamb, scalars, args, norms);
    }
    ratios = trust_ratios(kTensors.size(), norms);
    for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
      const ChunkRange chunk = layout.chunk(ChunkIndex(c));
      const std::vector<LayerPart> parts = layer_parts(layout, ChunkIndex(c));
      const PushFrame frame{reinterpret_cast<const std::byte*>(sum.data() + chunk.begin)};
      FusedArgs args;
      args.elements = chunk.elements;
      args.frames = {&frame, 1};
      args.push = &encoding_for(EncodingId::kFp32);
      args.scale = scale;
      args.parts = parts;
      args.ratios = ratios;
      args.param_in = args.param_out = params.data() + chunk.begin;
      args.state_in[0] = args.state_out[0] = m.data() + chunk.begin;
      args.state_in[1] = args.state_out[1] = v.data() + chunk.begin;
      fused_step(*lamb, scalars, args);
    }
  }
};

// The paper's algorithm 2, tensor by tensor, in double.
struct Reference {
  std::vector<std::vector<double>> params, m, v;
  std::vector<double> ratios = std::vector<double>(kTensors.size());

  explicit Reference(const Layout& layout) {
    const std::vector<float> flat = initial(layout);
    for (std::size_t t = 0; t < kTensors.size(); ++t) {
      const float* begin = flat.data() + layout.tensor_offset(t);
      params.emplace_back(begin, begin + kTensors[t].elements());
      m.emplace_back(kTensors[t].elements(), 0.0);
      v.emplace_back(kTensors[t].elements(), 0.0);
    }
  }

  void step(const Layout& layout, unsigned t, double scale) {
    const std::vector<float> flat = gradient(layout, t);
    for (std::size_t k = 0; k < kTensors.size(); ++k) {
      std::vector<double> update(params[k].size());
      double of_params = 0.0, of_update = 0.0;
      for (std::size_t i = 0; i < update.size(); ++i) {
        const double g = flat[layout.tensor_offset(k) + i] * scale;
        m[k][i] = kOptions.beta1 * m[k][i] + (1.0 - kOptions.beta1) * g;
        v[k][i] = kOptions.beta2 * v[k][i] + (1.0 - kOptions.beta2) * g * g;
        const double m_hat = m[k][i] / (1.0 - std::pow(kOptions.beta1, t));
        const double v_hat = v[k][i] / (1.0 - std::pow(kOptions.beta2, t));
        update[i] = m_hat / (std::sqrt(v_hat) + kOptions.eps) + kOptions.weight_decay * params[k][i];
        of_params += params[k][i] * params[k][i];
        of_update += update[i] * update[i];
      }
      ratios[k] = of_params > 0.0 && of_update > 0.0 ? std::sqrt(of_params) / std::sqrt(of_update) : 1.0;
      for (std::size_t i = 0; i < update.size(); ++i) params[k][i] -= kLr * ratios[k] * update[i];
    }
  }
};

TEST_CASE("LAMB follows its paper over many steps, tensor by tensor") {
  Training training(1024);
  Reference reference(training.layout);
  for (unsigned t = 1; t <= 60; ++t) {
    training.step(t, 0.125f);
    reference.step(training.layout, t, 0.125);
    for (std::size_t k = 0; k < kTensors.size(); ++k) {
      CAPTURE(t);
      CAPTURE(kTensors[k].name);
      CHECK(training.ratios[k] == doctest::Approx(reference.ratios[k]).epsilon(1e-5));
      double worst = 0.0;
      for (std::size_t i = 0; i < reference.params[k].size(); ++i) {
        const double ours = training.params[training.layout.tensor_offset(k) + i];
        worst = std::max(worst, std::abs(ours - reference.params[k][i]) / (std::abs(reference.params[k][i]) + 0.05));
      }
      CHECK(worst < 2e-5);
    }
  }
  CHECK(training.ratios[3] == 1.0f);  // a tensor of zeros with no gradient
}

TEST_CASE("LAMB has the same bits however tensors are cut into chunks") {
  Training small(1024), large(8192);
  for (unsigned t = 1; t <= 10; ++t) {
    small.step(t, 1.0f);
    large.step(t, 1.0f);
  }
  CHECK(small.ratios == large.ratios);
  CHECK(std::memcmp(small.params.data(), large.params.data(), small.params.size() * sizeof(float)) == 0);
}

TEST_CASE("a chunk's parts are its tensors, each from where it begins there") {
  const Layout layout = layout_of(1024);
  const std::vector<LayerPart> first = layer_parts(layout, ChunkIndex(0));
  REQUIRE(first.size() == 3);
  CHECK(first[0].begin == 0);
  CHECK(first[1].begin == layout.tensor_offset(1));
  CHECK(first[2].begin == layout.tensor_offset(2));
  const std::vector<LayerPart> second = layer_parts(layout, ChunkIndex(1));
  REQUIRE(second.size() == 1);
  CHECK(second[0].tensor == 2);
  CHECK(second[0].begin == 0);
}

TEST_CASE("a direction is found without changing anything") {
  const auto lamb = kernels::make_optimizer("lamb", kOptions);
  CHECK(lamb->layerwise());
  CHECK_FALSE(kernels::make_optimizer("adamw", kOptions)->layerwise());
  const std::vector<float> grad = {1.0f, -2.0f, 0.0f}, params = {1.0f, 1.0f, 1.0f}, zero(3, 0.0f);
  kernels::BlockArgs block;
  block.count = 3;
  block.grad = grad.data();
  block.param_in = params.data();
  block.state_in[0] = block.state_in[1] = zero.data();
  float direction[3];
  lamb->direction(lamb->scalars(1, kLr), block, direction);
  CHECK(direction[0] == doctest::Approx(1.05).epsilon(1e-5));
  CHECK(direction[1] == doctest::Approx(-0.95).epsilon(1e-5));
  CHECK(direction[2] == doctest::Approx(0.05).epsilon(1e-5));
  CHECK(zero[0] == 0.0f);
}

}  // namespace
}  // namespace tributary
