// An optimizer's formula is a struct with
//
//   kKind            its name and keys in configurations (kernels/step/optimizer.h), in the order of an enum, by which
//                    the formula finds their values in OptimizerOptions::own
//   kState           the names of its state arrays, at most kMaxSlots
//   fits(options)    of the formulae with one kind's name, is this the one?
//   initial_state(options)
//   scalars(options, t)
//   update(scalars, old, g)   one element's step; g: the mean gradient. Compiled for every instruction set and for
//                             devices (kernels/dispatch.h), so that all give the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "kernels/dispatch.h"
#include "kernels/step/optimizer.h"

namespace tributary::kernels {

// One parameter and its state, as formulae take and return them.
struct StepElement {
  float p = 0.0f, s0 = 0.0f, s1 = 0.0f;
};

template <std::size_t kSlots>
using StateNames = std::array<std::string_view, kSlots>;

struct Formula {  // what most have
  static bool fits(const OptimizerOptions&) { return true; }
  static float initial_state(const OptimizerOptions&) { return 0.0f; }
};

}  // namespace tributary::kernels
