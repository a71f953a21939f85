#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/stepping_optimizers.h"
#include "tests/unit/train/synthetic_images.h"
#include "train/finite.h"
#include "train/mlp.h"
#include "train/rank_compute.h"
#include "train/standalone.h"

namespace tributary::train::standalone_test {
namespace {

StandaloneOptions small_job() {
  StandaloneOptions options;
  options.job.name = "small";
  options.job.optimizer = default_optimizer("sgd");
  options.job.optimizer.lr = 0.1;
  options.job.optimizer["momentum"] = 0.9;
  options.job.train.hidden = {24};
  options.job.train.global_batch = 32;
  options.job.train.epochs = 2;
  options.ranks = 4;
  return options;
}

RunSummary train(const StandaloneOptions& options, const ImageSet& training, const ImageSet* test = nullptr) {
  return required(train_standalone(options, training, test, nullptr));
}

const ImageSet& training_set() {
  static const ImageSet kSet = synthetic(500, 1);  // its last batch has 20 samples
  return kSet;
}

TEST_CASE("The same job ends in the same digest, another seed does not") {
  const RunSummary first = train(small_job(), training_set());
  CHECK(first.digest.size() == 32);
  CHECK(first.digest == train(small_job(), training_set()).digest);
  StandaloneOptions other = small_job();
  other.job.train.seed = 2;
  CHECK(first.digest != train(other, training_set()).digest);
}

TEST_CASE("How ranks are grouped on nodes does not change a bit while pushes are fp32") {
  for (const char* optimizer : {"sgd", "adamw"}) {
    CAPTURE(optimizer);
    StandaloneOptions options = small_job();
    options.job.optimizer = {kernels::options_of(optimizer, {{"lr", 0.01}, {"momentum", 0.9}}), optimizer};
    const std::string digest = train(options, training_set()).digest;
    for (const std::uint32_t nodes : {2u, 4u}) {
      options.nodes = nodes;
      CHECK(train(options, training_set()).digest == digest);
    }
  }
}

TEST_CASE("Chunk size does not change a bit") {
  StandaloneOptions options = small_job();
  const std::string digest = train(options, training_set()).digest;
  options.job.chunk_bytes = 4096;
  CHECK(train(options, training_set()).digest == digest);
}

TEST_CASE("Narrow pushes are rounded once per node, narrow pulls are what ranks see") {
  StandaloneOptions options = small_job();
  options.job.train.max_rounds = 3;
  const std::string exact = train(options, training_set()).digest;
  options.job.push = EncodingId::kBf16;
  const std::string one_node = train(options, training_set()).digest;
  options.nodes = 4;
  CHECK(one_node != exact);
  CHECK(train(options, training_set()).digest != one_node);
  options = small_job();
  options.job.train.max_rounds = 3;
  options.job.pull = EncodingId::kFp16;
  CHECK(train(options, training_set()).digest != exact);
}

TEST_CASE("Training learns, with every optimizer, encoding and accumulation") {
  const ImageSet test = synthetic(400, 2);
  const auto accuracy = [&](const StandaloneOptions& options) {
    const RunSummary summary = train(options, training_set(), &test);
    REQUIRE(summary.test.has_value());
    CHECK(summary.test->samples == 400);
    return summary.test->accuracy();
  };
  const std::map<std::string, double> rates = {
      {"sgd", 0.1}, {"adam", 0.01}, {"adamw", 0.01}, {"adagrad", 0.05}, {"lion", 0.003}};
  for (const std::string& name : testing::stepping_optimizers()) {
    CAPTURE(name);
    const double lr = rates.at(name);
    StandaloneOptions options = small_job();
    options.job.optimizer = {kernels::options_of(name, {{"lr", lr}, {"momentum", 0.9}}), name};
    options.job.train.epochs = 6;
    CHECK(accuracy(options) > 0.95);
  }
  StandaloneOptions options = small_job();
  options.job.train.epochs = 6;
  options.job.train.accumulation = 4;
  options.job.push = options.job.pull = EncodingId::kBf16;
  CHECK(accuracy(options) > 0.95);
}

TEST_CASE("A summary counts rounds, samples and the last epoch") {
  const RunSummary summary = train(small_job(), training_set());
  CHECK(summary.rounds == 32);
  CHECK(summary.last_round == 32);
  CHECK(summary.rounds_here == 32);
  CHECK(summary.samples_here == 1000);
  CHECK(summary.train.samples == 500);
  CHECK_FALSE(summary.test.has_value());
  StandaloneOptions options = small_job();
  options.job.train.max_rounds = 5;
  CHECK(train(options, training_set()).rounds == 5);
  const auto json = nlohmann::json::parse(to_json(summary));
  CHECK(json.at("digest") == summary.digest);
  CHECK(json.at("rounds") == 32);
  CHECK(json.at("test_accuracy").is_null());
  CHECK(json.at("train_samples") == 500);
  CHECK(summary.computes_with == "tributary-train");
  CHECK(json.at("computes_with") == summary.computes_with);
  CHECK(to_text(summary).ends_with("  digest       " + summary.digest + ", computed with " + summary.computes_with +
                                   "\n"));
  CHECK(json.at("step_split").at("compute_ms") > 0.0);
}

TEST_CASE("A learning rate that is too large ends in words, not in NaN alone") {
  StandaloneOptions options = small_job();
  CHECK(train(options, training_set()).not_finite.empty());
  options.job.optimizer.lr = 1e30;
  CHECK(train(options, training_set()).not_finite.find("the loss of round ") == 0);
}

TEST_CASE("What is not finite is named: the round, or the tensor and how many of its values") {
  CHECK(not_finite(Round(7), 0.5).empty());
  CHECK(not_finite(Round(7), std::nan("")) == "the loss of round 7 is nan");
  CHECK(not_finite(Round(8), std::numeric_limits<double>::infinity()) == "the loss of round 8 is inf");
  std::vector<float> first(100), second(20);
  const std::vector<TensorSpec> tensors = {{"w", {100}}, {"b", {20}}};
  CHECK(not_finite(tensors, std::vector<const float*>{first.data(), second.data()}).empty());
  second[3] = second[19] = std::nanf("");
  CHECK(not_finite(tensors, std::vector<const float*>{first.data(), second.data()}) ==
        "2 of 20 values of tensor 'b' are not finite");
}

TEST_CASE("Gradient accumulation sums the same gradient") {
  JobConfig job = small_job().job;
  std::vector<std::vector<std::vector<float>>> gradients;
  for (const std::uint32_t accumulation : {1u, 4u}) {
    job.train.accumulation = accumulation;
    auto compute = required(RankCompute::make(job, training_set(), 2));
    std::vector<std::vector<float>> parameters, sums;
    std::vector<const float*> parameter_pointers;
    std::vector<float*> sum_pointers;
    const auto& tensors = compute.shape().tensors();
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      parameters.emplace_back(tensors[t].elements());
      sums.emplace_back(tensors[t].elements());
      compute.shape().initialise(1, t, parameters.back());
      parameter_pointers.push_back(parameters.back().data());
      sum_pointers.push_back(sums.back().data());
    }
    std::vector<std::size_t> ready;
    compute.bind({.parameters = parameter_pointers, .gradients = sum_pointers});
    const auto stats =
        compute.gradient(Round(3), Rank(1), nullptr, [&](std::size_t t, std::uint64_t) { ready.push_back(t); });
    REQUIRE(stats);
    CHECK(stats->samples == 16);
    CHECK(ready == std::vector<std::size_t>{2, 3, 0, 1});
    gradients.push_back(sums);
  }
  for (std::size_t t = 0; t < gradients[0].size(); ++t) {
    for (std::size_t i = 0; i < gradients[0][t].size(); ++i) {
      CHECK(std::abs(gradients[0][t][i] - gradients[1][t][i]) <= 1e-5f * (1.0f + std::abs(gradients[0][t][i])));
    }
  }
}

TEST_CASE("A rank's gradient is bit for bit that of the network on its gathered images") {
  auto compute = required(RankCompute::make(small_job().job, training_set(), 2));
  auto mlp = required(Mlp::make(compute.shape().sizes(), 64));
  std::vector<std::vector<float>> parameters, found, expected;
  std::vector<const float*> parameter_pointers;
  std::vector<float*> found_pointers, expected_pointers;
  for (std::size_t t = 0; t < mlp.tensors().size(); ++t) {
    const std::size_t elements = mlp.tensors()[t].elements();
    mlp.initialise(5, t, parameters.emplace_back(elements));
    parameter_pointers.push_back(parameters.back().data());
    found_pointers.push_back(found.emplace_back(elements).data());
    expected_pointers.push_back(expected.emplace_back(elements).data());
  }
  compute.bind({.parameters = parameter_pointers, .gradients = found_pointers});
  const auto stats = required(compute.gradient(Round(2), Rank(1), nullptr, nullptr));
  Sampler sampler = compute.sampler();
  const auto samples = sampler.share(Round(2), Rank(1));
  std::vector<float> images(samples.size() * training_set().image_size());
  std::vector<std::uint8_t> labels(samples.size());
  training_set().gather(samples, images.data(), labels.data());
  mlp.forward(images.data(), static_cast<std::uint32_t>(samples.size()), parameter_pointers, nullptr);
  CHECK(mlp.loss(labels).loss_sum == stats.loss_sum);
  mlp.backward(parameter_pointers, expected_pointers, false, nullptr);
  CHECK(found == expected);
}

TEST_CASE("A rank without samples contributes zeros, after it waited for every tensor") {
  ImageSet training = synthetic(33, 4);
  auto compute = required(RankCompute::make(small_job().job, training, 4));
  REQUIRE(compute.sampler().share_size(Round(2), Rank(0)) == 0);
  std::vector<std::vector<float>> parameters, sums;
  std::vector<const float*> parameter_pointers;
  std::vector<float*> sum_pointers;
  for (const TensorSpec& tensor : compute.shape().tensors()) {
    parameters.emplace_back(tensor.elements(), 0.1f);
    sums.emplace_back(tensor.elements(), 5.0f);
    parameter_pointers.push_back(parameters.back().data());
    sum_pointers.push_back(sums.back().data());
  }
  std::size_t needed = 0, ready = 0;
  compute.bind({.parameters = parameter_pointers, .gradients = sum_pointers});
  const auto stats = required(compute.gradient(
      Round(2), Rank(0),
      [&](std::size_t) {
        ++needed;
        for (const auto& sum : sums) CHECK(sum[0] == 5.0f);
        return true;
      },
      [&](std::size_t, std::uint64_t weight) {
        CHECK(needed == 4);
        CHECK(weight == 0);
        ++ready;
      }));
  CHECK(stats.samples == 0);
  CHECK(ready == 4);
  for (const auto& sum : sums) {
    for (const float value : sum) CHECK(value == 0.0f);
  }
  const auto abandoned = compute.gradient(
      Round(2), Rank(0), [](std::size_t) { return false; }, nullptr);
  CHECK_FALSE(abandoned.has_value());
}

TEST_CASE("Impossible topologies and optimizers are refused with the value") {
  const auto refused = [](const StandaloneOptions& options) {
    const auto summary = failure_of(train_standalone(options, training_set(), nullptr, nullptr));
    return summary.message;
  };
  StandaloneOptions options = small_job();
  options.nodes = 3;
  CHECK(testing::contains(refused(options), "--nodes 3 does not divide --ranks 4"));
  options = small_job();
  options.ranks = 0;
  CHECK(testing::contains(refused(options), "--ranks 0"));
  options.ranks = 1000;
  CHECK(testing::contains(refused(options), "--ranks 1000"));
  options = small_job();
  options.job.optimizer = default_optimizer("sdg");
  CHECK(testing::contains(refused(options), "\"sdg\""));
}

}  // namespace
}  // namespace tributary::train::standalone_test
