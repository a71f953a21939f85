#include "bench/lab/compare_words.h"

#include <algorithm>

#include "common/base/printed.h"

namespace tributary::bench {
namespace {

constexpr double kFull = 0.85;  // of a link or of the processors: it binds
constexpr double kMostOfStep = 0.6;

std::string link_words(const Limits& l) {
  return printed("the link of %s while %s (%.0f %% of its rate)", l.busiest_host.c_str(),
                 l.sending ? "sending" : "receiving", 100 * l.link_use);
}

}  // namespace

Limits limits_of(const nlohmann::ordered_json& result, double seconds) {
  Limits limits;
  const double rounds = std::max(result.at("rounds").get<double>(), 1.0);
  const double time = std::max(seconds * rounds, 1e-9);
  const auto consider = [&](const nlohmann::ordered_json& host, const char* bytes, const char* mbit, bool sending) {
    const double use = host.at(bytes).get<double>() / (host.at(mbit).get<double>() * 1e6 / 8.0 * time);
    if (use <= limits.link_use) return;
    limits.link_use = use;
    limits.sending = sending;
    limits.busiest_host = host.at("name").get<std::string>();
  };
  for (const auto& host : result.at("hosts")) {
    consider(host, "wire_bytes_sent", "up_mbit", true);
    consider(host, "wire_bytes_received", "down_mbit", false);
  }
  limits.processors = result.at("machine_busy").get<double>();
  limits.drops_per_round = result.at("drops").get<double>() / rounds;
  return limits;
}

std::string what_binds_exchange(const Limits& l) {
  std::string text;
  if (l.link_use >= kFull) {
    text = "The network binds: " + link_words(l) + ".";
    if (l.processors >= kFull) {
      text += printed(" The processors of this machine, which all hosts share, are almost as full (%.0f %%).",
                      100 * l.processors);
    }
  } else if (l.processors >= kFull) {
    text = printed(
        "The processors of this machine bind (%.0f %% busy; all hosts share them), so that this says little about the "
        "network: %s is the busiest. Lower the rate.",
        100 * l.processors, link_words(l).c_str());
  } else {
    text = printed(
        "Nothing is full: waiting binds (latency, windows, one step after the other). The busiest link is "
        "%s, the processors are %.0f %% busy.",
        link_words(l).c_str(), 100 * l.processors);
  }
  if (l.drops_per_round >= 1.0)
    text += printed(" %.0f packets a round were dropped: the figure shows that as well.", l.drops_per_round);
  return text;
}

std::string what_binds_step(double compute_ms, double reduce_ms, double wait_ms, const Limits& l) {
  const double step = std::max(compute_ms + reduce_ms + wait_ms, 1e-9);
  const double compute = compute_ms / step, wait = wait_ms / step;
  const std::string shares =
      printed("Computing takes %.0f %% of a step, waiting for the exchange %.0f %%.", 100 * compute, 100 * wait);
  if (compute >= kMostOfStep)
    return "Computing binds; the network does not matter here. " + shares +
           printed(" The busiest link is used at %.0f %%.", 100 * l.link_use);
  if (wait >= kMostOfStep) return "The exchange binds. " + shares + " " + what_binds_exchange(l);
  return "Computing and the exchange bind in turn. " + shares + " " + what_binds_exchange(l);
}

}  // namespace tributary::bench
