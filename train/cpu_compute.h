// The model on the CPU: the reference, whose bits other topologies agree with.
#pragma once

#include <memory>
#include <string>

#include "common/base/result.h"
#include "train/dataset.h"
#include "train/model_compute.h"

namespace tributary::train {

// `training` must outlive the result. It works on the bound memory itself.
// `note`: why it is not a GPU, for info(); may be empty.
Result<std::unique_ptr<ModelCompute>> make_cpu_compute(const MlpShape& shape, const ImageSet& training,
                                                       std::string note);

}  // namespace tributary::train
