// StepSettings: values of one step that trainers send with the gradients of a group of tensors, because a schedule of
// theirs changes them (docs/torch.md). Each may be left to the job's configuration.
#pragma once

#include <boost/container/small_vector.hpp>
#include <span>
#include <string>

#include "common/base/message_fields.h"
#include "kernels/step/optimizer.h"

namespace tributary {

struct StepSettings {
  static constexpr double kConfigured = -1.0;

  double lr = kConfigured;  // configured: as the job's schedule has it
  double weight_decay = kConfigured;
  double momentum = kConfigured;  // SGD's; of Adam, AdamW and Lion beta1

  // Whether each is kConfigured, or finite and not negative.
  bool sound() const;
  // Options of a step of `optimizer` with these.
  kernels::OptimizerOptions over(const kernels::Optimizer& optimizer) const;
  // "lr 0.1, weight_decay 0.01": those that are given.
  std::string in_words() const;
  bool operator==(const StepSettings&) const = default;

  static void fields(auto& m, auto&& field) {
    field(m.lr, TRIB_WIRE(Lr));
    field(m.weight_decay, TRIB_WIRE(WeightDecay));
    field(m.momentum, TRIB_WIRE(Momentum));
  }
};

// One for each group of a chunk, or none: all are as the job has them.
using SaidSettings = std::span<const StepSettings>;

// The same, in memory of its own: that of its holder for a chunk in up to two groups, which is nearly every chunk
// (weights and biases, say).
using HeldSettings = boost::container::small_vector<StepSettings, 2>;

// Returns whether steps of `optimizer` can use them: they are sound, and its formula has these values and stays the
// same.
bool takes(const kernels::Optimizer& optimizer, const StepSettings& settings);

}  // namespace tributary
