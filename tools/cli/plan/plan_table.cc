#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "common/base/printed.h"
#include "common/base/quantity.h"
#include "tools/cli/parts/table.h"
#include "tools/cli/plan/plan.h"

namespace tributary::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kAsGood = 1.03;  // times the best step: as good, so the simpler layout is recommended

// As "12.5 %".
std::string percent(double fraction) {
  return printed("%.1f %%", 100.0 * fraction);
}

// Busiest host of a kind, each way.
struct Traffic {
  double out = 0.0, in = 0.0;
};

Traffic busiest(const Prediction& p, bool worker) {
  Traffic most;
  for (const HostTraffic& host : p.hosts) {
    if (host.worker != worker) continue;
    most.out = std::max(most.out, host.out_bytes);
    most.in = std::max(most.in, host.in_bytes);
  }
  return most;
}

std::string traffic_text(const Prediction& p, bool worker) {
  const Traffic most = busiest(p, worker);
  if (most.out == 0.0 && most.in == 0.0) return "-";
  if (most.out == most.in) return bytes_in_words(most.out);
  return bytes_in_words(most.out) + " / " + bytes_in_words(most.in);
}

// Tributary's modes, the simplest to run first, should two be equally fast.
constexpr ExchangeMode kPreference[] = {ExchangeMode::kServersColocated, ExchangeMode::kServersDedicated,
                                        ExchangeMode::kServersMixed, ExchangeMode::kHierarchicalRing,
                                        ExchangeMode::kFlatRing};

std::size_t choose(const std::vector<Prediction>& layouts) {
  double best = std::numeric_limits<double>::infinity();
  for (const Prediction& p : layouts) best = std::min(best, p.step_s);
  for (const ExchangeMode mode : kPreference) {
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      if (layouts[i].mode == mode && layouts[i].step_s <= best * kAsGood) return i;
    }
  }
  return 0;
}

const Prediction* fastest_ring(const std::vector<Prediction>& layouts) {
  const Prediction* fastest = nullptr;
  for (const Prediction& p : layouts) {
    const bool ring = p.mode == ExchangeMode::kFlatRing || p.mode == ExchangeMode::kHierarchicalRing;
    if (ring && (fastest == nullptr || p.step_s < fastest->step_s)) fastest = &p;
  }
  return fastest;
}

// The best step among the layouts of another scenario.
Result<Prediction> best_of(const Scenario& scenario) {
  std::vector<Prediction> layouts;
  for (const ExchangeMode mode : modes_for(scenario)) {
    Scenario s = scenario;
    s.mode = mode;
    auto prediction = predict(s);
    if (!prediction) return tl::unexpected<Error>(prediction.error());
    layouts.push_back(std::move(*prediction));
  }
  return layouts[choose(layouts)];
}

std::string sentence_of_choice(const Scenario& s, const Plan& plan) {
  const Prediction& best = plan.layouts[plan.best];
  std::string text = "Use " + mode_in_words(best.mode) + ": " + seconds_in_words(best.step_s) + " a step";
  if (s.compute_s > 0.0) text += ", of which " + percent(best.efficiency) + " are not spent waiting";
  const Prediction* ring = fastest_ring(plan.layouts);
  if (uses_servers(best.mode) && ring != nullptr && ring->step_s > best.step_s * kAsGood) {
    text += "; " + printed("%.2f", ring->step_s / best.step_s) + " times as fast as all-reduce (" +
            mode_in_words(ring->mode) + ")";
  } else if (uses_servers(best.mode) && ring != nullptr && best.exchange_s > 0.0) {
    text += "; all-reduce (" + mode_in_words(ring->mode) +
            ") would be as fast, but with servers the job survives the loss of a node";
  }
  return text + ".";
}

struct WhatIf {
  std::string what;
  Scenario scenario;
};

