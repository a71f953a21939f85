#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "train/counter_rng.h"
#include "train/mlp.h"

namespace tributary::train::mlp_test {
namespace {

using Tensors = std::vector<std::vector<float>>;

struct Network {
  explicit Network(std::vector<std::uint32_t> layer_sizes, std::uint32_t max_batch)
      : sizes(std::move(layer_sizes)), mlp(*Mlp::make(sizes, max_batch)) {
    const CounterRng rng(11, 12, 13);
    for (std::size_t t = 0; t < mlp.tensors().size(); ++t) {
      parameters.emplace_back(mlp.tensors()[t].elements());
      mlp.initialise(3, t, parameters.back());
      if (t % 2 == 1) {  // biases too should matter
        for (std::size_t i = 0; i < parameters[t].size(); ++i) parameters[t][i] = 0.3f * rng.symmetric(100 * t + i);
      }
    }
  }
  std::vector<const float*> pointers() const {
    std::vector<const float*> result;
    for (const auto& tensor : parameters) result.push_back(tensor.data());
    return result;
  }
  Tensors zeros() const {
    Tensors result;
    for (const auto& tensor : parameters) result.emplace_back(tensor.size(), 0.0f);
    return result;
  }

  std::vector<std::uint32_t> sizes;
  Mlp mlp;
  Tensors parameters;
};

std::vector<float*> pointers(Tensors& tensors) {
  std::vector<float*> result;
  for (auto& tensor : tensors) result.push_back(tensor.data());
  return result;
}

struct Batch {
  Batch(std::uint32_t rows, std::uint32_t columns, std::uint32_t classes, std::uint64_t seed) : count(rows) {
    const CounterRng rng(seed, 1, 1);
    for (std::uint32_t i = 0; i < rows * columns; ++i) inputs.push_back(2.0f * rng.symmetric(i));
    std::uint64_t counter = 1'000'000;
    for (std::uint32_t i = 0; i < rows; ++i) labels.push_back(static_cast<std::uint8_t>(rng.below(classes, counter)));
  }
  std::uint32_t count;
  std::vector<float> inputs;
  std::vector<std::uint8_t> labels;
};

// The summed loss in double precision, written without a thought for speed.
double reference_loss(const Network& network, const std::vector<std::vector<double>>& parameters, const Batch& batch) {
  double total = 0.0;
  for (std::uint32_t row = 0; row < batch.count; ++row) {
    std::vector<double> values(batch.inputs.begin() + row * network.sizes[0],
                               batch.inputs.begin() + (row + 1) * network.sizes[0]);
    for (std::size_t l = 0; l + 1 < network.sizes.size(); ++l) {
      std::vector<double> next(network.sizes[l + 1]);
      for (std::size_t o = 0; o < next.size(); ++o) {
        next[o] = parameters[2 * l + 1][o];
        for (std::size_t i = 0; i < values.size(); ++i) next[o] += parameters[2 * l][o * values.size() + i] * values[i];
        if (l + 2 < network.sizes.size()) next[o] = std::max(next[o], 0.0);
      }
      values = next;
    }
    double sum = 0.0;
    for (const double logit : values) sum += std::exp(logit);
    total += std::log(sum) - values[batch.labels[row]];
  }
  return total;
}

BatchStats run(Network& network, const Batch& batch, Tensors& gradients, bool accumulate = false) {
  REQUIRE(network.mlp.forward(batch.inputs.data(), batch.count, network.pointers(), nullptr));
  const BatchStats stats = network.mlp.loss(batch.labels);
  network.mlp.backward(network.pointers(), pointers(gradients), accumulate, nullptr);
  return stats;
}

TEST_CASE("Loss and gradient agree with numerical derivatives in double precision") {
  for (const std::vector<std::uint32_t>& sizes : {std::vector<std::uint32_t>{7, 4}, std::vector<std::uint32_t>{6, 5, 4},
                                                  std::vector<std::uint32_t>{5, 8, 6, 3}}) {
    CAPTURE(sizes.size());
    Network network(sizes, 16);
    const Batch batch(9, sizes.front(), sizes.back(), 77);
    Tensors gradients = network.zeros();
    const BatchStats stats = run(network, batch, gradients);
    std::vector<std::vector<double>> parameters;
    for (const auto& tensor : network.parameters) parameters.emplace_back(tensor.begin(), tensor.end());
    CHECK(stats.loss_sum == doctest::Approx(reference_loss(network, parameters, batch)).epsilon(1e-5));
    CHECK(stats.samples == 9);
    constexpr double kStep = 1e-6;
    for (std::size_t t = 0; t < parameters.size(); ++t) {
      for (std::size_t i = 0; i < parameters[t].size(); ++i) {
        const double value = parameters[t][i];
        parameters[t][i] = value + kStep;
        const double above = reference_loss(network, parameters, batch);
        parameters[t][i] = value - kStep;
        const double below = reference_loss(network, parameters, batch);
        parameters[t][i] = value;
        const double expected = (above - below) / (2 * kStep);
        CAPTURE(t);
        CAPTURE(i);
        CHECK(std::abs(gradients[t][i] - expected) <= 1e-4 * (1.0 + std::abs(expected)));
      }
    }
  }
}

TEST_CASE("The gradient is a sum over samples, so that micro-batches add up to the batch") {
  Network network({6, 9, 4}, 16);
  const Batch whole(12, 6, 4, 5);
  Tensors together = network.zeros();
  const BatchStats whole_stats = run(network, whole, together);
  Tensors parts = network.zeros();
  BatchStats part_stats;
  for (const auto& [begin, end] : {std::pair{0, 5}, std::pair{5, 12}}) {
    Batch part = whole;
    part.count = static_cast<std::uint32_t>(end - begin);
    part.inputs.assign(whole.inputs.begin() + begin * 6, whole.inputs.begin() + end * 6);
    part.labels.assign(whole.labels.begin() + begin, whole.labels.begin() + end);
    part_stats += run(network, part, parts, begin != 0);
  }
  CHECK(part_stats.samples == whole_stats.samples);
  CHECK(part_stats.correct == whole_stats.correct);
  CHECK(part_stats.loss_sum == doctest::Approx(whole_stats.loss_sum));
  for (std::size_t t = 0; t < parts.size(); ++t) {
    for (std::size_t i = 0; i < parts[t].size(); ++i) {
      CHECK(std::abs(parts[t][i] - together[t][i]) <= 1e-5f * (1.0f + std::abs(together[t][i])));
    }
  }
}

TEST_CASE("Without accumulation the gradient's old contents do not matter") {
  Network network({6, 9, 4}, 16);
  const Batch batch(8, 6, 4, 6);
  Tensors clean = network.zeros();
  run(network, batch, clean);
  Tensors dirty = network.zeros();
  for (auto& tensor : dirty) std::fill(tensor.begin(), tensor.end(), 1e30f);
  run(network, batch, dirty);
  for (std::size_t t = 0; t < clean.size(); ++t) {
    CHECK(std::memcmp(clean[t].data(), dirty[t].data(), clean[t].size() * sizeof(float)) == 0);
  }
}

TEST_CASE("Tensors are needed first layer first and ready last layer first, when nothing reads them any more") {
  Network network({6, 9, 5, 4}, 16);
  const Batch batch(8, 6, 4, 6);
  Tensors expected = network.zeros();
  run(network, batch, expected);

  std::vector<std::size_t> needed, ready;
  CHECK(network.mlp.forward(batch.inputs.data(), batch.count, network.pointers(), [&](std::size_t t) {
    needed.push_back(t);
    return true;
  }));
  CHECK(needed == std::vector<std::size_t>{0, 1, 2, 3, 4, 5});
  network.mlp.loss(batch.labels);
  Tensors gradients = network.zeros();
  network.mlp.backward(network.pointers(), pointers(gradients), false, [&](std::size_t t) {
    ready.push_back(t);
    // Final: as without a callback. Read no more: overwriting the parameters changes no other gradient.
    CHECK(std::memcmp(gradients[t].data(), expected[t].data(), expected[t].size() * sizeof(float)) == 0);
    std::fill(network.parameters[t].begin(), network.parameters[t].end(), 1e30f);
  });
  CHECK(ready == std::vector<std::size_t>{4, 5, 2, 3, 0, 1});
}

TEST_CASE("A forward pass that is told to stop reads nothing further") {
  Network network({6, 9, 4}, 16);
  const Batch batch(8, 6, 4, 6);
  int asked = 0;
  CHECK_FALSE(network.mlp.forward(batch.inputs.data(), batch.count, network.pointers(), [&](std::size_t t) {
    ++asked;
    return t < 2;
  }));
  CHECK(asked == 3);
}

TEST_CASE("Initial values are He-uniform, reproducible, and differ between seeds and tensors") {
  Network network({24, 30, 30}, 4);
  std::vector<float> first(24 * 30), again(24 * 30), other(24 * 30), second(30 * 30), bias(30, 5.0f);
  network.mlp.initialise(1, 0, first);
  network.mlp.initialise(1, 0, again);
  network.mlp.initialise(2, 0, other);
  network.mlp.initialise(1, 2, second);
  network.mlp.initialise(1, 1, bias);
  CHECK(first == again);
  CHECK(first != other);
  CHECK_FALSE(std::equal(first.begin(), first.end(), second.begin()));
  CHECK(std::all_of(bias.begin(), bias.end(), [](float value) { return value == 0.0f; }));
  const float bound = std::sqrt(6.0f / 24.0f);
  const float largest = *std::max_element(first.begin(), first.end());
  CHECK(largest <= bound);
  CHECK(largest > 0.95f * bound);
  CHECK(*std::min_element(first.begin(), first.end()) >= -bound);
}

TEST_CASE("Huge logits give a finite loss") {
  Network network({2, 3}, 4);
  const std::vector<float> inputs = {1e4f, -1e4f};
  REQUIRE(network.mlp.forward(inputs.data(), 1, network.pointers(), nullptr));
  const std::uint8_t label = 1;
  CHECK(std::isfinite(network.mlp.loss({&label, 1}).loss_sum));
}

TEST_CASE("Impossible sizes are refused with the value") {
  const auto refused = [](std::vector<std::uint32_t> sizes, std::uint32_t batch) {
    const auto mlp = failure_of(Mlp::make(std::move(sizes), batch));
    CHECK(mlp.code == ErrorCode::kConfig);
    return mlp.message;
  };
  CHECK(testing::contains(refused({4, 0, 2}, 1), "layer 1 has 0 units"));
  CHECK(testing::contains(refused({4, 8, 70000, 2}, 1), "layer 2 has 70000 units"));
  CHECK(testing::contains(refused({4, 2}, 100'000), "100000 samples"));
  CHECK(testing::contains(refused(std::vector<std::uint32_t>(66, 4), 1), "64 layers"));
}

}  // namespace
}  // namespace tributary::train::mlp_test
