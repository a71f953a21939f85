// The model on a GPU: cuBLAS (or our own matrix product), our own kernels, the training images in device memory.
//
// Parameters come from the bound memory and gradients go there (train/gradient_path.h). The device's own is read and
// written in place. What is on the host is copied, overlapping with the passes: a layer's forward pass waits for that
// layer's parameters only. Either way a tensor becomes ready when its gradient is in its place, while earlier layers
// are still being computed. The host thread sleeps, it does not spin, and only at the end.
//
// Same bits from run to run on the same kind of device with the same libraries; not the CPU's bits.
#pragma once

#include <memory>

#include "common/base/result.h"
#include "train/dataset.h"
#include "train/model_compute.h"

namespace tributary::train {

// `training` must outlive the result. kDevice, with the device, what was being done and CUDA's text; in a build without
// CUDA kInvalidArgument.
Result<std::unique_ptr<ModelCompute>> make_cuda_compute(const MlpShape& shape, const ImageSet& training, int device);

}  // namespace tributary::train
