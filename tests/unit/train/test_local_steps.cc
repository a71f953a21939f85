// Local steps (mode local_sgd): a replica's contribution, and the servers' result.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/config/config_check.h"
#include "common/config/optimizer_config.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/stepping_optimizers.h"
#include "tests/unit/train/synthetic_images.h"
#include "train/rank_compute.h"
#include "train/standalone.h"

namespace tributary::train::local_steps_test {
namespace {

using Tensors = std::vector<std::vector<float>>;

const ImageSet& training_set() {
  static const ImageSet kSet = synthetic(500, 1);  // 16 batches of 32, the last one of 20
  return kSet;
}

JobConfig small_job(std::uint32_t steps, const std::string& optimizer = "sgd", double lr = 0.1) {
  JobConfig job;
  job.name = "local";
  job.mode = Mode::kLocalSgd;
  job.optimizer = default_outer_optimizer(job.mode, "sgd");
  job.local.steps = steps;
  job.local.optimizer = default_optimizer(optimizer);
  job.local.optimizer.lr = lr;
  job.train.hidden = {24};
  job.train.global_batch = 32;
  job.train.epochs = 2;
  return job;
}

JobConfig synchronous(JobConfig job) {
  job.mode = Mode::kSync;
  job.optimizer = job.local.optimizer;
  job.local = {};
  return job;
}

RankCompute compute_for(const JobConfig& job, std::uint32_t world_size, std::uint32_t replicas = 1) {
  return required(RankCompute::make(job, training_set(), world_size, replicas));
}

// A rank's memory, bound to what computes.
struct Memory {
  explicit Memory(RankCompute& compute, std::uint64_t seed = 3) {
    for (std::size_t t = 0; t < compute.shape().tensors().size(); ++t) {
      const std::size_t elements = compute.shape().tensors()[t].elements();
      compute.shape().initialise(seed, t, parameters.emplace_back(elements));
      gradients.emplace_back(elements, 1e30f);  // nobody may count on old contents
    }
    for (auto& tensor : parameters) readable.push_back(tensor.data());
    for (auto& tensor : gradients) writable.push_back(tensor.data());
    compute.bind({.parameters = readable, .gradients = writable});
  }
  Memory(const Memory&) = delete;
  Tensors parameters, gradients;

 private:
  std::vector<const float*> readable;
  std::vector<float*> writable;
};

BatchStats round_of(RankCompute& compute, std::uint64_t round, std::uint32_t rank, std::uint32_t replica = 0) {
  return required(compute.gradient(Round(round), Rank(rank), nullptr, nullptr, replica));
}

// The inner optimizer by hand, over gradients that a synchronous job would push.
class ByHand {
 public:
  ByHand(const JobConfig& job, std::uint32_t world_size)
      : job_(job),
        optimizer_(make_optimizer(job.local.optimizer)),
        compute_(compute_for(synchronous(job), world_size)),
        memory_(compute_) {
    reset();
  }
  void reset() {
    taken_ = 0;
    states_.assign(kernels::kMaxSlots, {});
    for (int slot = 0; slot < optimizer_->slots(); ++slot) {
      for (const auto& tensor : memory_.parameters) {
        states_[slot].emplace_back(tensor.size(), optimizer_->initial_state(slot));
      }
    }
  }
  // Steps first+1 ... last of the job; from `start` by how much they move.
  Tensors move(const Tensors& start, std::uint64_t first, std::uint64_t last, std::uint32_t rank) {
    // In place: what is bound must stay where it is.
    for (std::size_t t = 0; t < start.size(); ++t) std::ranges::copy(start[t], memory_.parameters[t].begin());
    for (std::uint64_t step = first + 1; step <= last; ++step) {
      const BatchStats stats = round_of(compute_, step, rank);
      if (stats.samples == 0) continue;
      const kernels::StepScalars scalars = optimizer_->scalars(++taken_, job_.local.optimizer.lr);
      for (std::size_t t = 0; t < start.size(); ++t) {
        kernels::BlockArgs args;
        args.count = start[t].size();
        args.grad = memory_.gradients[t].data();
        args.grad_scale = static_cast<float>(1.0 / static_cast<double>(stats.samples));
        args.param_in = args.param_out = memory_.parameters[t].data();
        for (int slot = 0; slot < optimizer_->slots(); ++slot) {
          args.state_in[slot] = args.state_out[slot] = states_[slot][t].data();
        }
        optimizer_->step(scalars, args);
      }
    }
    Tensors moved = start;
    for (std::size_t t = 0; t < start.size(); ++t) {
      for (std::size_t i = 0; i < start[t].size(); ++i) moved[t][i] = start[t][i] - memory_.parameters[t][i];
    }
    return moved;
  }

