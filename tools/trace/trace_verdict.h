// The resource that binds a traced job, and remedies, in words. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/math/cost_model.h"
#include "tools/trace/trace_sums.h"

namespace tributary::trace {

enum class Binding : std::uint8_t { kComputing, kNetwork, kServers, kMemory };
std::string to_text(Binding binding);

// Which of the four is busy for the longest in a round, and which comes next.
struct Verdict {
  Binding binding = Binding::kComputing, next = Binding::kComputing;
  double busy_s = 0.0, next_s = 0.0, round_s = 0.0;
};
// REQUIRES: sums.rounds > 0.
Verdict verdict_of(const Sums& sums);

// Something to change, and how long a round would take then.
struct Remedy {
  std::string what;
  double round_s = 0.0;
};
// exchange: of the job as it is, by the rates of the trace; the cost model answers with it. Nothing: no model fits, and
// what the network could do is left out. Best first.
std::vector<Remedy> remedies_for(const Verdict& verdict, const Sums& sums, const std::optional<Scenario>& exchange);

std::string in_words(const Verdict& verdict, const Sums& sums, const std::vector<Remedy>& remedies);

}  // namespace tributary::trace
