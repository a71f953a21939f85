// The list of all measurements.
#pragma once

#include <vector>

#include "bench/measurement.h"

namespace tributary::bench {

Measurement pushpull();
Measurement gpu_pipeline();
Measurement allreduce();
Measurement optimizer();
Measurement kernels();
Measurement gpu_kernels();
Measurement gpu_costs();
Measurement staleness();
Measurement elastic();
Measurement stragglers();
Measurement compare();
Measurement checkpoint();
Measurement soak();
// Processes that some of them start.
Measurement echo_server();
Measurement exchange_rank();
Measurement gloo_ring_rank();
Measurement staleness_rank();
Measurement gpu_peer();

std::vector<Measurement> all_measurements();

}  // namespace tributary::bench