 private:
  JobConfig job_;
  std::unique_ptr<kernels::Optimizer> optimizer_;
  RankCompute compute_;
  Memory memory_;
  std::uint64_t taken_ = 0;
  std::vector<Tensors> states_;
};

TEST_CASE("A replica moves by the steps that its optimizer takes by itself, with every optimizer") {
  for (const std::string& name : testing::stepping_optimizers()) {
    for (const bool keep : {true, false}) {
      CAPTURE(name);
      CAPTURE(keep);
      JobConfig job = small_job(5, name, 10 * default_optimizer(name).lr);
      job.local.keep_state = keep;
      if (job.local.optimizer.name == "sgd") job.local.optimizer["momentum"] = 0.9;
      job.train.accumulation = 2;
      RankCompute compute = compute_for(job, 2);
      Memory memory(compute);
      ByHand reference(job, 2);
      // 16 steps an epoch: rounds of 5, 5, 5 and 1 step, and on into the second epoch.
      std::uint64_t step = 0;
      for (std::uint64_t round = 1; round <= 6; ++round) {
        CAPTURE(round);
        const std::uint32_t steps = round == 4 ? 1 : 5;
        if (!keep) reference.reset();
        const Tensors expected = reference.move(memory.parameters, step, step + steps, 1);
        const BatchStats stats = round_of(compute, round, 1);
        CHECK(memory.gradients == expected);
        CHECK(stats.samples == (round == 4 ? 10u : 5u * 16u));
        CHECK(compute.weight(Round(round), Rank(1)) == 1);
        step += steps;
      }
    }
  }
}

TEST_CASE("The schedule is counted in local steps of the job") {
  JobConfig job = small_job(4);
  job.schedule.kind = ScheduleKind::kStep;
  job.schedule.step_rounds = 6;
  job.schedule.step_gamma = 0.5;
  RankCompute scheduled = compute_for(job, 1);
  Memory memory(scheduled);
  // Steps 5 and 6 at the full rate, 7 and 8 at half of it.
  round_of(scheduled, 2, 0);
  job.schedule = {};
  ByHand first(job, 1);
  Tensors after = memory.parameters;
  const auto apply = [&after](const Tensors& moved) {
    for (std::size_t t = 0; t < after.size(); ++t) {
      for (std::size_t i = 0; i < after[t].size(); ++i) after[t][i] -= moved[t][i];
    }
  };
  apply(first.move(after, 4, 6, 0));
  job.local.optimizer.lr = 0.05;
  apply(ByHand(job, 1).move(after, 6, 8, 0));
  for (std::size_t t = 0; t < after.size(); ++t) {
    for (std::size_t i = 0; i < after[t].size(); ++i) {
      REQUIRE(memory.gradients[t][i] ==
              doctest::Approx(memory.parameters[t][i] - after[t][i]).epsilon(1e-3).scale(0.01));
    }
  }
}

TEST_CASE("Tensors are needed in order before anything moves, and become ready in the last step, last layer first") {
  RankCompute compute = compute_for(small_job(3), 1);
  Memory memory(compute);
  std::vector<std::size_t> needed, ready;
  required(compute.gradient(
      Round(1), Rank(0),
      [&](std::size_t t) {
        CHECK(memory.gradients[0][0] == 1e30f);
        CHECK(ready.empty());
        needed.push_back(t);
        return true;
      },
      [&](std::size_t t, std::uint64_t weight) {
        CHECK(weight == 1);
        ready.push_back(t);
        // The callback may take the gradient, and overwrite the parameters.
        std::ranges::fill(memory.parameters[t], 1e30f);
      }));
  CHECK(needed == std::vector<std::size_t>{0, 1, 2, 3});
  CHECK(ready == std::vector<std::size_t>{2, 3, 0, 1});
  const Tensors found = memory.gradients;
  RankCompute again = compute_for(small_job(3), 1);
  Memory undisturbed(again);
  round_of(again, 1, 0);
  CHECK(found == undisturbed.gradients);
}

TEST_CASE("An abandoned round leaves the inner state as it was") {
  for (const std::uint64_t abandoned : {1u, 2u}) {
    CAPTURE(abandoned);
    const JobConfig job = small_job(3, "adamw", 0.01);
    RankCompute disturbed = compute_for(job, 1), straight = compute_for(job, 1);
    Memory memory(disturbed), reference(straight);
    for (std::uint64_t round = 1; round <= 3; ++round) {
      if (round == abandoned) {
        const auto stats = disturbed.gradient(
            Round(round), Rank(0), [](std::size_t t) { return t < 2; },
            [](std::size_t, std::uint64_t) { FAIL_CHECK("ready in an abandoned round"); });
        CHECK_FALSE(stats.has_value());
      }
      round_of(disturbed, round, 0);
      round_of(straight, round, 0);
      CHECK(memory.gradients == reference.gradients);
    }
  }
}

TEST_CASE("Replicas in one process have inner states of their own") {
  const JobConfig job = small_job(3, "adam", 0.01);
  RankCompute shared = compute_for(job, 2, 2);
  Memory memory(shared);
  std::vector<Tensors> found;
  for (std::uint64_t round = 1; round <= 2; ++round) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      round_of(shared, round, rank, rank);
      found.push_back(memory.gradients);
    }
  }
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    RankCompute own = compute_for(job, 2);
    Memory alone(own);
    for (std::uint64_t round = 1; round <= 2; ++round) {
      round_of(own, round, rank);
      CHECK(alone.gradients == found[(round - 1) * 2 + rank]);
    }
  }
}

