#include "tools/trace/trace_verdict.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/base/printed.h"
#include "common/base/quantity.h"

namespace tributary::trace {
namespace {

// A remedy that takes less off a round is not worth a word.
constexpr double kWorth = 0.02;
// A node that comes last so often, by so much of a round, is named.
constexpr double kOften = 0.75, kLate = 0.05;

int percent(double part, double whole) {
  return whole > 0.0 ? static_cast<int>(100.0 * part / whole + 0.5) : 0;
}

// Changes to an exchange over servers. Bytes: half of what is sent now.
std::vector<std::pair<std::string, Scenario>> changes(const Scenario& now) {
  std::vector<std::pair<std::string, Scenario>> all;
  Scenario faster = now;
  faster.network.bandwidth *= 2.0;
  for (double& link : faster.node_bandwidths) link *= 2.0;
  for (double& link : faster.server_bandwidths) link *= 2.0;
  all.emplace_back("links twice as fast", faster);
  Scenario wider = now;
  ++wider.servers;
  if (wider.mode == ExchangeMode::kServersColocated) wider.mode = ExchangeMode::kServersMixed;
  if (!wider.server_bandwidths.empty()) wider.server_bandwidths.push_back(wider.network.bandwidth);
  all.emplace_back("one more server machine", wider);
  Scenario fewer = now;
  fewer.wire.push *= 0.5;
  fewer.wire.pull *= 0.5;
  all.emplace_back(now.wire.push > 0.75 ? "encoding push and pull as bf16" : "encodings of half the bytes", fewer);
  return all;
}

}  // namespace

std::string to_text(Binding binding) {
  static constexpr std::array<const char*, 4> kNames = {"computing", "network", "servers", "memory"};
  return kNames[static_cast<std::size_t>(binding)];
}

Verdict verdict_of(const Sums& sums) {
  std::array<std::pair<double, Binding>, 4> busy = {std::pair{sums.computing_s(), Binding::kComputing},
                                                    {sums.network_s(), Binding::kNetwork},
                                                    {sums.servers_s, Binding::kServers},
                                                    {sums.memory_s(), Binding::kMemory}};
  std::ranges::stable_sort(busy, std::ranges::greater(), &std::pair<double, Binding>::first);
  return {busy[0].second, busy[1].second, busy[0].first, busy[1].first, sums.round_s};
}

// The exposed part of the exchange is the round's time beyond computing; it is assumed to shrink as the model's
// exchange does.
std::vector<Remedy> remedies_for(const Verdict& verdict, const Sums& sums, const std::optional<Scenario>& exchange) {
  std::vector<Remedy> all;
  const double computing = std::min(sums.computing_s(), sums.round_s), exposed = sums.round_s - computing;
  if (verdict.binding == Binding::kComputing) {
    all.push_back(
        {"computing twice as fast (more nodes or devices, or smaller batches)", sums.round_s - computing / 2.0});
    all.push_back({"an exchange that costs nothing", computing});
  }
  if (verdict.binding == Binding::kServers) {
    all.push_back({"twice the lanes or machines that step (server " + std::to_string(sums.busiest_server) +
                       "'s lane is the busiest)",
                   std::max(computing, sums.round_s - sums.servers_s / 2.0)});
  }
  if (verdict.binding == Binding::kMemory) {
    all.push_back(
        {"summing on GPUs, or half the ranks a node", std::max(computing, sums.round_s - sums.memory_s() / 2.0)});
  }
  const auto now = exchange ? predict(*exchange) : tl::unexpected(Error{});
  if (now && now->exchange_s > 0.0 && verdict.binding != Binding::kComputing) {
    for (const auto& [what, changed] : changes(*exchange)) {
      if (const auto then = predict(changed))
        all.push_back({what, computing + exposed * std::min(1.0, then->exchange_s / now->exchange_s)});
    }
  }
  std::erase_if(all, [&](const Remedy& remedy) { return remedy.round_s > (1.0 - kWorth) * sums.round_s; });
  std::ranges::stable_sort(all, {}, &Remedy::round_s);
  return all;
}

std::string in_words(const Verdict& verdict, const Sums& sums, const std::vector<Remedy>& remedies) {
  static constexpr std::array<const char*, 4> kBusy = {"the slowest node computes for", "a node's link is busy for",
                                                       "a server lane steps for",
                                                       "a worker lane sums, encodes and delivers for"};
  const auto part = [&](Binding what, double busy) {
    return std::string(kBusy[static_cast<std::size_t>(what)]) + " " + seconds_in_words(busy) +
           printed(" (%d %%)", percent(busy, verdict.round_s));
  };
  std::string text = to_text(verdict.binding) + " binds this job: of a round of " + seconds_in_words(verdict.round_s) +
                     " " + part(verdict.binding, verdict.busy_s) + "; next comes " + to_text(verdict.next) + ": " +
                     part(verdict.next, verdict.next_s) + ".";
  for (const NodeSums& node : sums.nodes) {
    if (node.last_share < kOften || node.late_s < kLate * verdict.round_s) continue;
    text += " Node " + std::to_string(node.node) + " is waited for: its push is the last one of " +
            printed("%d", percent(node.last_share, 1.0)) + " % of the chunks, by " + seconds_in_words(node.late_s) +
            ".";
  }
  if (remedies.empty()) return text + " No single change of link, servers or bytes would shorten a round much.";
  text += " A round would take";
  for (std::size_t i = 0; i < remedies.size(); ++i) {
    text += std::string(i == 0 ? " " : "; ") + seconds_in_words(remedies[i].round_s) + " with " + remedies[i].what;
  }
  return text + ".";
}

}  // namespace tributary::trace
