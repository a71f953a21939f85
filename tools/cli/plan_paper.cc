#include "tools/cli/plan_paper.h"

#include <utility>

#include "common/base/assert.h"
#include "common/base/printed.h"
#include "tools/cli/plan.h"
#include "tools/cli/table.h"

namespace tributary::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kPayload = 2e9;  // 1e9 parameters of 2 bytes
constexpr double kCompute = 0.250;
constexpr LinkModel kNvSwitch{.bandwidth = 300e9, .latency_s = 1e-6};
constexpr LinkModel kInfiniBand{.bandwidth = 12.5e9, .latency_s = 5e-6};
constexpr std::uint32_t kGpusOfANode = 8;

// `nodes` machines of `gpus` GPUs. Bandwidths are those of the payload, as in the example.
Scenario cluster(ExchangeMode mode, std::uint32_t nodes, std::uint32_t gpus) {
  Scenario s;
  s.mode = mode;
  s.nodes = nodes;
  s.ranks_per_node = gpus;
  s.network = kInfiniBand;
  s.inside = kNvSwitch;
  s.goodput = 1.0;
  s.payload_bytes = kPayload;
  s.transfer_bytes = 0.0;  // the closed forms know no chunks
  s.compute_s = kCompute;
  return s;
}

template <class T>
T value_of(Result<T> result) {
  TRIB_ASSERT(result.has_value());
  return std::move(*result);
}

double half_payload(const Scenario& s) {
  return value_of(payload_for_efficiency(s, 0.5, kLeastPayload, kMostPayload));
}

std::string milliseconds(double seconds) {
  return printed("%.2f ms", 1e3 * seconds);
}

Json exchange_json(const Prediction& p) {
  return {{"exchange_ms", 1e3 * p.exchange_s}, {"step_ms", 1e3 * p.step_s}, {"efficiency", p.efficiency}};
}

}  // namespace

PaperFigures paper_figures() {
  const Scenario inside = cluster(ExchangeMode::kFlatRing, 1, 8), between = cluster(ExchangeMode::kFlatRing, 8, 1);
  const Scenario flat64 = cluster(ExchangeMode::kFlatRing, 8, 8),
                 hierarchical64 = cluster(ExchangeMode::kHierarchicalRing, 8, 8);
  Scenario halved = between;
  halved.payload_bytes = kPayload / 2;

  PaperFigures f;
  f.nvswitch = value_of(predict(inside));
  f.infiniband = value_of(predict(between));
  f.slowdown = f.infiniband.exchange_s / f.nvswitch.exchange_s;
  f.efficiency_lost = f.nvswitch.efficiency - f.infiniband.efficiency;
  f.hierarchical64 = value_of(predict(hierarchical64));
  f.flat64 = value_of(predict(flat64));
  f.half_payload_flat8 = half_payload(between);
  f.half_payload_flat64 = half_payload(flat64);
  f.half_payload_hierarchical64 = half_payload(hierarchical64);
  f.compute_for_80 = value_of(compute_for_efficiency(between, 0.8));
  f.compute_for_80_halved = value_of(compute_for_efficiency(halved, 0.8));
  f.halved_exchange_s = value_of(predict(halved)).exchange_s;
  const std::vector<std::uint32_t> gpus = {1, 2, 4, 8, 16, 32, 64};
  f.flat_curve = value_of(scaling_curve(cluster(ExchangeMode::kFlatRing, 1, kGpusOfANode), gpus));
  f.hierarchical_curve = value_of(scaling_curve(cluster(ExchangeMode::kHierarchicalRing, 1, kGpusOfANode), gpus));
  f.knee = f.flat_curve[knee_of(f.flat_curve)].ranks;
  return f;
}