std::vector<WhatIf> what_ifs(const Scenario& s) {
  std::vector<WhatIf> list;
  Scenario more = s;
  ++more.servers;
  if (!more.server_bandwidths.empty()) more.server_bandwidths.push_back(more.server_bandwidths.back());
  list.push_back({s.servers == 0 ? "one server host of its own" : "one more server host", std::move(more)});
  if (s.wire.push == 1.0 && s.wire.pull == 1.0) {
    Scenario half = s, eighth = s;
    half.wire = wire_ratio(EncodingId::kBf16, EncodingId::kBf16);
    eighth.wire = wire_ratio(EncodingId::kInt8, EncodingId::kInt8Delta);
    list.push_back({"bf16 both ways", std::move(half)});
    list.push_back({"int8 push and int8-delta pull", std::move(eighth)});
  }
  Scenario fast = s;
  fast.network.bandwidth *= 2.0;
  for (double& rate : fast.node_bandwidths) rate *= 2.0;
  for (double& rate : fast.server_bandwidths) rate *= 2.0;
  list.push_back({"links of twice the bandwidth", std::move(fast)});
  return list;
}

Result<std::vector<std::string>> advise(const Scenario& s, const Plan& plan) {
  const Prediction& best = plan.layouts[plan.best];
  std::vector<std::string> advice = {sentence_of_choice(s, plan)};
  if (best.exchange_s <= 0.0) return advice;
  const double waiting = best.exposed_s / (uses_servers(best.mode) ? s.local_steps : 1u) / best.step_s;
  if (s.compute_s > 0.0 && waiting < 0.05) {
    advice.push_back("The network hardly matters: the step waits " + percent(waiting) +
                     " of its time for it. Faster links or encodings would gain no more than that.");
    return advice;
  }
  advice.push_back("What binds the exchange: " + best.bottleneck + ".");
  std::string others;
  for (const WhatIf& what_if : what_ifs(s)) {
    const auto prediction = best_of(what_if.scenario);
    if (!prediction) return tl::unexpected<Error>(prediction.error());
    if (prediction->step_s > best.step_s * 0.97) continue;
    others += (others.empty() ? "" : ", ") + what_if.what + " " + seconds_in_words(prediction->step_s);
  }
  if (!others.empty()) advice.push_back("A step would take, with the best layout for each: " + others + ".");
  for (const Prediction& p : plan.layouts) {
    if (p.mode != ExchangeMode::kServersMixed) continue;
    const bool idle = std::ranges::all_of(p.hosts, [](const HostTraffic& h) { return h.worker || h.share == 0.0; });
    if (idle) {
      advice.push_back(
          "The best shares leave the server hosts idle: beside the workers the servers' traffic uses the direction "
          "that "
          "the encodings leave free.");
    }
  }
  return advice;
}

Json traffic_json(const Traffic& t) {
  return {{"out_bytes", t.out}, {"in_bytes", t.in}};
}

}  // namespace

std::string mode_in_words(ExchangeMode mode) {
  static constexpr const char* kWords[] = {"flat ring", "hierarchical ring", "servers on machines of their own",
                                           "servers beside the workers", "servers on both"};
  static_assert(std::size(kWords) == static_cast<std::size_t>(ExchangeMode::kServersMixed) + 1);
  const auto number = static_cast<std::size_t>(mode);
  return number < std::size(kWords) ? kWords[number] : "?";
}

std::vector<ExchangeMode> modes_for(const Scenario& s) {
  std::vector<ExchangeMode> modes = {ExchangeMode::kFlatRing};
  if (s.ranks_per_node > 1 && s.nodes > 1) modes.push_back(ExchangeMode::kHierarchicalRing);
  if (s.servers > 0) modes.push_back(ExchangeMode::kServersDedicated);
  modes.push_back(ExchangeMode::kServersColocated);
  if (s.servers > 0) modes.push_back(ExchangeMode::kServersMixed);
  return modes;
}

