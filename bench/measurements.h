// All measurements, a line each: the functions that make them, each in its own file.
#pragma once

#include <vector>

#include "bench/measurement.h"

// clang-format off
#define TRIBUTARY_MEASUREMENTS(each)       \
  each(pushpull)                           \
  each(gpu_pipeline)                       \
  each(kernels)                            \
  each(gpu_kernels)                        \
  each(gpu_costs)                          \
  each(compare)                            \
  each(torch)                              \
  /* Processes that some of them start. */ \
  each(echo_server)                        \
  each(exchange_rank)                      \
  each(gloo_ring_rank)
// clang-format on

namespace tributary::bench {

#define TRIBUTARY_DECLARE(name) Measurement name();
TRIBUTARY_MEASUREMENTS(TRIBUTARY_DECLARE)
#undef TRIBUTARY_DECLARE

std::vector<Measurement> all_measurements();

}  // namespace tributary::bench
