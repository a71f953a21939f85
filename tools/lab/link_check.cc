#include "tools/lab/link_check.h"

#include <algorithm>
#include <thread>

#include "common/base/printed.h"
#include "common/config/json_text.h"
#include "tools/cluster/command.h"

namespace tributary::lab {
namespace {

constexpr std::uint16_t kPort = 5201;
constexpr int kConnectAttempts = 40;
constexpr std::chrono::milliseconds kConnectPause{50};
constexpr std::chrono::seconds kExtraTime{15};

Result<LinkCheck> measure(const LabConfig& config, const LabPlan& plan, std::size_t from, std::size_t to,
                          double seconds) {
  const std::string iperf = find_program("iperf3");
  if (iperf.empty()) {
    return fail(ErrorCode::kNotFound, "the program iperf3 is not installed; on Debian it is in the package iperf3");
  }
  const std::string port = std::to_string(kPort);
  auto server = Process::spawn({.argv = {iperf, "-s", "-1", "-p", port},
                                .log_file = "/dev/null",
                                .network_namespace = namespace_path(plan.hosts[to].network_namespace)});
  if (!server) return tl::unexpected(server.error());
  const std::string time = printed("%.1f", seconds);
  // The first second is not counted: the connection is still finding its speed.
  const Command client{.argv = {iperf, "-c", plan.hosts[to].address, "-p", port, "-t", time, "-O", "1", "-J"},
                       .timeout = std::chrono::seconds(static_cast<long>(seconds)) + kExtraTime,
                       .network_namespace = namespace_path(plan.hosts[from].network_namespace)};
  const auto attempt = [&] {
    return run_command(client).and_then([](const std::string& text) { return parse_iperf(text); });
  };
  auto result = attempt();
  for (int i = 0; i < kConnectAttempts && !result && result.error().message.find("refused") != std::string::npos; ++i) {
    std::this_thread::sleep_for(kConnectPause);  // the server is not listening yet
    result = attempt();
  }
  if (!result) return tl::unexpected(result.error());
  return LinkCheck{.from = plan.hosts[from].name,
                   .to = plan.hosts[to].name,
                   .mbit = result->first,
                   .expected_mbit = kPayloadShare * std::min(config.hosts[from].up_mbit, config.hosts[to].down_mbit),
                   .retransmits = result->second};
}

}  // namespace

Result<std::pair<double, std::uint64_t>> parse_iperf(std::string_view text) {
  const auto json = json_in(text);
  try {
    if (json.is_object() && json.contains("error")) {
      return fail(ErrorCode::kUnavailable, "iperf3: " + json.at("error").get<std::string>());
    }
    const auto& end = json.at("end");
    return std::pair{end.at("sum_received").at("bits_per_second").get<double>() * 1e-6,
                     end.at("sum_sent").value("retransmits", std::uint64_t{0})};
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kMalformed, std::string("iperf3 printed an unknown form: ") + e.what());
  }
}

Result<std::vector<LinkCheck>> check_links(const LabConfig& config, const LabPlan& plan, double seconds,
                                           const std::function<bool()>& interrupted) {
  std::vector<LinkCheck> checks;
  const std::size_t n = plan.hosts.size();
  if (n < 2) return fail(ErrorCode::kInvalidArgument, "a lab of one host has no pair to measure");
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (std::size_t i = 0; i + 1 < n; i += 2) pairs.insert(pairs.end(), {{i, i + 1}, {i + 1, i}});
  if (n % 2 == 1) pairs.insert(pairs.end(), {{n - 1, 0}, {0, n - 1}});
  for (const auto& [from, to] : pairs) {
    if (interrupted()) return fail(ErrorCode::kStopped, "interrupted");
    auto check = measure(config, plan, from, to, seconds);
    if (!check) return tl::unexpected(check.error());
    checks.push_back(std::move(*check));
  }
  return checks;
}

nlohmann::ordered_json to_json(const LinkCheck& c) {
  return {{"from", c.from},
          {"to", c.to},
          {"goodput_mbit", c.mbit},
          {"expected_mbit", c.expected_mbit},
          {"ratio", c.ratio()},
          {"retransmits", c.retransmits},
          {"ok", c.ok()}};
}

Result<LinkCheck> link_check_from(const nlohmann::json& json) {
  try {
    return LinkCheck{.from = json.at("from").get<std::string>(),
                     .to = json.at("to").get<std::string>(),
                     .mbit = json.at("goodput_mbit").get<double>(),
                     .expected_mbit = json.at("expected_mbit").get<double>(),
                     .retransmits = json.at("retransmits").get<std::uint64_t>()};
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kMalformed, std::string("not a measured link: ") + e.what());
  }
}

double goodput_bytes_per_s(const LabConfig& config, const std::vector<LinkCheck>& checks) {
  double slowest = 0.0;
  for (const LabHost& h : config.hosts) {
    const double mbit = std::min(h.up_mbit, h.down_mbit);
    if (h.worker && (slowest == 0.0 || mbit < slowest)) slowest = mbit;
  }
  std::vector<double> ratios;
  for (const LinkCheck& c : checks) ratios.push_back(c.ratio());
  std::ranges::sort(ratios);
  const std::size_t n = ratios.size();
  const double through = n == 0 ? 1.0 : (ratios[(n - 1) / 2] + ratios[n / 2]) / 2.0;
  return slowest * 1e6 / 8.0 * kPayloadShare * through;
}

}  // namespace tributary::lab
