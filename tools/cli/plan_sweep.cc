#include "tools/cli/plan_sweep.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "common/base/printed.h"
#include "tools/cli/plan.h"
#include "tools/cli/plot_script.h"

namespace tributary::cli {
namespace {

bool counts(const std::string& over) {
  return over == "nodes" || over == "servers";
}

std::string shown(double value) {
  return printed("%.9g", value);
}

Scenario at(const Scenario& scenario, const std::string& over, double value) {
  Scenario s = scenario;
  if (over == "payload") s.payload_bytes = value;
  if (over == "nodes") s.nodes = static_cast<std::uint32_t>(value);
  if (over == "servers") s.servers = static_cast<std::uint32_t>(value);
  if (over == "bandwidth") s.network.bandwidth = value;
  return s;
}

}  // namespace

Result<std::vector<double>> sweep_values(const Sweep& sweep) {
  const auto refuse = [](const std::string& what) { return fail(ErrorCode::kInvalidArgument, what); };
  const bool whole = counts(sweep.over);
  if (!whole && sweep.over != "payload" && sweep.over != "bandwidth") {
    return refuse("--sweep " + sweep.over + " is not known; use payload, nodes, servers or bandwidth");
  }
  const double least = sweep.over == "servers" ? 0.0 : whole ? 1.0 : 0.0;
  for (const auto& [name, value] : {std::pair{"--from", sweep.from}, std::pair{"--to", sweep.to}}) {
    if (std::isfinite(value) && value >= least && (whole || value > 0.0) && (!whole || value == std::floor(value))) {
      continue;
    }
    return refuse(std::string(name) + " " + shown(value) + " does not suit --sweep " + sweep.over + "; it must be " +
                  (whole ? "a whole number of at least " + shown(least) : std::string("positive")));
  }
  if (sweep.to < sweep.from) {
    return refuse("--from " + shown(sweep.from) + " is above --to " + shown(sweep.to) + "; exchange them");
  }
  if (sweep.steps < 1 || sweep.steps > kMaxSweepSteps) {
    return refuse("--steps " + std::to_string(sweep.steps) + " must be from 1 to " + std::to_string(kMaxSweepSteps));
  }
  std::vector<double> values;
  for (std::uint32_t i = 0; i < sweep.steps; ++i) {
    const double part = sweep.steps == 1 ? 0.0 : static_cast<double>(i) / (sweep.steps - 1);
    double value = whole ? std::round(sweep.from + part * (sweep.to - sweep.from))
                         : sweep.from * std::pow(sweep.to / sweep.from, part);
    if (i + 1 == sweep.steps && sweep.steps > 1) value = sweep.to;
    if (values.empty() || value > values.back()) values.push_back(value);
  }
  return values;
}

Result<std::string> sweep_csv(const Scenario& scenario, const Sweep& sweep) {
  const auto values = sweep_values(sweep);
  if (!values) return tl::unexpected<Error>(values.error());
  std::string csv = std::string(kSweepHeader) + "\n";
  for (const double value : *values) {
    Scenario s = at(scenario, sweep.over, value);
    for (const ExchangeMode mode : modes_for(s)) {
      s.mode = mode;
      const auto p = predict(s);
      if (!p) return tl::unexpected<Error>(p.error());
      double worker_out = 0.0;
      for (const HostTraffic& host : p->hosts)
        worker_out = host.worker ? std::max(worker_out, host.out_bytes) : worker_out;
      csv += sweep.over + "," + shown(value) + "," + std::string(to_string(mode));
      for (const double number :
           {p->exchange_s, p->exposed_s, p->step_s, p->efficiency, p->network_factor, worker_out}) {
        csv += "," + shown(number);
      }
      csv += ",\"" + p->bottleneck + "\"\n";
    }
  }
  return csv;
}

Status plot_sweep(const std::string& csv_file, const std::string& picture) {
  return draw_plots("sweep", csv_file, picture);
}

}  // namespace tributary::cli
