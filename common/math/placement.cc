#include "common/math/placement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "common/base/assert.h"
#include "common/math/encoding.h"

namespace tributary {
namespace {

// Times that differ by less are the same: the rounding error of sums and quotients that are equal on paper.
constexpr double kRounding = 1e-12;

// A direction of a host's link: at share s it takes at + slope·s.
struct Line {
  double at = 0.0;
  double slope = 0.0;
  double time(double share) const { return at + slope * share; }
};

// A host that holds servers, while its share is sought.
struct Candidate {
  std::size_t host = 0;
  std::vector<Line> lines;  // only those that the share changes
  double least = 0.0, most = 1.0;
  double share = 0.0;
  bool fixed = false;

  // The interval's ends for the time t. REQUIRES: t is at least shortest(), else the ends may be crossed.
  double low(double t) const {
    double end = least;
    for (const Line& line : lines) {
      if (line.slope < 0.0) end = std::max(end, (t - line.at) / line.slope);
    }
    return std::min(end, most);
  }
  double high(double t) const {
    double end = most;
    for (const Line& line : lines) {
      if (line.slope > 0.0) end = std::min(end, (t - line.at) / line.slope);
    }
    return std::max(end, least);
  }
  double time(double share_) const {
    double t = 0.0;
    for (const Line& line : lines) t = std::max(t, line.time(share_));
    return t;
  }
  // Shares at which the slowest direction may change: both ends, and where the two lines meet.
  std::vector<double> corners() const {
    std::vector<double> shares = {least, most};
    if (lines.size() == 2 && lines[0].slope != lines[1].slope) {
      const double meet = (lines[1].at - lines[0].at) / (lines[0].slope - lines[1].slope);
      if (meet > least && meet < most) shares.push_back(meet);
    }
    return shares;
  }
  // The share at which its link is done soonest.
  double best_share() const {
    double best = least;
    for (double corner : corners()) {
      if (time(corner) < time(best)) best = corner;
    }
    return best;
  }
  double shortest() const { return time(best_share()); }
};

LinkLoad load_of(const PlacementHost& host, std::uint32_t workers_in_all, const WireRatio& ratio, double share) {
  const double here = host.workers, elsewhere = workers_in_all - host.workers;
  return {.out = here * ratio.push * (1.0 - share) + elsewhere * ratio.pull * share,
          .in = here * ratio.pull * (1.0 - share) + elsewhere * ratio.push * share};
}

std::uint32_t count_workers(const std::vector<PlacementHost>& hosts) {
  std::uint32_t workers = 0;
  for (const PlacementHost& host : hosts) workers += host.workers;
  return workers;
}

double sum_of_lows(const std::vector<Candidate>& candidates, double t) {
  double sum = 0.0;
  for (const Candidate& c : candidates) sum += c.fixed ? 0.0 : c.low(t);
  return sum;
}

double sum_of_highs(const std::vector<Candidate>& candidates, double t) {
  double sum = 0.0;
  for (const Candidate& c : candidates) sum += c.fixed ? 0.0 : c.high(t);
  return sum;
}

// The smallest t from `from` on at which excess(t), which falls with t and is linear between breakpoints, is 0.
template <class Excess>
double root(const std::vector<Candidate>& candidates, double from, Excess excess) {
  std::vector<double> breakpoints;
  for (const Candidate& c : candidates) {
    if (c.fixed) continue;
    for (double corner : c.corners()) {
      for (const Line& line : c.lines) breakpoints.push_back(line.time(corner));
    }
  }
  std::sort(breakpoints.begin(), breakpoints.end());
  double before = from;
  for (double t : breakpoints) {
    if (t <= before) continue;
    const double left = excess(before), right = excess(t);
    if (right <= 0.0) return left <= right ? t : before + (t - before) * left / (left - right);
    before = t;
  }
  return before;  // nothing changes behind the last breakpoint: the rest is rounding
}

// Gives the candidates that are not fixed shares that sum to `remaining` and minimise the longest time, then the next
// longest, and so on. Returns the longest.
double deal_shares(std::vector<Candidate>& candidates, double remaining) {
  double longest = 0.0;
  for (bool first = true;; first = false) {
    double t = 0.0;
    bool any = false;
    for (const Candidate& c : candidates) {
      if (c.fixed) continue;
      any = true;
      t = std::max(t, c.shortest());
    }
    if (!any) return longest;
    const double lows = sum_of_lows(candidates, t), highs = sum_of_highs(candidates, t);
    const bool too_little = highs<remaining, too_much = lows> remaining;
    if (too_little) t = root(candidates, t, [&](double at) { return remaining - sum_of_highs(candidates, at); });
    if (too_much) t = root(candidates, t, [&](double at) { return sum_of_lows(candidates, at) - remaining; });
    if (first) longest = t;
    double given = 0.0;
    for (Candidate& c : candidates) {
      if (c.fixed) continue;
      const bool bound = too_little || too_much || c.shortest() >= t * (1.0 - kRounding);
      if (!bound) continue;
      c.share = too_little ? c.high(t) : too_much ? c.low(t) : c.best_share();
      c.fixed = true;
      given += c.share;
    }
    remaining = std::max(0.0, remaining - given);
  }
}

Status check(const std::vector<PlacementHost>& hosts, const WireRatio& ratio) {
  std::uint64_t workers = 0, servers = 0;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (!std::isfinite(hosts[i].bandwidth) || hosts[i].bandwidth <= 0.0) {
      return fail(ErrorCode::kInvalidArgument, "the bandwidth of host " + std::to_string(i) + " is " +
                                                   std::to_string(hosts[i].bandwidth) +
                                                   "; it must be a positive number");
    }
    workers += hosts[i].workers;
    servers += hosts[i].servers;
  }
  if (workers == 0 || servers == 0) {
    return fail(ErrorCode::kInvalidArgument,
                "a placement needs at least one worker and one server, but these " + std::to_string(hosts.size()) +
                    " hosts hold " + std::to_string(workers) + " workers and " + std::to_string(servers) + " servers");
  }
  if (workers > std::numeric_limits<std::uint32_t>::max()) {
    return fail(ErrorCode::kInvalidArgument, std::to_string(workers) + " workers are more than a placement can count");
  }
  for (double r : {ratio.push, ratio.pull}) {
    if (!std::isfinite(r) || r <= 0.0) {
      return fail(ErrorCode::kInvalidArgument,
                  "bytes on the wire per byte of the model are " + std::to_string(ratio.push) + " for a push and " +
                      std::to_string(ratio.pull) + " for a pull; both must be positive numbers");
    }
  }
  return {};
}

}  // namespace

