// The CUDA twin of Optimizer::step(), for all-reduce jobs whose parameters and optimizer state live on the devices. The
// interface (kernels/step/optimizer.h) stays on the host: scalars() are computed there.
#pragma once

#include "kernels/cuda_stream.h"
#include "kernels/step/optimizer.h"

namespace tributary::kernels::cuda {  // rules: kernels/cuda_stream.h

// As optimizer.step(scalars, block) with all pointers of `block` in device memory, bit for bit.
void optimizer_step(const Optimizer& optimizer, const StepScalars& scalars, const BlockArgs& block, Stream stream);

}  // namespace tributary::kernels::cuda
