// A sweep of the cost model over one quantity: CSV, and a plot of it by bench/draw.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/math/cost_model.h"

namespace tributary::cli {

struct Sweep {
  std::string over;  // payload (bytes), nodes, servers, bandwidth (bytes per second)
  double from = 0.0, to = 0.0;
  std::uint32_t steps = 0;  // points; payload and bandwidth: geometric, nodes and servers: whole numbers
};

inline constexpr std::uint32_t kMaxSweepSteps = 10000;

// Returns the values, ascending, without repeats. Errors: kInvalidArgument, naming the option.
Result<std::vector<double>> sweep_values(const Sweep& sweep);
// One line for each value and layout, below a header:
//   over,value,layout,exchange_s,exposed_s,step_s,efficiency,network_factor,worker_out_bytes,bottleneck
Result<std::string> sweep_csv(const Scenario& scenario, const Sweep& sweep);
// The first line.
inline constexpr const char* kSweepHeader =
    "over,value,layout,exchange_s,exposed_s,step_s,efficiency,network_factor,worker_out_bytes,bottleneck";

// Draws a CSV file of sweep_csv() into a picture (.svg or .png). kNotFound: no script next to the tool, no Python, or
// no matplotlib; the message says what to install.
Status plot_sweep(const std::string& csv_file, const std::string& picture);

}  // namespace tributary::cli