std::string paper_text(const PaperFigures& f) {
  std::string text = "1e9 fp16 parameters (2 GB), ring all-reduce over 8 GPUs, 250 ms of compute without overlap\n\n";
  Table networks({"NETWORK", "BANDWIDTH", "LATENCY", "EXCHANGE", "STEP", "EFFICIENCY"});
  networks.add({"NVSwitch", "300 GB/s", "1 us", milliseconds(f.nvswitch.exchange_s), milliseconds(f.nvswitch.step_s),
                percent(f.nvswitch.efficiency)});
  networks.add({"InfiniBand", "12.5 GB/s", "5 us", milliseconds(f.infiniband.exchange_s),
                milliseconds(f.infiniband.step_s), percent(f.infiniband.efficiency)});
  text += networks.text();
  text += "The network makes the exchange " + printed("%.1f", f.slowdown) + " times slower and costs " +
          printed("%.1f", 100.0 * f.efficiency_lost) + " points of efficiency.\n\n";

  text += "64 GPUs as 8 machines of 8, NVSwitch inside, one InfiniBand link each\n\n";
  Table layouts({"LAYOUT", "EXCHANGE", "STEP", "EFFICIENCY"});
  layouts.add({"hierarchical", milliseconds(f.hierarchical64.exchange_s), milliseconds(f.hierarchical64.step_s),
               percent(f.hierarchical64.efficiency)});
  layouts.add(
      {"flat ring", milliseconds(f.flat64.exchange_s), milliseconds(f.flat64.step_s), percent(f.flat64.efficiency)});
  text += layouts.text() + "\n";

  text += "Payload at which the efficiency falls under 50 % (sought from 0.25 to 8 GB)\n";
  text += "  flat over the network, 8 GPUs    " + printed("%.3f GB", f.half_payload_flat8 / 1e9) + "\n";
  text += "  flat over the network, 64 GPUs   " + printed("%.3f GB", f.half_payload_flat64 / 1e9) + "\n";
  text += "  hierarchical, 64 GPUs            " + printed("%.3f GB", f.half_payload_hierarchical64 / 1e9) + "\n\n";

  text += "Compute time at which 80 % are left, 8 GPUs over the network\n";
  text += "  exchange of " + milliseconds(f.infiniband.exchange_s) + "            " +
          printed("%.2f s", f.compute_for_80) + "\n";
  text += "  half the bytes, " + milliseconds(f.halved_exchange_s) + "        " +
          printed("%.2f s", f.compute_for_80_halved) + "\n\n";

  text += "Efficiency by the number of GPUs, on machines of 8\n\n";
  Table curve({"GPUS", "FLAT RING", "HIERARCHICAL"});
  for (std::size_t i = 0; i < f.flat_curve.size(); ++i) {
    curve.add({std::to_string(f.flat_curve[i].ranks), percent(f.flat_curve[i].efficiency),
               percent(f.hierarchical_curve[i].efficiency)});
  }
  text += curve.text();
  text += "The knee is at " + std::to_string(f.knee) + " GPUs: beyond them the exchange leaves the machine.\n";
  return text;
}

Json paper_json(const PaperFigures& f) {
  Json curve = Json::array();
  for (std::size_t i = 0; i < f.flat_curve.size(); ++i) {
    curve.push_back({{"gpus", f.flat_curve[i].ranks},
                     {"flat", f.flat_curve[i].efficiency},
                     {"hierarchical", f.hierarchical_curve[i].efficiency}});
  }
  return {{"nvswitch_8", exchange_json(f.nvswitch)},
          {"infiniband_8", exchange_json(f.infiniband)},
          {"slowdown", f.slowdown},
          {"points_lost", 100.0 * f.efficiency_lost},
          {"hierarchical_64", exchange_json(f.hierarchical64)},
          {"flat_64", exchange_json(f.flat64)},
          {"half_efficiency_payload_bytes",
           {{"flat_8", f.half_payload_flat8},
            {"flat_64", f.half_payload_flat64},
            {"hierarchical_64", f.half_payload_hierarchical64}}},
          {"compute_s_for_80_percent", {{"all_bytes", f.compute_for_80}, {"half_the_bytes", f.compute_for_80_halved}}},
          {"efficiency_by_gpus", std::move(curve)},
          {"knee_gpus", f.knee}};
}

}  // namespace tributary::cli
