// All optimizers, a line each. Code for every formula expands the list: a macro, because a loop that is compiled for
// several instruction sets must be a plain function (kernels/dispatch.h).
#pragma once

#include "kernels/step/adagrad.h"
#include "kernels/step/adamw.h"
#include "kernels/step/lion.h"
#include "kernels/step/mean.h"
#include "kernels/step/sgd.h"

// clang-format off
#define TRIBUTARY_OPTIMIZERS(each) \
  each(Sgd)                        \
  each(SgdMomentum)                \
  each(SgdNesterov)                \
  each(Adam)                       \
  each(AdamW)                      \
  each(Adagrad)                    \
  each(Lion)                       \
  each(Mean)
// clang-format on
