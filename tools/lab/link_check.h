// Checks a lab's limits: iperf3's goodput from host to host, compared with the configured rates.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "tools/lab/lab_config.h"
#include "tools/lab/lab_plan.h"

namespace tributary::lab {

// The share of a rate that a program can use: a full Ethernet packet of 1514 bytes has 1448 bytes of TCP payload (with
// time stamps).
inline constexpr double kPayloadShare = 1448.0 / 1514.0;
inline constexpr double kLinkTolerance = 0.03;

struct LinkCheck {
  std::string from, to;
  double mbit = 0.0;           // goodput
  double expected_mbit = 0.0;  // kPayloadShare of the slower of `from`'s way up and `to`'s way down
  std::uint64_t retransmits = 0;

  double ratio() const { return mbit / expected_mbit; }
  bool ok() const { return ratio() >= 1.0 - kLinkTolerance && ratio() <= 1.0 + kLinkTolerance; }
};

// Every host sends once and receives once, one pair at a time, about `seconds` each. `interrupted` is asked between
// pairs. Errors: kNotFound without iperf3, kStopped if interrupted, kUnavailable if a measurement fails.
Result<std::vector<LinkCheck>> check_links(const LabConfig& config, const LabPlan& plan, double seconds,
                                           const std::function<bool()>& interrupted);

// The goodput in 1e6 bits a second of `iperf3 --json`; its retransmits in the second.
Result<std::pair<double, std::uint64_t>> parse_iperf(std::string_view json);

nlohmann::ordered_json to_json(const LinkCheck& check);
Result<LinkCheck> link_check_from(const nlohmann::json& json);

// Payload bytes a second of the slowest link of a host with a worker: its rate, times what the checks found to come
// through (their median; kPayloadShare without checks).
double goodput_bytes_per_s(const LabConfig& config, const std::vector<LinkCheck>& checks);

}  // namespace tributary::lab
