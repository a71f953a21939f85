// Work-weighted rounds (sync.deadline_ms): when a rank stops, and its contribution then.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/train/synthetic_images.h"
#include "train/mlp.h"
#include "train/rank_compute.h"
#include "train/standalone.h"

namespace tributary::train::partial_rounds_test {
namespace {

const ImageSet& training_set() {
  static const ImageSet kSet = synthetic(500, 1);
  return kSet;
}

JobConfig job_with(std::uint32_t deadline_ms) {
  JobConfig job;
  job.name = "partial";
  job.sync.deadline_ms = deadline_ms;
  job.train.hidden = {24};
  job.train.global_batch = 32;
  job.train.accumulation = 4;
  job.train.epochs = 2;
  return job;
}

struct Gradient {
  std::vector<std::vector<float>> values;
  std::uint64_t samples = 0;
  std::vector<std::uint64_t> weights;  // as they were told, a tensor each
  std::vector<std::size_t> ready;
};

Gradient gradient_of(RankCompute& compute, Round round, Rank rank) {
  std::vector<std::vector<float>> parameters;
  std::vector<const float*> readable;
  std::vector<float*> writable;
  Gradient out;
  const auto& tensors = compute.shape().tensors();
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    compute.shape().initialise(3, t, parameters.emplace_back(tensors[t].elements()));
    out.values.emplace_back(tensors[t].elements(), 1e30f);  // nobody may count on old contents
    readable.push_back(parameters.back().data());
  }
  for (auto& values : out.values) writable.push_back(values.data());
  compute.bind({.parameters = readable, .gradients = writable});
  const auto stats = required(compute.gradient(round, rank, nullptr, [&](std::size_t tensor, std::uint64_t weight) {
    out.ready.push_back(tensor);
    out.weights.push_back(weight);
  }));
  out.samples = stats.samples;
  compute.unbind();
  return out;
}

RankCompute compute_for(const JobConfig& job) {
  return required(RankCompute::make(job, training_set(), 2));
}

}  // namespace

TEST_CASE("A micro-batch is not begun that would not be done in time, by what the last one took") {
  RoundDeadline deadline(100);
  deadline.begin(1000);
  CHECK(deadline.another(1030));             // 30 + 30
  CHECK(deadline.another(1060));             // 60 + 30
  CHECK_FALSE(deadline.another(1080 + 11));  // 91 + 31
  deadline.begin(2000);
  CHECK(deadline.another(2050));  // just in time
  CHECK_FALSE(deadline.another(2100));
  deadline.begin(3000);
  CHECK_FALSE(deadline.another(3500));  // it was late with the first one
}

TEST_CASE("With time enough a round has the bits that it has without a deadline") {
  RankCompute whole = compute_for(job_with(0)), patient = compute_for(job_with(3'600'000));
  for (const std::uint64_t round : {1u, 16u}) {  // the epoch's last batch is smaller
    const Gradient a = gradient_of(whole, Round(round), Rank(1)), b = gradient_of(patient, Round(round), Rank(1));
    CHECK(a.values == b.values);
    CHECK(a.weights == b.weights);
    CHECK(b.samples == whole.weight(Round(round), Rank(1)));
    CHECK(b.ready == std::vector<std::size_t>{2, 3, 0, 1});
  }
}

TEST_CASE("Without time a rank contributes its first micro-batch, all tensors with the weight of its samples") {
  RankCompute late = compute_for(job_with(1));
  late.slow_down(1000.0);  // 4 ms for the 4 samples of a micro-batch
  const Gradient found = gradient_of(late, Round(3), Rank(0));
  CHECK(found.samples == 4);
  CHECK(found.weights == std::vector<std::uint64_t>(4, 4));
  CHECK(found.ready == std::vector<std::size_t>{2, 3, 0, 1});
  // The gradients of exactly these samples: a quarter of the share, in its order.
  JobConfig quarter = job_with(0);
  quarter.train.accumulation = 1;
  RankCompute reference = compute_for(quarter);
  Sampler sampler = compute_for(job_with(0)).sampler();
  const auto samples = sampler.micro_batch(Round(3), Rank(0), 0);
  ImageSet some = training_set();
  auto shape = required(shape_for(quarter.train, training_set(), reference.sampler()));
  auto mlp = required(Mlp::make(shape.sizes(), 64));
  std::vector<float> images(samples.size() * some.image_size());
  std::vector<std::uint8_t> labels(samples.size());
  some.gather(samples, images.data(), labels.data());
  std::vector<std::vector<float>> parameters, expected;
  std::vector<const float*> readable;
  std::vector<float*> writable;
  for (std::size_t t = 0; t < mlp.tensors().size(); ++t) {
    mlp.initialise(3, t, parameters.emplace_back(mlp.tensors()[t].elements()));
    expected.emplace_back(mlp.tensors()[t].elements());
  }
  for (auto& values : parameters) readable.push_back(values.data());
  for (auto& values : expected) writable.push_back(values.data());
  mlp.forward(images.data(), 4, readable, nullptr);
  mlp.loss(labels);
  mlp.backward(readable, writable, false, nullptr);
  CHECK(found.values == expected);
}

TEST_CASE("A deadline needs micro-batches, and the standalone reference has none") {
  JobConfig job = job_with(5);
  job.train.accumulation = 1;
  const auto refused = failure_of(RankCompute::make(job, training_set(), 2));
  CHECK(refused.code == ErrorCode::kConfig);
  CHECK(testing::contains(refused.message, "train.accumulation"));
  const auto hurried = train_standalone({.job = job_with(1), .ranks = 2}, training_set(), nullptr, nullptr);
  const auto whole = train_standalone({.job = job_with(0), .ranks = 2}, training_set(), nullptr, nullptr);
  REQUIRE((hurried && whole));
  CHECK(hurried->digest == whole->digest);
}

}  // namespace tributary::train::partial_rounds_test
