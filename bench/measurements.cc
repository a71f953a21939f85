#include "bench/measurements.h"

namespace tributary::bench {

std::vector<Measurement> all_measurements() {
  return {pushpull(),  gpu_pipeline(), allreduce(),     optimizer(),      kernels(),        gpu_kernels(),
          gpu_costs(), staleness(),    elastic(),       stragglers(),     compare(),        checkpoint(),
          soak(),      echo_server(),  exchange_rank(), gloo_ring_rank(), staleness_rank(), gpu_peer()};
}

}  // namespace tributary::bench
