// One kernel for every optimizer: loads, the formula that the CPU uses too, stores.
#include "kernels/adagrad_update.h"
#include "kernels/adam_update.h"
#include "kernels/cuda_optimizer.h"
#include "kernels/device.cuh"
#include "kernels/lion_update.h"
#include "kernels/sgd_update.h"

namespace tributary::kernels::cuda {
namespace {

constexpr int slots_of(StepFormula formula) {
  switch (formula) {
    case StepFormula::kSgd:
      return 0;
    case StepFormula::kAdam:
    case StepFormula::kAdamW:
      return 2;
    default:
      return 1;
  }
}

template <StepFormula kFormula>
__device__ __forceinline__ StepElement update(const StepScalars& s, StepElement old, float g) {
  if constexpr (kFormula == StepFormula::kSgd) return sgd::plain(s, old, g);
  if constexpr (kFormula == StepFormula::kSgdMomentum) return sgd::with_momentum(s, false, old, g);
  if constexpr (kFormula == StepFormula::kSgdNesterov) return sgd::with_momentum(s, true, old, g);
  if constexpr (kFormula == StepFormula::kAdam) return adam::coupled(s, old, g);
  if constexpr (kFormula == StepFormula::kAdamW) return adam::decoupled(s, old, g);
  if constexpr (kFormula == StepFormula::kAdagrad) return adagrad::update(s, old, g);
  if constexpr (kFormula == StepFormula::kLion) return lion::update(s, old, g);
}

template <StepFormula kFormula>
__global__ void __launch_bounds__(kThreads) step(const StepScalars scalars, const BlockArgs block) {
  constexpr int kSlots = slots_of(kFormula);
  for_each_tile(block.count, [&](auto whole, std::size_t first) {
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      const std::size_t i = first + block_place(r);
      const Floats grad = load<whole>(block.grad, i, block.count);
      Floats param = load<whole>(block.param_in, i, block.count);
      Floats state[2] = {};
      TRIBUTARY_UNROLL
      for (int slot = 0; slot < kSlots; ++slot) state[slot] = load<whole>(block.state_in[slot], i, block.count);
      TRIBUTARY_UNROLL
      for (int c = 0; c < 4; ++c) {
        const StepElement old = {param.v[c], state[0].v[c], state[1].v[c]};
        const StepElement next = update<kFormula>(scalars, old, grad.v[c] * block.grad_scale);
        param.v[c] = next.p;
        state[0].v[c] = next.s0;
        state[1].v[c] = next.s1;
      }
      store<whole>(block.param_out, i, block.count, param);
      TRIBUTARY_UNROLL
      for (int slot = 0; slot < kSlots; ++slot) store<whole>(block.state_out[slot], i, block.count, state[slot]);
    }
  });
}

template <StepFormula kFormula>
void launch_step(const StepScalars& scalars, const BlockArgs& block, Stream stream) {
  launch(stream, blocks_for(block.count), step<kFormula>, scalars, block);
}

}  // namespace

void optimizer_step(const Optimizer& optimizer, const StepScalars& scalars, const BlockArgs& block, Stream stream) {
  switch (optimizer.formula()) {
    case StepFormula::kSgd:
      return launch_step<StepFormula::kSgd>(scalars, block, stream);
    case StepFormula::kSgdMomentum:
      return launch_step<StepFormula::kSgdMomentum>(scalars, block, stream);
    case StepFormula::kSgdNesterov:
      return launch_step<StepFormula::kSgdNesterov>(scalars, block, stream);
    case StepFormula::kAdam:
      return launch_step<StepFormula::kAdam>(scalars, block, stream);
    case StepFormula::kAdamW:
      return launch_step<StepFormula::kAdamW>(scalars, block, stream);
    case StepFormula::kAdagrad:
      return launch_step<StepFormula::kAdagrad>(scalars, block, stream);
    case StepFormula::kLion:
      return launch_step<StepFormula::kLion>(scalars, block, stream);
  }
}

}  // namespace tributary::kernels::cuda
