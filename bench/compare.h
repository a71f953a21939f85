// `tributary bench compare`: the variants of a lab file in turn on the same lab, again and again (A B A B), beside the
// cost model's prediction.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "common/result.h"
#include "lab/lab.h"
#include "lab/lab_run.h"

namespace tributary::bench {

struct CompareOptions {
  lab::ExchangeOptions exchange;                 // and the run's folder, overrides for all variants, interruption
  std::uint32_t repetitions = 3;                 // of every variant
  bool with_job = true;                          // also train the lab file's job, if it has one
  std::function<void(const std::string&)> tell;  // one line at a time
};

// Variants without servers in a lab that has none, and those that the file does not give:
//   servers as the file has them; flat ring; Gloo's own ring
std::vector<lab::LabVariant> variants_of(const lab::LabConfig& config);

// {lab {name, rate_mbit, hosts[], links[], goodput_bytes_per_s, goodput_from}, model_bytes, repetitions, variants
// [{name,
//   mode, overrides[], exchange {seconds {median, min, max, all[]}, ratio, wire_bytes [{host, sent, received}] (of a
//   round), cpu_seconds (of a round), machine_busy, drops, retransmits, binds (in words), predicted {seconds,
//   bottleneck, network_s, latency_s, tail_s, inside_s} or null, predicted_why_not, error (measured over predicted,
//   less 1)}, job (or null) {step_seconds {...}, step_split, seconds, test_accuracy, train_loss, digest, rounds,
//   samples, model_bytes, wire_bytes, wire_bytes_per_sample (all links together), cpu_seconds, machine_busy, drops,
//   retransmits, binds, predicted, error, curve}}],
//  speedups [{of, over, times}] (exchange medians; over the last variant)}
Result<nlohmann::ordered_json> run_compare(const lab::Lab& lab, const CompareOptions& options);

}  // namespace tributary::bench
