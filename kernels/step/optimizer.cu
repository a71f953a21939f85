// One kernel for every optimizer: loads, the formula that the CPU uses too, stores.
#include "kernels/device.cuh"
#include "kernels/step/cuda_optimizer.h"
#include "kernels/step/optimizers.h"

namespace tributary::kernels::cuda {
namespace {

template <typename F>
__global__ void __launch_bounds__(kThreads) step(const StepScalars scalars, const BlockArgs block) {
  constexpr int kSlots = static_cast<int>(F::kState.size());
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
        const StepElement next = F::update(scalars, old, grad.v[c] * block.grad_scale);
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

}  // namespace

void optimizer_step(const Optimizer& optimizer, const StepScalars& scalars, const BlockArgs& block, Stream stream) {
  std::size_t place = 0;
#define TRIBUTARY_LAUNCH(F) \
  if (optimizer.formula() == place++) return launch(stream, blocks_for(block.count), step<F>, scalars, block);
  TRIBUTARY_OPTIMIZERS(TRIBUTARY_LAUNCH)
#undef TRIBUTARY_LAUNCH
}

}  // namespace tributary::kernels::cuda
