// A round gate's decision about a round: enough to apply it, to apply it again after a loss, and to decide about the
// next one (common/config/gate_rules.h). Travels in messages, and is stored with every chunk.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/base/message_fields.h"

namespace tributary {

enum class GateVerdict : std::uint8_t {
  kNone = 0,     // the job has no gate, or there is no decision yet
  kApplied = 1,  // as it was pushed
  kClipped = 2,  // made shorter
  kSkipped = 3,  // some values were not finite: no server applies it
  kVoid = 4,     // no node had samples; also the state of a fresh job
};
constexpr KnownValues known_values(GateVerdict) {
  return {static_cast<std::uint16_t>(GateVerdict::kVoid), "the gate's verdict"};
}

struct GateDecision {
  GateVerdict verdict = GateVerdict::kNone;
  double coefficient = 0.0;       // factor of the mean of the pushes
  double norm = 0.0;              // of the unscaled mean gradient; 0 unless applied or clipped
  float loss_scale = 1.0f;        // for the next round
  std::uint32_t good_rounds = 0;  // in a row, since the scale last changed
  bool known() const { return verdict != GateVerdict::kNone; }
  bool applies() const { return verdict == GateVerdict::kApplied || verdict == GateVerdict::kClipped; }
  // Returns whether a gate can decide this. Steps are multiplied by these values, so impossible ones must be refused.
  bool sound() const {
    return verdict <= GateVerdict::kVoid && std::isfinite(coefficient) && coefficient >= 0.0 && std::isfinite(norm) &&
           norm >= 0.0 && std::isfinite(loss_scale) && loss_scale > 0.0f;
  }
  bool operator==(const GateDecision&) const = default;

  static void fields(auto& m, auto&& field) {
    field(m.verdict, TRIB_WIRE(Verdict));
    field(m.loss_scale, TRIB_WIRE(LossScale));
    field(m.good_rounds, TRIB_WIRE(GoodRounds));
    field(m.coefficient, TRIB_WIRE(Coefficient));
    field(m.norm, TRIB_WIRE(Norm));
  }
  void check() {
    if (!known()) *this = {};
    if (!sound()) throw Malformed{"the round gate's decision has a coefficient, norm or loss scale that cannot be"};
  }
};

// Facts of a chunk's sum that the gate needs.
struct GateFacts {
  double sum_squares = 0.0;
  std::uint64_t weight = 0;  // of the pushes
  bool finite = true;
  bool operator==(const GateFacts&) const = default;
};

}  // namespace tributary
