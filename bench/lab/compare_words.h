// The resource that binds, in words: for readers who want the answer and not the table.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tributary::bench {

// The use of resources relative to their capacity.
struct Limits {
  std::string busiest_host;  // of the link that was used most in one direction
  bool sending = false;      // that direction
  double link_use = 0.0;     // its bytes over what its rate allows in the time
  double processors = 0.0;   // use of this machine's processors
  double drops_per_round = 0.0;
};

// Computes limits from a result of tools/lab/lab_run.h; seconds: of one round.
Limits limits_of(const nlohmann::ordered_json& result, double seconds);

// Describes an exchange in one or two sentences.
std::string what_binds_exchange(const Limits& limits);

// Describes a training step: its time split, and so the resource that binds. limits: for the words on the exchange.
std::string what_binds_step(double compute_ms, double reduce_ms, double wait_ms, const Limits& limits);

}  // namespace tributary::bench
