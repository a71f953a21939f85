// The trainer's GPU code (train/cuda_compute.cc and below) on an emulation of CUDA's runtime and of the kernels: what
// it computes, that streams and events depend on each other as they must, and that every failure is survived.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/emulation/compute_fixture.h"
#include "train/cuda_gemm.h"
#include "train/mlp_kernels.h"
#include "train/rank_compute.h"
#include "train/standalone.h"

namespace tributary::train {

// There is no cuBLAS to emulate.
Result<std::unique_ptr<CudaGemm>> make_cublas_gemm(const CudaDeviceName&, cudaStream_t) {
  return fail(ErrorCode::kNotFound, "cuBLAS cannot be loaded here");
}

namespace {

const std::vector<std::vector<std::uint32_t>> kSizes = {{20, 10}, {20, 33, 10}, {20, 70, 65, 10}, {20, 1, 3, 10}};

TEST_CASE("loss, predictions and gradients are the CPU's up to rounding") {
  for (const auto& sizes : kSizes) {
    for (const auto& [count, micro_batches] :
         {std::pair{1u, 1u}, std::pair{7u, 1u}, std::pair{64u, 3u}, std::pair{131u, 2u}, std::pair{5u, 8u}}) {
      CAPTURE(sizes.size());
      CAPTURE(count);
      const MlpShape shape = shape_of(sizes);
      Memory memory(shape);
      memory.fill_all(3);
      const Samples samples(count, micro_batches);
      const auto reference = cpu(shape);
      REQUIRE(reference->bind(memory.rank_memory(false)));
      const BatchStats expected = gradient_of(*reference, samples.share);
      const auto expected_gradients = memory.all_gradients();
      use({.seed = count});
      const auto compute = cuda(shape);
      REQUIRE(compute->bind(memory.rank_memory(true)));
      const BatchStats found = gradient_of(*compute, samples.share);
      CHECK(found.samples == count);
      CHECK(found.correct == expected.correct);
      CHECK(found.loss_sum == doctest::Approx(expected.loss_sum).epsilon(1e-6));
      check_close(memory.all_gradients(), expected_gradients);
    }
  }
}

TEST_CASE("evaluation is the CPU's, over more than one batch and images that are not resident") {
  const ImageSet test = synthetic(2 * kEvaluationBatch + 17, 5);
  const MlpShape shape = shape_of({20, 12, 10});
  Memory memory(shape);
  memory.fill_all(4);
  const auto reference = cpu(shape);
  REQUIRE(reference->bind(memory.rank_memory(false)));
  const auto expected = reference->evaluate(test);
  REQUIRE(expected);
  for (const std::uint32_t seed : {0u, 3u}) {
    use({.seed = seed});
    const auto compute = cuda(shape);
    REQUIRE(compute->bind(memory.rank_memory(true)));
    const auto found = compute->evaluate(test);
    REQUIRE_MESSAGE(found, found.error().message);
    CHECK(found->samples == test.count);
    CHECK(found->correct == expected->correct);
    CHECK(found->loss_sum == doctest::Approx(expected->loss_sum).epsilon(1e-6));
  }
}

// Rounds as a session has them, with a worker that is as fast as it may be: parameters come only when they are needed,
// and are gone as soon as their tensor is ready; the gradient's memory is the worker's until then.
std::vector<std::vector<std::vector<float>>> rounds_of(ModelCompute& compute, Memory& memory, const RankMemory& bound) {
  REQUIRE(compute.bind(bound));
  const std::size_t tensors = memory.parameters.size();
  std::vector<std::vector<std::vector<float>>> all;
  for (std::uint32_t round = 1; round <= 3; ++round) {
    const Samples samples(round == 2 ? 0 : 40, 4, round);
    std::vector<std::size_t> needed, ready;
    std::vector<std::vector<float>> at_ready(tensors);
    const BatchStats stats = gradient_of(
        compute, samples.share,
        [&](std::size_t tensor) {
          CHECK(ready.empty());
          needed.push_back(tensor);
          memory.fill(tensor, round);
          std::fill_n(memory.gradients[tensor], memory.gradient(tensor).size(), kNan);
          return true;
        },
        [&](std::size_t tensor) {
          CHECK(needed.size() == tensors);
          ready.push_back(tensor);
          at_ready[tensor] = memory.gradient(tensor);
          std::fill_n(memory.parameters[tensor], memory.gradient(tensor).size(), kNan);
        });
    CHECK(stats.samples == samples.share.samples);
    std::vector<std::size_t> in_order(tensors), last_first;
    std::iota(in_order.begin(), in_order.end(), 0);
    for (std::size_t l = tensors / 2; l-- > 0;) last_first.insert(last_first.end(), {2 * l, 2 * l + 1});
    CHECK(needed == in_order);
    CHECK(ready == last_first);
    CHECK(at_ready == memory.all_gradients());
    all.push_back(std::move(at_ready));
  }
  compute.unbind();
  return all;
}

TEST_CASE("gradients are final when their tensor is ready, whatever order streams run in, and always the same bits") {
  const MlpShape shape = shape_of({20, 33, 9, 10});
  Memory memory(shape);
  const auto reference = cpu(shape);
  const auto expected = rounds_of(*reference, memory, memory.rank_memory(false));
  std::vector<std::vector<std::vector<float>>> first;
  for (std::uint32_t seed = 0; seed < kSeeds; ++seed) {
    CAPTURE(seed);
    for (const bool lasting : {true, false}) {
      for (const std::size_t free_memory : {std::size_t{1} << 30, std::size_t{1000}}) {  // images resident or not
        use({.seed = seed, .free_memory = free_memory});
        const auto compute = cuda(shape);
        const auto found = rounds_of(*compute, memory, memory.rank_memory(lasting));
        if (first.empty()) first = found;
        CHECK(found == first);
        CHECK(runtime_counts().pending == 0);
        CHECK(runtime_counts().registered == 0);
      }
    }
  }
  for (std::size_t round = 0; round < expected.size(); ++round) check_close(first[round], expected[round]);
}

TEST_CASE("on memory of the device gradients are the same bits as through the host, whatever order streams run in") {
  const MlpShape shape = shape_of({20, 33, 9, 10});
  Memory memory(shape);
  use({.seed = 1});
  const auto expected = rounds_of(*cuda(shape), memory, memory.rank_memory(true));
  for (std::uint32_t seed = 0; seed < 2 * kSeeds; ++seed) {
    CAPTURE(seed);
    use({.seed = seed});
    const auto compute = cuda(shape);
    memory.lend();
    CHECK(rounds_of(*compute, memory, memory.device_memory()) == expected);
    // A worker that comes back on the host, and then on the device again.
    CHECK(rounds_of(*compute, memory, memory.rank_memory(true)) == expected);
    CHECK(rounds_of(*compute, memory, memory.device_memory()) == expected);
    CHECK(runtime_counts().pending == 0);
    memory.take_back();
  }
}

TEST_CASE(
    "on memory of the device only the loss and the samples' numbers travel, and parameters where they are asked for") {
  const MlpShape shape = shape_of({20, 8, 10});
  Memory memory(shape);
  memory.fill_all(1);
  use({.seed = 2});
  const auto compute = cuda(shape);
  memory.lend();
  REQUIRE(compute->bind(memory.device_memory()));
  const Samples samples(100, 1);
  const std::size_t before = runtime_counts().host_bytes;
  gradient_of(*compute, samples.share);
  CHECK(runtime_counts().host_bytes - before == 100 * 4 + sizeof(PassSums));
  static const ImageSet kFew = synthetic(10, 3);
  const auto found = compute->evaluate(kFew);
  REQUIRE(found);
  std::vector<float> copy(shape.tensors()[2].elements());
  REQUIRE(compute->read_parameters(2, copy));
  CHECK(copy == std::vector<float>(memory.readable[2], memory.readable[2] + copy.size()));
  compute->unbind();
  memory.take_back();
  const auto reference = cpu(shape);
  REQUIRE(reference->bind(memory.rank_memory(false)));
  CHECK(found->correct == reference->evaluate(kFew)->correct);
}

TEST_CASE("resident images do not travel again") {
  const MlpShape shape = shape_of({20, 10});
  Memory memory(shape);
  memory.fill_all(1);
  std::size_t bytes[2];
  for (int i = 0; i < 2; ++i) {
    use({.seed = 2, .free_memory = i == 0 ? std::size_t{1} << 30 : 1000});
    const auto compute = cuda(shape);
    REQUIRE(compute->bind(memory.rank_memory(true)));
    const std::size_t before = runtime_counts().host_bytes;
    const Samples samples(100, 1);
    gradient_of(*compute, samples.share);
    bytes[i] = runtime_counts().host_bytes - before;
  }
  CHECK(bytes[1] - bytes[0] == 100 * (20 + 1) - 100 * 4);  // pixels and labels instead of samples' numbers
}

TEST_CASE("an abandoned round leaves nothing under way and nothing ready") {
  const MlpShape shape = shape_of({20, 8, 10});
  Memory memory(shape);
  memory.fill_all(1);
  memory.lend();
  for (std::size_t at = 0; at < 4; ++at) {
    for (const auto& [count, bound] :
         {std::pair{0u, memory.rank_memory(true)}, std::pair{30u, memory.rank_memory(true)},
          std::pair{0u, memory.device_memory()}, std::pair{30u, memory.device_memory()}}) {
      use({.seed = static_cast<std::uint32_t>(at)});
      const auto compute = cuda(shape);
      REQUIRE(compute->bind(bound));
      const Samples samples(count, 1);
      const auto stats = compute->gradient(
          samples.share, [&](std::size_t tensor) { return tensor != at; },
          [](std::size_t) { FAIL_CHECK("ready in an abandoned round"); });
      REQUIRE(stats);
      CHECK_FALSE(*stats);
      CHECK(runtime_counts().pending == 0);
    }
  }
  memory.take_back();
}

TEST_CASE("memory that cannot be pinned costs speed only, and the reason is said") {
  const MlpShape shape = shape_of({20, 8, 10});
  Memory memory(shape);
  use({.seed = 5, .can_register = false});
  const auto compute = cuda(shape);
  const auto found = rounds_of(*compute, memory, memory.rank_memory(true));
  CHECK(compute->info().note.find("page-locking the memory shared with the worker failed") != std::string::npos);
  const auto reference = cpu(shape);
  const auto expected = rounds_of(*reference, memory, memory.rank_memory(false));
  for (std::size_t round = 0; round < expected.size(); ++round) check_close(found[round], expected[round]);
}

// Everything that a rank does, from nothing to nothing; the error if there was one.
std::optional<Error> whole_life(const MlpShape& shape, const RankMemory& memory, bool& over) {
  auto compute = make_cuda_compute(shape, training_set(), 0);
  if (!compute) return compute.error();
  if (Status bound = (*compute)->bind(memory); !bound) return bound.error();
  for (const std::uint32_t count : {12u, 0u}) {
    const Samples samples(count, 3);
    over = false;
    const auto stats = (*compute)->gradient(
        samples.share, [](std::size_t) { return true; }, [&](std::size_t) { CHECK_FALSE(over); });
    over = true;
    CHECK(runtime_counts().pending == 0);
    if (!stats) return stats.error();
  }
  const std::shared_ptr<const kernels::Optimizer> inner = kernels::make_optimizer("adam", {});
  if (Status begun = (*compute)->begin_local(inner, 1, false); !begun) return begun.error();
  const Samples samples(8, 1);
  over = false;
  const auto moved = (*compute)->local_round(
      {.steps = 2,
       .step =
           [&](std::uint32_t k) { return LocalStep{.share = samples.share, .scalars = inner->scalars(k + 1, 0.1)}; }},
      [](std::size_t) { return true; }, [&](std::size_t) { CHECK_FALSE(over); });
  over = true;
  CHECK(runtime_counts().pending == 0);
  if (!moved) return moved.error();
  static const ImageSet kFew = synthetic(10, 3);
  const auto evaluated = (*compute)->evaluate(kFew);
  CHECK(runtime_counts().pending == 0);
  if (!evaluated) return evaluated.error();
  std::vector<float> copy(shape.tensors()[0].elements());
  if (Status read = (*compute)->read_parameters(0, copy); !read) return read.error();
  return std::nullopt;
}

TEST_CASE("whatever call of CUDA fails, the error says what and where, nothing goes on, and all is given back") {
  const MlpShape shape = shape_of({20, 8, 10});
  Memory memory(shape);
  memory.fill_all(1);
  bool over = false;
  memory.lend();
  for (const RankMemory& bound : {memory.rank_memory(true), memory.device_memory()}) {
    use({.seed = 3});
    REQUIRE_FALSE(whole_life(shape, bound, over));
    const std::size_t calls = runtime_counts().calls;
    CHECK(runtime_counts().alive == 0);
    std::size_t failures = 0;
    for (std::uint32_t seed = 0; seed < kSeeds; seed += 3) {
      for (std::size_t call = 1; call <= calls; ++call) {
        CAPTURE(call);
        use({.seed = seed, .failing_call = call});
        const auto error = whole_life(shape, bound, over);
        CHECK(runtime_counts().alive == 0);
        CHECK(runtime_counts().registered == 0);
        if (!error) continue;  // a call of a destructor, or one that is only asked whether all is well
        ++failures;
        CHECK(error->code == ErrorCode::kDevice);
        CHECK(error->message.starts_with("cuda:0"));
        CHECK(error->message.find(" failed: ") != std::string::npos);
      }
    }
    CHECK(failures > calls / 2 * ((kSeeds + 2) / 3));  // at least those that enqueue work or make something
  }
  memory.take_back();
}

TEST_CASE("a choice of ours falls back to the CPU and says why, a choice of the user's does not") {
  JobConfig job;
  job.train.hidden = {8};
  job.train.global_batch = 10;
  use({.seed = 1, .failing_call = 1});
  DeviceChoice choice{.kind = DeviceKind::kCuda, .index = 0, .may_fall_back = true, .why = {}};
  const auto fallen = RankCompute::make(job, training_set(), 1, choice);
  REQUIRE(fallen);
  CHECK(fallen->info().device == "cpu");
  CHECK(fallen->info().note.find("cuda:0: reading the properties failed") != std::string::npos);
  // Also when it is the room for local steps that is not there.
  job.mode = Mode::kLocalSgd;
  job.local.steps = 2;
  job.local.optimizer.name = "adam";
  use({.seed = 1});
  REQUIRE(RankCompute::make(job, training_set(), 1, choice)->info().cuda);
  const std::size_t calls = runtime_counts().calls;
  std::size_t fell = 0;
  for (std::size_t call = 1; call <= calls; ++call) {
    use({.seed = 1, .failing_call = call});
    const auto made = RankCompute::make(job, training_set(), 1, choice);
    REQUIRE(made);
    fell += made->info().device == "cpu" ? 1 : 0;
    if (made->info().device == "cpu") CHECK(made->info().note.find(" failed: ") != std::string::npos);
  }
  CHECK(fell > 10);
  job = {};
  job.train.hidden = {8};
  job.train.global_batch = 10;
  use({.seed = 1, .failing_call = 1});
  choice.may_fall_back = false;
  const auto refused = RankCompute::make(job, training_set(), 1, choice);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kDevice);
}

TEST_CASE("training on the device learns what the CPU learns, and ends in the same bits every time") {
  StandaloneOptions options;
  options.job.name = "emulated";
  options.job.optimizer.name = "adamw";
  options.job.optimizer.lr = 0.01;
  options.job.train.hidden = {16};
  options.job.train.global_batch = 50;
  options.job.train.epochs = 4;
  options.ranks = 2;
  const ImageSet test = synthetic(200, 2);
  const auto on_cpu = train_standalone(options, training_set(), &test, nullptr);
  REQUIRE(on_cpu);
  options.device.kind = DeviceKind::kCuda;
  std::string digest;
  for (const std::uint32_t seed : {1u, 9u}) {
    use({.seed = seed});
    const auto summary = train_standalone(options, training_set(), &test, nullptr);
    REQUIRE_MESSAGE(summary, summary.error().message);
    CHECK(summary->compute.device == "cuda:0 Emulated GPU");
    CHECK(summary->compute.blas == "own matrix kernel");
    CHECK(summary->compute.note == "cuBLAS cannot be loaded here");
    CHECK(std::abs(summary->test->accuracy() - on_cpu->test->accuracy()) <= 0.02);
    if (digest.empty()) digest = summary->digest;
    CHECK(summary->digest == digest);
  }
}

}  // namespace
}  // namespace tributary::train