TEST_CASE("A round computed again begins with the state that it began with, any other one that does not follow anew") {
  const JobConfig job = small_job(3, "adam", 0.01);
  RankCompute repeating = compute_for(job, 1), straight = compute_for(job, 1);
  Memory memory(repeating), reference(straight);
  for (std::uint64_t round = 1; round <= 4; ++round) {
    round_of(straight, round, 0);
    for (int times = 0; times < 3; ++times) {
      CHECK_FALSE(repeating.lost_inner_state(Round(round)));
      round_of(repeating, round, 0);
      CHECK(memory.gradients == reference.gradients);
    }
  }
  // Further back, or ahead: nothing here belongs to it.
  for (const std::uint64_t round : {2u, 8u}) {
    RankCompute other = compute_for(job, 1);
    Memory alone(other);
    CHECK(repeating.lost_inner_state(Round(round)));
    CHECK(other.lost_inner_state(Round(round)));
    for (const std::uint64_t r : {round, round + 1}) {
      round_of(repeating, r, 0);
      round_of(other, r, 0);
      CHECK(memory.gradients == alone.gradients);
    }
    CHECK_FALSE(repeating.lost_inner_state(Round(round + 2)));
  }
  // Nothing is kept: without state, or by the job's own will.
  CHECK_FALSE(compute_for(small_job(3), 1).lost_inner_state(Round(2)));
  JobConfig anew = job;
  anew.local.keep_state = false;
  CHECK_FALSE(compute_for(anew, 1).lost_inner_state(Round(2)));
  CHECK_FALSE(compute_for(synchronous(job), 1).lost_inner_state(Round(2)));
}

TEST_CASE("A round without samples is none for the inner state") {
  // 33 samples in batches of 32: of the second batch only one rank has a sample.
  const ImageSet training = synthetic(33, 4);
  const JobConfig job = small_job(1, "adam", 0.01);
  Result<RankCompute> compute = RankCompute::make(job, training, 4), other = RankCompute::make(job, training, 4);
  REQUIRE((compute && other));
  REQUIRE(compute->weight(Round(2), Rank(0)) == 0);
  Memory memory(*compute), reference(*other);
  for (const std::uint64_t round : {1u, 2u, 3u}) round_of(*other, round, 0);
  for (const std::uint64_t round : {1u, 2u, 2u, 3u, 3u}) round_of(*compute, round, 0);
  CHECK(memory.gradients == reference.gradients);
}

TEST_CASE("A replica without samples contributes zeros that count for nothing") {
  // 33 samples in batches of 32: of the second batch only one rank has a sample.
  const ImageSet training = synthetic(33, 4);
  JobConfig job = small_job(1);
  Result<RankCompute> compute = RankCompute::make(job, training, 4);
  REQUIRE(compute.has_value());
  std::uint32_t weights = 0;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    Memory memory(*compute);
    const std::uint32_t weight = compute->weight(Round(2), Rank(rank));
    CHECK(round_of(*compute, 2, rank).samples == weight);
    const bool zeros = std::ranges::all_of(memory.gradients[0], [](float value) { return value == 0.0f; });
    CHECK(zeros == (weight == 0));
    weights += weight;
  }
  CHECK(weights == 1);
  // With two local steps everybody has samples in the first of them.
  job.local.steps = 2;
  compute = RankCompute::make(job, training, 4);
  REQUIRE(compute.has_value());
  for (std::uint32_t rank = 0; rank < 4; ++rank) CHECK(compute->weight(Round(1), Rank(rank)) == 1);
}

RunSummary train(const JobConfig& job, std::uint32_t ranks, std::uint32_t nodes = 1, const ImageSet* test = nullptr) {
  const Result<RunSummary> summary =
      train_standalone({.job = job, .ranks = ranks, .nodes = nodes}, training_set(), test, nullptr);
  REQUIRE_MESSAGE(summary.has_value(), summary.error().message);
  return *summary;
}

