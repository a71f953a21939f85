// LentMemory: how the trainer attaches. A trainer that computes on a GPU asks the worker daemon for memory of that
// device; where the worker cannot lend it, or this process cannot open it, gradients go through host memory.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "session/session.h"
#include "train/model_compute.h"

namespace tributary::train {

// Thread rule: one thread at a time.
class LentMemory {
 public:
  // opener: of the device that computes; null: host memory.
  explicit LentMemory(std::shared_ptr<DeviceMemoryOpener> opener);

  // Session::attach. When the lent memory cannot be opened, this says so (`note`) and attaches again without it, now
  // and from then on. If the worker insists on device memory, the error has both reasons.
  Result<std::unique_ptr<Session>> attach(SessionOptions options, const std::vector<TensorSpec>& tensors,
                                          const std::function<void(const std::string&)>& note);
  // What a session of so many tensors offers; valid until the next call.
  RankMemory of(Session& session, std::size_t tensors);
  // Before each round of a session that `of` was asked about: what it returned leads to this round's gradients.
  void next_round(Session& session);

 private:
  class Opener;
  std::shared_ptr<Opener> opener_;
  std::vector<const float*> parameters_;  // by tensor, in the session's memory
  std::vector<float*> gradients_;
};

}  // namespace tributary::train
