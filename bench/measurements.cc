#include "bench/measurements.h"

namespace tributary::bench {

std::vector<Measurement> all_measurements() {
#define TRIBUTARY_MAKE(name) name(),
  return {TRIBUTARY_MEASUREMENTS(TRIBUTARY_MAKE)};
#undef TRIBUTARY_MAKE
}

}  // namespace tributary::bench
