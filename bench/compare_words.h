// Which resource binds, said in words: for people who want the answer and not the table.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tributary::bench {

// What used most of what it had.
struct Limits {
  std::string busiest_host;  // whose link, one way, was used most
  bool sending = false;      // which way
  double link_use = 0.0;     // its bytes over what its rate allows in the time
  double processors = 0.0;   // use of this machine's processors
  double drops_per_round = 0.0;
};

// From a result of tools/lab/lab_run.h; seconds: of one round.
Limits limits_of(const nlohmann::ordered_json& result, double seconds);

// One or two sentences about an exchange.
std::string what_binds_exchange(const Limits& limits);

// About a training step: where its time goes, and therefore what binds. exchange: the words for the exchange.
std::string what_binds_step(double compute_ms, double reduce_ms, double wait_ms, const Limits& limits);

}  // namespace tributary::bench
