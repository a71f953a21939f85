#include "tools/trace/trace_clocks.h"

#include <algorithm>
#include <vector>

namespace tributary::trace {
namespace {

constexpr std::int64_t kUnbounded = std::int64_t{1} << 60;
constexpr std::int64_t kLeastSlack = 1000;  // ns

// bounds[i][j]: the clock of j is ahead of i's by no more than that.
using Bounds = std::vector<std::vector<std::int64_t>>;

void tighten_through(Bounds& bounds, std::size_t k) {
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    if (bounds[i][k] >= kUnbounded) continue;
    for (std::size_t j = 0; j < bounds.size(); ++j) {
      if (bounds[k][j] < kUnbounded) bounds[i][j] = std::min(bounds[i][j], bounds[i][k] + bounds[k][j]);
    }
  }
}

// False: they contradict each other.
bool tighten(Bounds& bounds) {
  for (std::size_t k = 0; k < bounds.size(); ++k) tighten_through(bounds, k);
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    if (bounds[i][i] < 0) return false;
  }
  return true;
}

Bounds widened(Bounds bounds, std::int64_t slack) {
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    for (std::size_t j = 0; j < bounds.size(); ++j) {
      if (i != j && bounds[i][j] < kUnbounded) bounds[i][j] += slack;
    }
  }
  return bounds;
}

}  // namespace

std::map<Daemon, Clock> clocks_of(const std::vector<Chain>& chains) {
  std::vector<Daemon> daemons;
  for (const Chain& chain : chains) {
    daemons.push_back({false, chain.node});
    if (chain.received != Chain::kMissing || chain.answered != Chain::kMissing) daemons.push_back({true, chain.server});
  }
  // Servers first: the reference is at 0.
  std::ranges::sort(daemons, {}, [](const Daemon& one) { return std::pair(!one.server, one.number); });
  daemons.erase(std::ranges::unique(daemons).begin(), daemons.end());
  const auto place = [&](const Daemon& daemon) {
    return static_cast<std::size_t>(std::ranges::find(daemons, daemon) - daemons.begin());
  };
  Bounds said(daemons.size(), std::vector<std::int64_t>(daemons.size(), kUnbounded));
  for (std::size_t i = 0; i < daemons.size(); ++i) said[i][i] = 0;
  for (const Chain& chain : chains) {
    const std::size_t node = place({false, chain.node});
    if (chain.sent != Chain::kMissing && chain.received != Chain::kMissing) {
      std::int64_t& bound = said[node][place({true, chain.server})];
      bound = std::min(bound, chain.received - chain.sent);
    }
    if (chain.answered != Chain::kMissing && chain.arrived_begin != Chain::kMissing) {
      std::int64_t& bound = said[place({true, chain.server})][node];
      bound = std::min(bound, chain.arrived_begin - chain.answered);
    }
  }
  Bounds bounds = said;
  std::int64_t slack = 0;
  while (!tighten(bounds)) {
    slack = slack == 0 ? kLeastSlack : 2 * slack;
    bounds = widened(said, slack);
  }
  const Bounds widest = bounds;
  std::map<Daemon, Clock> clocks;
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < daemons.size(); ++i) {
    const bool tied = bounds[0][i] < kUnbounded && bounds[i][0] < kUnbounded;
    clocks[daemons[i]] = {0, 0, tied};
    if (tied && i != 0) left.push_back(i);
  }
  while (!left.empty()) {
    const auto width = [&](std::size_t i) { return bounds[0][i] + bounds[i][0]; };
    const auto next = std::ranges::min_element(left, {}, width);
    const std::size_t i = *next;
    left.erase(next);
    const std::int64_t ahead = bounds[0][i] - width(i) / 2;
    bounds[0][i] = ahead;
    bounds[i][0] = -ahead;
    tighten_through(bounds, i);
    tighten_through(bounds, 0);
    const std::int64_t error = std::max(widest[0][i] - ahead, ahead + widest[i][0]) + 2 * slack;
    clocks[daemons[i]] = {ahead, static_cast<std::uint64_t>(error), true};
  }
  return clocks;
}

std::uint64_t largest_error(const std::map<Daemon, Clock>& clocks) {
  std::uint64_t largest = 0;
  for (const auto& [daemon, clock] : clocks) largest = std::max(largest, clock.error_ns);
  return largest;
}

void align(Data& data, const std::map<Daemon, Clock>& clocks) {
  const auto is_time = [](const TraceEvent& e) {
    return takes_place(e.kind) || e.kind == TraceKind::kReady || e.kind == TraceKind::kAcknowledged;
  };
  const auto ahead = [&](const Track& track) {
    const auto clock = clocks.find(track.daemon);
    return clock == clocks.end() ? 0 : clock->second.ahead_ns;
  };
  std::int64_t first = kUnbounded;
  for (const Track& track : data.tracks) {
    for (const TraceEvent& e : track.events) {
      if (is_time(e)) first = std::min(first, static_cast<std::int64_t>(e.begin_ns) - ahead(track));
    }
  }
  for (Track& track : data.tracks) {
    const std::int64_t shift = ahead(track) + first;
    for (TraceEvent& e : track.events) {
      if (!is_time(e)) continue;
      e.begin_ns = static_cast<std::uint64_t>(static_cast<std::int64_t>(e.begin_ns) - shift);
      e.end_ns = static_cast<std::uint64_t>(static_cast<std::int64_t>(e.end_ns) - shift);
    }
  }
}

}  // namespace tributary::trace
