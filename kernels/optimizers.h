// All optimizers, a line each. Code for every formula expands the list: a macro, because a loop that is compiled for
// several instruction sets must be a plain function (kernels/dispatch.h).
#pragma once

#include "kernels/adagrad.h"
#include "kernels/adamw.h"
#include "kernels/lion.h"
#include "kernels/mean.h"
#include "kernels/sgd.h"

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