TEST_CASE("An average of replicas is exact where subtracting and adding is, and within rounding elsewhere") {
  JobConfig job = small_job(4);
  RankCompute compute = compute_for(job, 1);
  Memory memory(compute);
  ByHand reference(job, 1);
  round_of(compute, 1, 0);
  // The servers' step: sgd, rate 1, one replica.
  const auto outer = make_optimizer(job.optimizer);
  Tensors moved = memory.parameters;
  std::size_t exact = 0, all = 0;
  for (std::size_t t = 0; t < moved.size(); ++t) {
    kernels::BlockArgs args;
    args.count = moved[t].size();
    args.grad = memory.gradients[t].data();
    args.param_in = args.param_out = moved[t].data();
    outer->step(outer->scalars(1, job.optimizer.lr), args);
    const Tensors difference = reference.move(memory.parameters, 0, 4, 0);
    reference.reset();
    for (std::size_t i = 0; i < moved[t].size(); ++i) {
      const float before = memory.parameters[t][i], found = moved[t][i];
      const float own = before - difference[t][i];  // the replica's value, or its neighbour
      ++all;
      // Sterbenz: within a factor of two the difference is exact, and so is what is subtracted from.
      if (before != 0.0f && own / before >= 0.5f && own / before <= 2.0f) {
        ++exact;
        REQUIRE(before - found == difference[t][i]);
      }
      REQUIRE(std::abs(found - own) <= 1.2e-7f * (std::abs(before) + std::abs(own)));
    }
  }
  CHECK(exact > all / 2);
}

TEST_CASE("One local step of sgd and an average are synchronous sgd up to rounding") {
  const ImageSet test = synthetic(400, 2);
  for (const std::uint32_t ranks : {1u, 4u}) {
    CAPTURE(ranks);
    // Shares of all batches but an epoch's last are equal, so that the mean over ranks is that over samples.
    JobConfig job = small_job(1);
    job.train.global_batch = 20;
    const RunSummary local = train(job, ranks, 1, &test), sync = train(synchronous(job), ranks, 1, &test);
    CHECK(local.rounds == sync.rounds);
    CHECK(local.samples_here == sync.samples_here);
    CHECK(local.test->loss_sum == doctest::Approx(sync.test->loss_sum).epsilon(1e-5));
    CHECK(local.train.loss_sum == doctest::Approx(sync.train.loss_sum).epsilon(1e-5));
    CHECK(local.test->accuracy() == doctest::Approx(sync.test->accuracy()).epsilon(0.005));
    // It is not the same program: two local steps are something else.
    job.local.steps = 2;
    if (ranks > 1) CHECK(std::abs(train(job, ranks, 1, &test).test->loss_sum / sync.test->loss_sum - 1.0) > 1e-5);
  }
}

TEST_CASE("How replicas are grouped on nodes does not change a bit, and rounds are counted by their steps") {
  for (const bool keep : {true, false}) {
    JobConfig job = small_job(5, "adamw", 0.01);
    job.local.keep_state = keep;
    job.optimizer.lr = 0.7;
    job.optimizer["momentum"] = 0.9;
    job.optimizer["nesterov"] = true;
    const RunSummary summary = train(job, 4);
    CHECK(summary.rounds == 8);
    CHECK(summary.last_round == 8);
    CHECK(summary.samples_here == 1000);
    CHECK(summary.train.samples == 500);
    for (const std::uint32_t nodes : {2u, 4u}) CHECK(train(job, 4, nodes).digest == summary.digest);
    job.chunk_bytes = 4096;
    CHECK(train(job, 4).digest == summary.digest);
    job.train.max_rounds = 3;
    CHECK(train(job, 4).rounds == 3);
    job.local.keep_state = !keep;
    job.train.max_rounds = 0;
    CHECK(train(job, 4).digest != summary.digest);
  }
}

TEST_CASE("Local steps learn, with plain averaging, with an outer momentum, and with encodings") {
  const ImageSet test = synthetic(400, 2);
  JobConfig job = small_job(8, "adamw", 0.005);
  job.train.epochs = 8;
  CHECK(train(job, 4, 1, &test).test->accuracy() > 0.95);
  job.optimizer.lr = 0.7;
  job.optimizer["momentum"] = 0.9;
  job.optimizer["nesterov"] = true;
  CHECK(train(job, 4, 1, &test).test->accuracy() > 0.95);
  job.push = EncodingId::kInt8;
  job.pull = EncodingId::kBf16;
  CHECK(train(job, 4, 2, &test).test->accuracy() > 0.95);
}

TEST_CASE("An inner optimizer that nobody knows is refused") {
  JobConfig job = small_job(2);
  job.local.optimizer = default_optimizer("sdg");
  const auto refused = failure_of(RankCompute::make(job, training_set(), 1));
  CHECK(testing::contains(refused.message, "local.optimizer = \"sdg\""));
}

}  // namespace
}  // namespace tributary::train::local_steps_test