Result<Plan> make_plan(const Scenario& scenario) {
  Plan plan;
  plan.scenario = scenario;
  for (const ExchangeMode mode : modes_for(scenario)) {
    Scenario s = scenario;
    s.mode = mode;
    auto prediction = predict(s);
    if (!prediction) return tl::unexpected<Error>(prediction.error());
    plan.layouts.push_back(std::move(*prediction));
  }
  plan.best = choose(plan.layouts);
  auto advice = advise(scenario, plan);
  if (!advice) return tl::unexpected<Error>(advice.error());
  plan.advice = std::move(*advice);
  return plan;
}

std::string plan_text(const Plan& plan) {
  const Scenario& s = plan.scenario;
  std::string text = counted(s.nodes, "node");
  if (s.ranks_per_node > 1) text += " of " + std::to_string(s.ranks_per_node) + " ranks";
  if (s.servers > 0) text += ", " + counted(s.servers, "server host");
  text += ", links of " + bandwidth_in_words(s.network.bandwidth) + " each way (" + percent(s.goodput) + " payload, " +
          seconds_in_words(s.network.latency_s) + "), " + bytes_in_words(s.payload_bytes) + " to exchange";
  if (s.wire.push != 1.0 || s.wire.pull != 1.0) {
    text += "; servers: " + printed("%.3g", 1.0 / s.wire.push) + " times smaller pushes, " +
            printed("%.3g", 1.0 / s.wire.pull) + " times smaller pulls; rings carry fp32";
  }
  if (s.local_steps > 1) text += "; servers: one exchange in " + std::to_string(s.local_steps) + " local steps";
  text += "\n\n";
  const bool compute = s.compute_s > 0.0;
  Table table({"LAYOUT", "EXCHANGE", "OF M/B", "EXPOSED", "STEP", "EFFICIENCY", "WORKER HOST OUT / IN",
               "SERVER HOST OUT / IN", "BOTTLENECK"});
  for (const Prediction& p : plan.layouts) {
    table.add({mode_in_words(p.mode), seconds_in_words(p.exchange_s), printed("%.3f", p.network_factor),
               seconds_in_words(p.exposed_s), seconds_in_words(p.step_s), compute ? percent(p.efficiency) : "-",
               traffic_text(p, true), traffic_text(p, false), p.bottleneck});
  }
  text += table.text() + "\n";
  for (const std::string& sentence : plan.advice) text += sentence + "\n";
  return text;
}

Json plan_json(const Plan& plan) {
  const Scenario& s = plan.scenario;
  Json layouts = Json::array();
  for (const Prediction& p : plan.layouts) {
    Json server_shares = Json::array(), worker_shares = Json::array();
    for (const HostTraffic& host : p.hosts) (host.worker ? worker_shares : server_shares).push_back(host.share);
    layouts.push_back({{"layout", to_string(p.mode)},
                       {"exchange_s", p.exchange_s},
                       {"inside_s", p.inside_s},
                       {"network_s", p.network_s},
                       {"latency_s", p.latency_s},
                       {"tail_s", p.tail_s},
                       {"exposed_s", p.exposed_s},
                       {"step_s", p.step_s},
                       {"efficiency", s.compute_s > 0.0 ? Json(p.efficiency) : Json(nullptr)},
                       {"network_factor", p.network_factor},
                       {"worker_host", traffic_json(busiest(p, true))},
                       {"server_host", traffic_json(busiest(p, false))},
                       {"worker_shares", std::move(worker_shares)},
                       {"server_shares", std::move(server_shares)},
                       {"bottleneck", p.bottleneck}});
  }
  return {{"nodes", s.nodes},
          {"ranks_per_node", s.ranks_per_node},
          {"servers", s.servers},
          {"bandwidth_bytes_per_s", s.network.bandwidth},
          {"latency_s", s.network.latency_s},
          {"goodput", s.goodput},
          {"payload_bytes", s.payload_bytes},
          {"push_ratio", s.wire.push},
          {"pull_ratio", s.wire.pull},
          {"compute_s", s.compute_s},
          {"local_steps", s.local_steps},
          {"overlap", s.overlap},
          {"layouts", std::move(layouts)},
          {"best", to_string(plan.layouts[plan.best].mode)},
          {"advice", plan.advice}};
}

}  // namespace tributary::cli
