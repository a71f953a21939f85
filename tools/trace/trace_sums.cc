#include "tools/trace/trace_sums.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

namespace tributary::trace {
namespace {

using Interval = std::pair<std::int64_t, std::int64_t>;
using Intervals = std::vector<Interval>;

double seconds(std::uint64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

// Sorted, and none overlaps another.
Intervals together(Intervals all) {
  std::ranges::sort(all);
  Intervals merged;
  for (const Interval& one : all) {
    if (one.second <= one.first) continue;
    if (!merged.empty() && one.first <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, one.second);
    } else {
      merged.push_back(one);
    }
  }
  return merged;
}

// The part of `all` that is in none of `others`; both are results of together().
Intervals without(const Intervals& all, const Intervals& others) {
  Intervals rest;
  auto other = others.begin();
  for (auto [begin, end] : all) {
    while (other != others.end() && other->second <= begin) ++other;
    for (auto at = other; at != others.end() && at->first < end; ++at) {
      if (at->first > begin) rest.emplace_back(begin, at->first);
      begin = std::max(begin, at->second);
    }
    if (begin < end) rest.emplace_back(begin, end);
  }
  return rest;
}

std::uint64_t length(const Intervals& all) {
  std::uint64_t sum = 0;
  for (const auto& [begin, end] : all) sum += static_cast<std::uint64_t>(end - begin);
  return sum;
}

// A lane of a daemon.
using LaneOf = std::pair<Daemon, std::uint16_t>;

// When lanes did something of those kinds, in the rounds that are counted.
std::map<LaneOf, Intervals> busy(const Data& data, const std::set<std::uint16_t>& counted,
                                 std::initializer_list<TraceKind> kinds) {
  std::map<LaneOf, Intervals> all;
  for (const Track& track : data.tracks) {
    if (track.kind == TraceTrack::kTrainer) continue;
    Intervals& mine = all[{track.daemon, track.index}];
    for (const TraceEvent& e : track.events) {
      if (counted.contains(e.round) && std::ranges::find(kinds, e.kind) != kinds.end())
        mine.emplace_back(static_cast<std::int64_t>(e.begin_ns), static_cast<std::int64_t>(e.end_ns));
    }
    mine = together(std::move(mine));
  }
  return all;
}

// A round of a worker lane.
struct LaneRound {
  std::int64_t answered = 0, gathered = 0, reduced = 0, acknowledged = 0;
  std::vector<const Chain*> chains;
};

// As worker/node/pace_meter.h, which a lane calls at the same events.
Phases phases_of(const LaneRound& before, const LaneRound& round) {
  std::uint64_t reducing = 0, reduce = 0;
  for (const Chain* chain : round.chains) {
    const auto took = static_cast<std::uint64_t>(chain->reduced_end - chain->reduced_begin);
    reduce += took;
    if (chain->reduced_end <= round.gathered) reducing += took;
  }
  const auto elapsed = static_cast<std::uint64_t>(std::max<std::int64_t>(round.gathered - before.answered, 0));
  const std::int64_t network = round.acknowledged - round.reduced;
  return {elapsed > reducing ? elapsed - reducing : 0, reduce,
          static_cast<std::uint64_t>(std::max<std::int64_t>(network, 0))};
}

std::map<std::uint16_t, LaneRound> rounds_of_lane(const std::vector<const Chain*>& chains) {
  std::map<std::uint16_t, LaneRound> rounds;
  for (const Chain* chain : chains) {
    LaneRound& round = rounds[chain->round];
    const std::int64_t acknowledged = chain->acknowledged == Chain::kMissing
                                          ? chain->arrived_begin
                                          : std::min(chain->acknowledged, chain->arrived_begin);
    round.answered = std::max(round.answered, chain->arrived_end);
    round.gathered = std::max(round.gathered, chain->ready);
    round.reduced = std::max(round.reduced, chain->reduced_end);
    round.acknowledged = std::max(round.acknowledged, acknowledged);
    round.chains.push_back(chain);
  }
  return rounds;
}

void keep_most(Phases& most, const Phases& other) {
  most.compute_ns = std::max(most.compute_ns, other.compute_ns);
  most.reduce_ns = std::max(most.reduce_ns, other.reduce_ns);
  most.network_ns = std::max(most.network_ns, other.network_ns);
}

void add(Phases& sum, const Phases& other) {
  sum.compute_ns += other.compute_ns;
  sum.reduce_ns += other.reduce_ns;
  sum.network_ns += other.network_ns;
}

// The growth of a lane's meter over the rounds that are counted.
Phases metered(const Track& track, const std::set<std::uint16_t>& counted) {
  std::map<std::uint16_t, Phases> totals;
  for (const TraceEvent& e : track.events) {
    if (e.kind == TraceKind::kMeterCompute) totals[e.round].compute_ns = e.end_ns;
    if (e.kind == TraceKind::kMeterReduce) totals[e.round].reduce_ns = e.end_ns;
    if (e.kind == TraceKind::kMeterNetwork) totals[e.round].network_ns = e.end_ns;
  }
  Phases sum;
  for (const std::uint16_t round : counted) {
    const auto now = totals.find(round);
    const auto before = totals.find(static_cast<std::uint16_t>(round - 1));
    if (now == totals.end() || before == totals.end()) continue;
    add(sum, {now->second.compute_ns - before->second.compute_ns, now->second.reduce_ns - before->second.reduce_ns,
              now->second.network_ns - before->second.network_ns});
  }
  return sum;
}

// Rounds in which every chain of every node that has any in the trace is whole.
std::set<std::uint16_t> whole_rounds(const std::vector<Chain>& chains) {
  std::map<std::uint32_t, std::set<std::uint32_t>> held;  // by node: its chunks
  std::map<std::pair<std::uint16_t, std::uint32_t>, std::uint64_t> whole;
  std::set<std::uint16_t> rounds;
  for (const Chain& chain : chains) {
    held[chain.node].insert(chain.chunk);
    rounds.insert(chain.round);
    whole[{chain.round, chain.node}] += chain.whole() ? 1 : 0;
  }
  std::erase_if(rounds, [&](std::uint16_t round) {
    return std::ranges::any_of(held, [&](const auto& entry) {
      return whole[{round, entry.first}] != entry.second.size();
    });
  });
  return rounds;
}

// Finds the node whose push came last, by chunk and round.
void find_late(const std::vector<Chain>& chains, const std::set<std::uint16_t>& counted, std::vector<NodeSums>& nodes) {
  std::map<std::pair<std::uint16_t, std::uint32_t>, std::vector<std::pair<std::int64_t, std::uint32_t>>> pushes;
  for (const Chain& chain : chains) {
    if (counted.contains(chain.round)) pushes[{chain.round, chain.chunk}].emplace_back(chain.received, chain.node);
  }
  std::map<std::uint32_t, std::pair<std::uint64_t, std::int64_t>> last;
  for (auto& [key, received] : pushes) {
    if (received.size() < 2) continue;
    std::ranges::sort(received);
    auto& [count, late] = last[received.back().second];
    ++count;
    late += received.back().first - received[received.size() - 2].first;
  }
  for (NodeSums& node : nodes) {
    const auto& [count, late] = last[node.node];
    if (count == 0) continue;
    node.last_share = static_cast<double>(count) / static_cast<double>(pushes.size());
    node.late_s = static_cast<double>(late) * 1e-9 / static_cast<double>(count);
  }
}

// When a node's chunks were on their way, out and in, while the lane that takes them was not busy with others.
std::pair<std::uint64_t, std::uint64_t> under_way(const std::vector<const Chain*>& chains,
                                                  const std::set<std::uint16_t>& counted,
                                                  const std::map<LaneOf, Intervals>& steps,
                                                  const std::map<LaneOf, Intervals>& memory) {
  std::map<LaneOf, Intervals> out, in;
  for (const Chain* chain : chains) {
    if (!counted.contains(chain->round)) continue;
    out[{{true, chain->server}, chain->server_lane}].emplace_back(chain->sent, chain->received);
    in[{{false, chain->node}, chain->worker_lane}].emplace_back(chain->answered, chain->arrived_begin);
  }
  const auto time = [](std::map<LaneOf, Intervals>& ways, const std::map<LaneOf, Intervals>& others) {
    Intervals all;
    for (auto& [lane, way] : ways) {
      const auto other = others.find(lane);
      const Intervals free = without(together(std::move(way)), other == others.end() ? Intervals() : other->second);
      all.insert(all.end(), free.begin(), free.end());
    }
    return length(together(std::move(all)));
  };
  return {time(out, steps), time(in, memory)};
}

}  // namespace

Sums sums_of(const Data& data, const std::vector<Chain>& chains) {
  Sums sums;
  const std::set<std::uint16_t> whole = whole_rounds(chains);
  std::set<std::uint16_t> counted;
  for (const std::uint16_t round : whole) {
    if (round > 0 && whole.contains(static_cast<std::uint16_t>(round - 1))) counted.insert(round);
  }
  sums.whole_rounds = whole.size();
  sums.rounds = counted.size();
  sums.chains = static_cast<std::uint64_t>(std::ranges::count_if(chains, &Chain::whole));
  if (counted.empty()) return sums;
  const double rounds = static_cast<double>(counted.size());
  const auto steps = busy(data, counted, {TraceKind::kStepped});
  const auto memory = busy(data, counted, {TraceKind::kReduced, TraceKind::kArrived});
  for (const auto& [lane, times] : steps) {
    if (const double took = seconds(length(times)) / rounds; took > sums.servers_s) {
      sums.servers_s = took;
      sums.busiest_server = lane.first.number;
    }
  }
  std::map<std::uint32_t, std::map<std::uint16_t, std::vector<const Chain*>>> by_lane;
  for (const Chain& chain : chains) {
    if (whole.contains(chain.round)) by_lane[chain.node][chain.worker_lane].push_back(&chain);
  }
  double between = 0.0;
  for (const auto& [number, lanes] : by_lane) {
    NodeSums node{.node = number, .events = {}, .meters = {}};
    std::map<std::uint16_t, std::int64_t> answered;
    std::vector<const Chain*> all;
    for (const auto& [lane, mine] : lanes) {
      const auto by_round = rounds_of_lane(mine);
      Phases sum;
      for (const auto& [round, times] : by_round) {
        answered[round] = std::max(answered[round], times.answered);
        if (counted.contains(round)) add(sum, phases_of(by_round.at(static_cast<std::uint16_t>(round - 1)), times));
      }
      keep_most(node.events, sum);
      all.insert(all.end(), mine.begin(), mine.end());
      if (const auto found = memory.find({{false, number}, lane}); found != memory.end())
        node.memory_s = std::max(node.memory_s, seconds(length(found->second)) / rounds);
    }
    for (const Track& track : data.tracks) {
      if (track.kind == TraceTrack::kWorkerLane && track.daemon.number == number)
        keep_most(node.meters, metered(track, counted));
    }
    const auto [out, in] = under_way(all, counted, steps, memory);
    node.out_s = seconds(out) / rounds;
    node.in_s = seconds(in) / rounds;
    node.network_s = std::max(node.out_s, node.in_s);
    double mine = 0.0;
    for (const std::uint16_t round : counted)
      mine += static_cast<double>(answered.at(round) - answered.at(static_cast<std::uint16_t>(round - 1))) * 1e-9;
    between += mine / rounds;
    sums.nodes.push_back(node);
  }
  sums.round_s = between / static_cast<double>(sums.nodes.size());
  find_late(chains, counted, sums.nodes);
  return sums;
}

double Sums::computing_s() const {
  double most = 0.0;
  for (const NodeSums& node : nodes)
    most = std::max(most, seconds(node.events.compute_ns) / static_cast<double>(rounds));
  return most;
}

double Sums::network_s() const {
  double most = 0.0;
  for (const NodeSums& node : nodes) most = std::max(most, node.network_s);
  return most;
}

double Sums::memory_s() const {
  double most = 0.0;
  for (const NodeSums& node : nodes) most = std::max(most, node.memory_s);
  return most;
}

std::optional<double> Sums::difference() const {
  std::optional<double> largest;
  const double least = 1e-3 * round_s * static_cast<double>(rounds);
  for (const NodeSums& node : nodes) {
    for (const auto& phase : {&Phases::compute_ns, &Phases::reduce_ns, &Phases::network_ns}) {
      if (node.meters.compute_ns == 0 && node.meters.network_ns == 0) continue;
      const double meter = seconds(node.meters.*phase), mine = seconds(node.events.*phase);
      largest = std::max(largest.value_or(0.0), std::abs(mine - meter) / std::max(meter, least));
    }
  }
  return largest;
}

}  // namespace tributary::trace
