#include "server/coordinator/round/straggler_watch.h"

#include <algorithm>

#include "common/base/printed.h"
#include "common/math/median.h"

namespace tributary {
const char* to_text(RoundPhase phase) {
  switch (phase) {
    case RoundPhase::kCompute:
      return "compute";
    case RoundPhase::kReduction:
      return "node reduction";
    case RoundPhase::kNetwork:
      return "network";
  }
  return "";
}

std::string in_words(const StragglerWatch::Lag& lag) {
  return printed(
      "takes %.1f times as long for a round as the others, most of it in phase %s: %.1f ms, others %.1f ms%s",
      lag.factor, to_text(lag.phase), lag.own_ms, lag.usual_ms,
      lag.phase == RoundPhase::kNetwork
          ? "; its link is slower than its [worker] bandwidth says beside the others', or carries more"
          : "");
}

std::optional<StragglerWatch::News> StragglerWatch::note(const NodePace& pace) {
  const auto [entry, first] = known_.try_emplace(pace.node.value);
  Known& known = entry->second;
  if (first) known.at = pace;
  // Too few yet, or overtaken by a newer one.
  if (pace.rounds < known.at.rounds || pace.rounds - known.at.rounds < kWindowRounds) return std::nullopt;
  const auto rounds = static_cast<double>(pace.rounds - known.at.rounds);
  const auto ms = [&](std::uint64_t NodePace::*total) {
    return static_cast<double>(pace.*total - std::min(pace.*total, known.at.*total)) * 1e-6 / rounds;
  };
  known.times = {ms(&NodePace::compute_ns), ms(&NodePace::reduce_ns), ms(&NodePace::network_ns)};
  known.samples = static_cast<double>(pace.samples - std::min(pace.samples, known.at.samples)) / rounds;
  known.at = pace;
  known.measured = true;
  const std::optional<Lag> lag = against_others(pace.node.value);
  const double factor = lag ? lag->factor : 1.0;
  known.slow = factor >= kSlow ? known.slow + 1 : 0;
  known.fine = factor < kFine ? known.fine + 1 : 0;
  if (known.lag && known.fine >= kPatience) {
    known.lag.reset();
    return News{pace.node.value, std::nullopt};
  }
  if (known.lag && lag) known.lag = lag;
  if (known.lag || known.slow < kPatience) return std::nullopt;
  known.lag = lag;
  return News{pace.node.value, lag};
}

StragglerWatch::Times StragglerWatch::comparable(const Known& known, double samples) const {
  Times times = known.times;
  if (by_samples_ && known.samples > 0.0) times.compute *= samples / known.samples;
  return times;
}

// None: it is as fast as the others, or there are none to compare it with.
std::optional<StragglerWatch::Lag> StragglerWatch::against_others(std::uint32_t node) const {
  double samples = 0.0;
  for (const auto& [rank, known] : known_) samples = std::max(samples, known.samples);
  std::vector<double> total, compute, reduction, network;
  for (const auto& [rank, known] : known_) {
    if (rank == node || !known.measured) continue;
    const Times times = comparable(known, samples);
    total.push_back(times.total());
    compute.push_back(times.compute);
    reduction.push_back(times.reduction);
    network.push_back(times.network);
  }
  if (total.empty()) return std::nullopt;
  const Times own = comparable(known_.at(node), samples);
  const double usual = median(std::move(total));
  if (own.total() - usual < kMinExcessMs) return std::nullopt;
  const Lag phases[] = {{RoundPhase::kCompute, 0.0, own.compute, median(std::move(compute))},
                        {RoundPhase::kReduction, 0.0, own.reduction, median(std::move(reduction))},
                        {RoundPhase::kNetwork, 0.0, own.network, median(std::move(network))}};
  Lag lag = *std::ranges::max_element(phases, {}, [](const Lag& at) { return at.own_ms - at.usual_ms; });
  lag.factor = own.total() / std::max(usual, 1e-3);
  return lag;
}

std::vector<StragglerWatch::Node> StragglerWatch::nodes() const {
  std::vector<Node> nodes;
  for (const auto& [rank, known] : known_) {
    if (known.measured) nodes.push_back({rank, known.times, known.lag});
  }
  return nodes;
}

}  // namespace tributary