WireRatio wire_ratio(EncodingSpec push, EncodingSpec pull) {
  constexpr std::size_t kElements = 1u << 18;
  const auto ratio = [](EncodingSpec spec) {
    return static_cast<double>(make_encoding(spec)->bytes(kElements)) / (kElements * sizeof(float));
  };
  return {.push = ratio(push), .pull = ratio(pull)};
}

Placement placement_of_shares(const std::vector<PlacementHost>& hosts, const WireRatio& ratio,
                              std::vector<double> shares) {
  TRIB_ASSERT(shares.size() == hosts.size());
  Placement placement;
  placement.shares = std::move(shares);
  const std::uint32_t workers = count_workers(hosts);
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const LinkLoad load = load_of(hosts[i], workers, ratio, placement.shares[i]);
    placement.loads.push_back(load);
    const double times[] = {load.out / hosts[i].bandwidth, load.in / hosts[i].bandwidth};
    for (LinkDirection direction : {LinkDirection::kOut, LinkDirection::kIn}) {
      // Longer by more than rounding, so that equal links name the first of them.
      const double time = times[static_cast<std::size_t>(direction)];
      if (time <= placement.time_factor * (1.0 + kRounding)) continue;
      placement.time_factor = time;
      placement.bottleneck_host = i;
      placement.bottleneck_direction = direction;
    }
  }
  return placement;
}

Result<Placement> optimal_placement(const std::vector<PlacementHost>& hosts, const WireRatio& ratio) {
  if (const Status good = check(hosts, ratio); !good) return tl::unexpected<Error>(good.error());
  const std::uint32_t workers = count_workers(hosts);
  std::vector<Candidate> candidates;
  double unchangeable = 0.0;  // the longest of the times that no share changes
  bool any_idle_line = false;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const LinkLoad none = load_of(hosts[i], workers, ratio, 0.0), all = load_of(hosts[i], workers, ratio, 1.0);
    Candidate candidate;
    candidate.host = i;
    for (const auto& [at_none, at_all] : {std::pair{none.out, all.out}, std::pair{none.in, all.in}}) {
      const bool fixed = hosts[i].servers == 0 || std::fabs(at_all - at_none) <= kRounding * std::max(at_none, at_all);
      if (fixed) {
        unchangeable = std::max(unchangeable, at_none / hosts[i].bandwidth);
      } else {
        candidate.lines.push_back(
            {.at = at_none / hosts[i].bandwidth, .slope = (at_all - at_none) / hosts[i].bandwidth});
      }
    }
    if (hosts[i].servers == 0) continue;
    any_idle_line = any_idle_line || candidate.lines.empty();
    candidates.push_back(std::move(candidate));
  }

  if (any_idle_line) {
    // The first pass finds the time that must be kept, the second spreads what that leaves free.
    std::vector<Candidate> trial = candidates;
    const double time = std::max(unchangeable, deal_shares(trial, 1.0)) * (1.0 + kRounding);
    for (Candidate& c : candidates) {
      const double least = c.low(time), most = c.high(time);
      c.least = least;
      c.most = std::max(least, most);
      if (c.lines.empty()) {
        c.lines.push_back({.at = 0.0, .slope = workers * std::max(ratio.push, ratio.pull) / hosts[c.host].bandwidth});
      }
    }
  }
  deal_shares(candidates, 1.0);

  double sum = 0.0;
  for (const Candidate& c : candidates) sum += c.share;
  TRIB_ASSERT(std::fabs(sum - 1.0) < 1e-6);
  std::vector<double> shares(hosts.size(), 0.0);
  for (const Candidate& c : candidates) shares[c.host] = c.share < kRounding ? 0.0 : c.share / sum;
  return placement_of_shares(hosts, ratio, std::move(shares));
}

}  // namespace tributary
