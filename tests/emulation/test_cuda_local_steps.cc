// Local steps on the emulation of CUDA's runtime: what the trainer's GPU code does between two exchanges.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/optimizer.h"
#include "tests/emulation/compute_fixture.h"
#include "train/rank_compute.h"
#include "train/standalone.h"

namespace tributary::train {
namespace {

// Rounds of local steps, as rounds_of() has plain ones: three rounds of two replicas in turn; the second replica has no
// samples in the second round.
std::vector<std::vector<std::vector<float>>> local_rounds_of(ModelCompute& compute, Memory& memory,
                                                             const RankMemory& bound, const std::string& optimizer) {
  const std::shared_ptr<const kernels::Optimizer> inner =
      kernels::make_optimizer(optimizer, {.weight_decay = 0.01, .initial_accumulator = 0.1});
  REQUIRE(compute.bind(bound));
  REQUIRE(compute.begin_local(inner, 2, true));
  const std::size_t tensors = memory.parameters.size();
  std::vector<std::vector<std::vector<float>>> all;
  for (std::uint32_t round = 0; round < 3; ++round) {
    for (std::uint32_t replica = 0; replica < 2; ++replica) {
      std::vector<std::unique_ptr<Samples>> samples;
      LocalRound local{.replica = replica, .begins = InnerState::kNext, .steps = 4, .step = {}};
      if (round == 0) local.begins = InnerState::kFresh;
      if (round == 2) {  // once for nothing: computed again, it must not matter
        const Samples other(20, 1, 77);
        const auto step = [&](std::uint32_t) {
          return LocalStep{.share = other.share, .scalars = inner->scalars(9, 1.0)};
        };
        memory.fill_all(7);
        REQUIRE(
            compute.local_round({.replica = replica, .begins = InnerState::kNext, .steps = 2, .step = step}, {}, {}));
        local.begins = InnerState::kAgain;
      }
      if (round == 1 && replica == 1) local.steps = 0;
      for (std::uint32_t k = 0; k < local.steps; ++k) {
        samples.push_back(std::make_unique<Samples>(30 + k, 2, round * 100 + replica * 10 + k));
      }
      local.step = [&](std::uint32_t k) {
        return LocalStep{.share = samples[k]->share, .scalars = inner->scalars(round * 4 + k + 1, 0.01)};
      };
      std::size_t needed = 0, ready = 0;
      std::vector<std::vector<float>> at_ready(tensors);
      const auto stats = compute.local_round(
          local,
          [&](std::size_t tensor) {
            CHECK(ready == 0);
            ++needed;
            memory.fill(tensor, round);
            std::fill_n(memory.gradients[tensor], memory.gradient(tensor).size(), kNan);
            return true;
          },
          [&](std::size_t tensor) {
            CHECK(needed == tensors);
            ++ready;
            at_ready[tensor] = memory.gradient(tensor);
            std::fill_n(memory.parameters[tensor], memory.gradient(tensor).size(), kNan);
          });
      REQUIRE_MESSAGE(stats, stats.error().message);
      REQUIRE(*stats);
      CHECK((*stats)->samples == (local.steps == 0 ? 0 : 4 * 30 + 6));
      CHECK(ready == tensors);
      CHECK(at_ready == memory.all_gradients());
      all.push_back(std::move(at_ready));
    }
  }
  compute.unbind();
  return all;
}

TEST_CASE("local steps move a replica as on the CPU, up to rounding") {
  const MlpShape shape = shape_of({20, 33, 9, 10});
  Memory memory(shape);
  // Of the others, some divide by what rounding leaves of a gradient that is 0; their kernels have twins' tests.
  for (const char* optimizer : {"sgd", "adagrad"}) {
    CAPTURE(optimizer);
    const auto expected = local_rounds_of(*cpu(shape), memory, memory.rank_memory(false), optimizer);
    use({.seed = 4});
    const auto found = local_rounds_of(*cuda(shape), memory, memory.rank_memory(true), optimizer);
    for (std::size_t i = 0; i < expected.size(); ++i) check_close(found[i], expected[i]);
    for (const auto& tensor : found[3])
      CHECK(std::all_of(tensor.begin(), tensor.end(), [](float v) { return v == 0; }));
  }
}

TEST_CASE("local steps end in the same bits whatever order streams run in, through the host and on lent memory") {
  const MlpShape shape = shape_of({20, 33, 9, 10});
  Memory memory(shape);
  use({.seed = 1});
  const auto expected = local_rounds_of(*cuda(shape), memory, memory.rank_memory(true), "adamw");
  for (std::uint32_t seed = 0; seed < kSeeds; ++seed) {
    CAPTURE(seed);
    use({.seed = seed});
    const auto compute = cuda(shape);
    CHECK(local_rounds_of(*compute, memory, memory.rank_memory(true), "adamw") == expected);
    memory.lend();
    CHECK(local_rounds_of(*compute, memory, memory.device_memory(), "adamw") == expected);
    memory.take_back();
    CHECK(runtime_counts().pending == 0);
  }
}

TEST_CASE("training on the device with local steps learns what the CPU learns, and ends in the same bits every time") {
  StandaloneOptions options;
  options.job.name = "emulated";
  options.job.mode = Mode::kLocalSgd;
  options.job.optimizer.lr = 1.0;
  options.job.local.steps = 4;
  options.job.local.optimizer.name = "adamw";
  options.job.train.hidden = {16};
  options.job.train.global_batch = 50;
  options.job.train.epochs = 6;
  options.ranks = 2;
  const ImageSet test = synthetic(200, 2);
  const auto on_cpu = train_standalone(options, training_set(), &test, nullptr);
  REQUIRE(on_cpu);
  CHECK(on_cpu->test->accuracy() > 0.8);
  options.device.kind = DeviceKind::kCuda;
  std::string digest;
  for (const std::uint32_t seed : {1u, 9u}) {
    use({.seed = seed});
    const auto summary = train_standalone(options, training_set(), &test, nullptr);
    REQUIRE_MESSAGE(summary, summary.error().message);
    CHECK(std::abs(summary->test->accuracy() - on_cpu->test->accuracy()) <= 0.03);
    if (digest.empty()) digest = summary->digest;
    CHECK(summary->digest == digest);
  }
}

}  // namespace
}  // namespace tributary::train
