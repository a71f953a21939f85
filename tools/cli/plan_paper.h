// The worked example that motivates the design: a billion fp16 parameters on 8 GPUs, inside one machine and over a
// network, and what follows from it for 64. Figures only, from the cost model; plan_paper_text prints them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/math/cost_model.h"

namespace tributary::cli {

struct PaperFigures {
  Prediction nvswitch, infiniband;  // a ring over 8 GPUs on either
  double slowdown = 0.0;            // of the exchange
  double efficiency_lost = 0.0;     // of 1
  Prediction hierarchical64, flat64;
  // Payload at which the efficiency falls to one half, between kLeastPayload and kMostPayload.
  double half_payload_flat8 = 0.0, half_payload_flat64 = 0.0, half_payload_hierarchical64 = 0.0;
  // Compute time at which the exchange over InfiniBand leaves 80 %, for all bytes and for half of them.
  double compute_for_80 = 0.0, compute_for_80_halved = 0.0;
  double halved_exchange_s = 0.0;
  std::vector<ScalingPoint> flat_curve, hierarchical_curve;  // 1 to 64 GPUs on machines of 8
  std::uint32_t knee = 0;                                    // GPUs after which the efficiency breaks down
};

inline constexpr double kLeastPayload = 0.25e9, kMostPayload = 8e9;

// Never fails: its input is fixed.
PaperFigures paper_figures();
std::string paper_text(const PaperFigures& figures);
nlohmann::ordered_json paper_json(const PaperFigures& figures);

}  // namespace tributary::cli
