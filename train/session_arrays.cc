#include "train/session_arrays.h"

namespace tributary::train {

RankMemory SessionArrays::of(Session& session, std::size_t tensors) {
  const bool on_device = session.on_device();
  parameters_.clear();
  gradients_.clear();
  for (std::size_t t = 0; t < tensors; ++t) {
    parameters_.push_back(on_device ? session.parameters_device(t) : session.parameters(t).data());
    gradients_.push_back(on_device ? session.gradient_device(t) : session.gradient(t).data());
  }
  return {.parameters = parameters_,
          .gradients = gradients_,
          .lasting = true,
          .place = on_device ? MemoryPlace::kDevice : MemoryPlace::kHost};
}

void SessionArrays::next_round(Session& session) {
  if (session.on_device()) return;
  for (std::size_t t = 0; t < gradients_.size(); ++t) gradients_[t] = session.gradient(t).data();
}

}  // namespace tributary::train
