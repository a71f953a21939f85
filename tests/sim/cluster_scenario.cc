// Makes the scenario of a whole cluster from a seed.
#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "tests/sim/cluster_simulation.h"
#include "tests/sim/random.h"
#include "tests/sim/virtual_clock.h"

namespace tributary::sim {
namespace {

using Fault = ClusterScenario::Fault;

// One process, or several at once.
std::vector<std::uint32_t> some(Random& random, std::uint32_t processes) {
  std::vector<std::uint32_t> all(processes);
  for (std::uint32_t i = 0; i < processes; ++i) all[i] = i;
  const std::uint64_t count = random.chance(0.7) ? 1 : random.between(1, processes);
  std::vector<std::uint32_t> chosen;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto at = all.begin() + static_cast<std::ptrdiff_t>(random.below(all.size()));
    chosen.push_back(*at);
    all.erase(at);
  }
  return chosen;
}

std::uint64_t some_time(Random& random) {
  static constexpr std::uint64_t kUpTo[] = {5 * kMs, 200 * kMs, 1000 * kMs, 5000 * kMs};
  return random.between(kMs, kUpTo[random.below(std::size(kUpTo))]);
}

Fault fault_of(const ClusterScenario& s, Random& random, std::uint64_t span_ns) {
  Fault fault;
  fault.at_ns = random.below(span_ns);
  fault.lasts_ns = some_time(random);
  const std::uint32_t trainers = s.nodes * s.ranks;
  const std::uint64_t dice = random.below(100);
  if (dice < 3) {
    fault.kind = Fault::Kind::kLeave;
    fault.who = {static_cast<std::uint32_t>(s.servers + random.below(s.nodes))};
  } else if (dice < 45) {
    fault.kind = Fault::Kind::kKill;
    // Servers and workers mostly; the supervisor of trainers starts them again soon.
    fault.who = some(random, random.chance(0.7) ? s.servers + s.nodes : s.servers + s.nodes + trainers);
  } else if (dice < 55) {
    fault.kind = Fault::Kind::kPower;
    fault.who = some(random, s.servers);
  } else if (dice < 63) {
    fault.kind = Fault::Kind::kMachine;
    fault.who = {static_cast<std::uint32_t>(s.servers + random.below(s.nodes))};
  } else if (dice < 65) {
    fault.kind = Fault::Kind::kStore;
    // Not server 0's, which has the registry: that is lose_stores()'s.
    fault.who = {static_cast<std::uint32_t>(s.servers > 1 ? random.between(1, s.servers - 1) : 0)};
    if (s.servers == 1) fault.kind = Fault::Kind::kPower;
  } else if (dice < 83) {
    fault.kind = Fault::Kind::kBreak;
    fault.who.assign(random.between(1, 4), 0);
  } else if (dice < 89) {
    fault.kind = Fault::Kind::kCut;
    fault.who = some(random, s.servers + s.nodes);
  } else if (dice < 95) {
    fault.kind = Fault::Kind::kHold;
    fault.who = some(random, s.servers + s.nodes);
  } else {
    fault.kind = Fault::Kind::kDiskFull;
    fault.who = some(random, s.servers);
  }
  return fault;
}

// No message between processes is lost.
Fault gentle_fault_of(const ClusterScenario& s, Random& random, std::uint64_t span_ns) {
  Fault fault;
  fault.at_ns = random.below(span_ns);
  fault.lasts_ns = some_time(random);
  if (random.chance(0.4)) {
    fault.kind = Fault::Kind::kLeave;
    fault.who = {static_cast<std::uint32_t>(s.servers + random.below(s.nodes))};
  } else {
    fault.who = {static_cast<std::uint32_t>(s.servers + s.nodes + random.below(s.nodes * s.ranks))};
  }
  return fault;
}

// Nodes that come late, leave for a while, or forever. (Only one that came late leaves forever: trainers that are
// started again after a clean stop wait for as many nodes as the first ones requested.)
void make_elastic(ClusterScenario& s, Random& random, std::uint64_t span_ns) {
  s.elastic = true;
  s.nodes = static_cast<std::uint32_t>(random.between(2, 4));
  s.first_nodes = static_cast<std::uint32_t>(random.between(1, s.nodes));
  s.min_nodes = static_cast<std::uint32_t>(random.chance(0.7) ? 1 : random.between(1, s.first_nodes));
  s.rejoin_ms = static_cast<std::uint32_t>(random.between(300, 5000));
  const auto who = [&](std::uint32_t node) { return std::vector<std::uint32_t>{s.servers + node}; };
  for (std::uint32_t node = s.first_nodes; node < s.nodes; ++node) {
    s.faults.push_back({Fault::Kind::kJoin, random.below(span_ns), 0, who(node)});
  }
  const std::uint64_t leaves = random.below(3);
  for (std::uint64_t i = 0; i < leaves; ++i) {
    const auto node = static_cast<std::uint32_t>(random.below(s.nodes));
    s.faults.push_back({Fault::Kind::kLeave, random.below(span_ns), some_time(random), who(node)});
  }
  if (s.nodes > s.first_nodes && random.chance(0.5)) {
    const Fault::Kind kind = random.chance(0.5) ? Fault::Kind::kGone : Fault::Kind::kLeave;
    s.faults.push_back({kind, random.below(span_ns * 2), Fault::kForEver, who(s.nodes - 1)});
  }
}

// Servers' stores are lost, or were never the ones that the job began with: mostly one at a time, now and then two at
// once, where the promise ends. Server 0's has the registry. Drawn apart, as above.
void lose_stores(ClusterScenario& s, std::uint64_t span_ns) {
  Random random(s.seed ^ 0x57079eull);
  if (s.servers < 2 || s.gentle || !random.chance(0.15)) return;
  for (std::uint64_t left = random.between(1, 3); left > 0; --left) {
    const auto one = static_cast<std::uint32_t>(random.chance(0.4) ? 0 : random.below(s.servers));
    std::vector<std::uint32_t> who{one};
    if (random.chance(0.1)) who.push_back((one + 1) % s.servers);
    s.faults.push_back({Fault::Kind::kStore, random.below(span_ns), random.between(kMs, 300 * kMs), std::move(who)});
  }
  std::ranges::stable_sort(s.faults, {}, &Fault::at_ns);
}

// A disk's part of a snapshot goes bad. Drawn apart, as above.
void hurt_disks(ClusterScenario& s, std::uint64_t span_ns) {
  Random random(s.seed ^ 0xbadd15cull);
  if (s.gentle || s.rare_snapshots || !random.chance(0.06)) return;
  const Fault::Kind kind = random.chance(0.5) ? Fault::Kind::kDamage : Fault::Kind::kUnrecord;
  const std::uint64_t at = random.below(span_ns / 2);  // and as soon as there is something then
  s.faults.push_back({kind, at, random.between(kMs, 300 * kMs), some(random, s.servers)});
  s.spoils_uncommitted = random.chance(0.5);
  std::ranges::stable_sort(s.faults, {}, &Fault::at_ns);
}

// Something of a snapshot is lost.
bool spoilt(const ClusterScenario& s) {
  return std::ranges::any_of(s.faults, [](const Fault& fault) {
    using Kind = Fault::Kind;
    return fault.kind == Kind::kStore || fault.kind == Kind::kLost || fault.kind == Kind::kDamage ||
           fault.kind == Kind::kUnrecord;
  });
}

// Checkpoints are saved, and one is restored. Drawn apart, as above.
void order_checkpoints(ClusterScenario& s, std::uint64_t span_ns) {
  Random random(s.seed ^ 0xc4ec5ull);
  if (s.gentle || s.rare_snapshots || !random.chance(0.1)) return;
  const auto order = [&](Fault::Kind kind, std::uint64_t at) { s.faults.push_back({kind, at, 0, {}}); };
  const std::uint64_t saves = random.between(1, 3);
  for (std::uint64_t i = 0; i < saves; ++i) {
    order(random.chance(0.7) ? Fault::Kind::kSave : Fault::Kind::kSaveCommitted, random.below(span_ns));
  }
  if (random.chance(0.8) && !s.elastic && !s.deadline && !spoilt(s)) {
    const std::uint64_t at = random.below(span_ns / 3);
    order(Fault::Kind::kRestore, at);
    // A coordinator that comes after it has the registry alone.
    s.faults.push_back({Fault::Kind::kKill, at + random.between(500 * kMs, 4000 * kMs), some_time(random), {0}});
    s.rounds = std::max<std::uint64_t>(s.rounds, 20);
    s.first_servers = static_cast<std::uint32_t>(random.chance(0.5) ? s.servers : random.between(1, s.servers));
    s.later_servers = static_cast<std::uint32_t>(random.chance(0.5) ? s.first_servers : random.between(1, s.servers));
  }
  std::ranges::stable_sort(s.faults, {}, &Fault::at_ns);
}

// A job without a part on servers. Drawn apart, as above.
void make_allreduce(ClusterScenario& s, std::uint64_t span_ns) {
  Random random(s.seed ^ 0xa11edull);
  if (s.elastic || s.gentle || s.rare_snapshots || !random.chance(0.12)) return;
  s.mode = Mode::kAllreduce;
  s.push = s.pull = "fp32";
  s.staleness = 0;
  s.clip_norm = 0.0;
  s.loss_scale = "none";
  s.deadline = s.shares_memory = s.gradients_move = s.prepares = s.redo = false;
  s.disorder = {};
  s.servers = 1;
  s.faults.clear();
  const std::uint64_t faults = random.below(8);
  for (std::uint64_t i = 0; i < faults; ++i) s.faults.push_back(fault_of(s, random, span_ns));
  if (random.chance(0.3)) {
    s.faults.push_back({Fault::Kind::kStore, random.below(span_ns), random.between(kMs, 300 * kMs), {s.servers}});
  }
  if (random.chance(0.4)) {  // the registry's, or node 0's
    const std::uint32_t who = random.chance(0.5) ? 0 : s.servers;
    s.faults.push_back({Fault::Kind::kDiskFull, random.below(span_ns), some_time(random), {who}});
  }
  s.kill_at_message = random.chance(0.4) ? 0.01 : 0.0;
  std::ranges::sort(s.faults, {}, &Fault::at_ns);
}

// Rounds that are slow enough for rings to be covered by snapshots, and a schedule that would
// have its own far behind that. Servers and workers die, rarely.
void make_snapshots_rare(ClusterScenario& s) {
  Random random(s.seed ^ 0x4a4e5ull);
  if (s.elastic || s.gentle || !random.chance(0.08)) return;
  s.rare_snapshots = true;
  s.redo = true;
  s.snapshot_s = 0;
  s.snapshot_rounds = s.ring_rounds * random.between(2, 5);
  s.disk_step_ns = random.between(1, 3) * kMs;
  s.work_ns = random.between(120, 200) * kMs;
  s.slow_factor = 1;
  s.disorder = {};
  s.kill_at_message = 0.0;
  s.rounds = random.between(100, 130);
  s.faults.clear();
  const std::uint64_t losses = random.below(3);
  for (std::uint64_t i = 0; i < losses; ++i) {
    const std::uint64_t at = random.below(s.rounds * s.work_ns);
    s.faults.push_back({Fault::Kind::kKill, at, random.between(kMs, 300 * kMs), some(random, s.servers + s.nodes)});
  }
  std::ranges::sort(s.faults, {}, &Fault::at_ns);
}

// Disks that are full in turns: a snapshot that one server has and another has not is left over when the view ends, and
// cannot be dropped while the next views go through its round again. In jobs that go back to a snapshot with every
// view, because nobody keeps what nodes have not said yet.
void fill_disks_in_turns(ClusterScenario& s) {
  Random random(s.seed ^ 0xd15c5ull);
  if (s.servers < 2 || s.elastic || s.gentle || !random.chance(0.06)) return;
  s.redo = false;
  s.mode = Mode::kSync;
  s.push = "int8";
  s.clip_norm = 0.0;
  s.loss_scale = "none";
  s.deadline = false;
  s.snapshot_s = 0;
  s.snapshot_rounds = random.between(15, 25);
  s.disk_step_ns = random.between(1, 3) * kMs;
  s.work_ns = random.between(30, 50) * kMs;
  s.rounds = random.between(80, 120);
  s.slow_factor = 1;
  s.kill_at_message = 0.0;
  s.disorder = {};
  s.faults.clear();
  const std::uint64_t from = random.between(500, 1000) * kMs, turn = from + random.between(1500, 3000) * kMs;
  const std::uint64_t until = turn + random.between(4000, 8000) * kMs;
  const auto kill = [&](std::uint64_t at) {
    const auto worker = static_cast<std::uint32_t>(s.servers + random.below(s.nodes));
    s.faults.push_back({Fault::Kind::kKill, at, random.between(kMs, 100 * kMs), {worker}});
  };
  s.faults.push_back({Fault::Kind::kDiskFull, from, turn - from, {0}});
  for (std::uint32_t server = 1; server < s.servers; ++server) {
    s.faults.push_back({Fault::Kind::kDiskFull, turn, until - turn, {server}});
  }
  kill(turn + random.between(1, 50) * kMs);
  kill(turn + random.between(2000, 3900) * kMs);
  std::ranges::stable_sort(s.faults, {}, &Fault::at_ns);
}

// Ranks that are dealt out by arrival, and flows that a network forgets. Drawn apart, as above.
void permute_ranks(ClusterScenario& s, std::uint64_t span_ns) {
  Random random(s.seed ^ 0x9e47ull);
  if (s.gentle || s.rare_snapshots || s.mode == Mode::kAllreduce) return;
  const std::uint64_t forgets = random.chance(0.1) ? random.between(1, 4) : 0;
  for (std::uint64_t i = 0; i < forgets; ++i) {
    s.faults.push_back({Fault::Kind::kHalfOpen, random.below(span_ns), some_time(random), {}});
  }
  const bool restores = std::ranges::any_of(s.faults, [](const Fault& f) { return f.kind == Fault::Kind::kRestore; });
  const bool permutes = !s.elastic && s.nodes > 1 && !restores && random.chance(0.15);
  for (std::uint64_t i = permutes ? random.between(1, 3) : 0; i > 0; --i) {
    const std::uint64_t at = random.below(span_ns);
    s.faults.push_back({Fault::Kind::kPermute, at, random.between(kMs, 500 * kMs), {}});
    // A server that is lost with them has to be brought up by their pushes, if they are theirs.
    if (!random.chance(0.7)) continue;
    const std::uint32_t server = static_cast<std::uint32_t>(random.below(s.servers));
    s.faults.push_back({Fault::Kind::kKill, at + random.below(200 * kMs), some_time(random), {server}});
  }
  std::ranges::stable_sort(s.faults, {}, &Fault::at_ns);
}

// Daemons are stopped cleanly, all at once or some: among other faults, or where nothing else befalls servers and
// the network. Drawn apart, as above.
void stop_daemons(ClusterScenario& s, std::uint64_t span_ns) {
  Random random(s.seed ^ 0x5709ull);
  const bool restores = std::ranges::any_of(s.faults, [](const Fault& f) { return f.kind == Fault::Kind::kRestore; });
  if (s.gentle || s.rare_snapshots || restores || s.mode == Mode::kAllreduce || !random.chance(0.25)) return;
  s.calm = random.chance(0.6);
  if (s.calm) {
    s.disorder = {};
    s.kill_at_message = 0.0;
    std::erase_if(s.faults, [&](const Fault& fault) {
      using Kind = Fault::Kind;
      const bool of_node = fault.kind == Kind::kJoin || fault.kind == Kind::kLeave || fault.kind == Kind::kGone ||
                           fault.kind == Kind::kMachine || fault.kind == Kind::kPermute;
      const bool kill = fault.kind == Kind::kKill &&
                        std::ranges::all_of(fault.who, [&](std::uint32_t who) { return who >= s.servers; });
      return !of_node && !kill;
    });
  }
  const std::uint64_t stops = random.between(1, 3);
  for (std::uint64_t i = 0; i < stops; ++i) {
    Fault drain{Fault::Kind::kDrain, random.below(span_ns), random.between(kMs, 1000 * kMs), {}};
    if (random.chance(0.5)) {
      for (std::uint32_t who = 0; who < s.servers + s.nodes; ++who) drain.who.push_back(who);
    } else {
      drain.who = some(random, s.servers);
    }
    s.faults.push_back(drain);
    // Often while a node is away, and servers keep what there is of the job.
    if (!random.chance(0.5)) continue;
    const std::uint32_t node = static_cast<std::uint32_t>(random.below(s.nodes));
    const std::uint64_t before = random.between(kMs, 400 * kMs);
    s.faults.push_back({Fault::Kind::kMachine,
                        drain.at_ns - std::min(drain.at_ns, before),
                        random.between(500 * kMs, 5000 * kMs),
                        {s.servers + node}});
  }
  std::ranges::stable_sort(s.faults, {}, &Fault::at_ns);
}

// Ranks that hold a part of the model. Drawn apart, as above.
void split_model(ClusterScenario& s) {
  Random random(s.seed ^ 0x5b117ull);
  const bool rounds = s.mode == Mode::kSync || s.mode == Mode::kLocalSgd;
  if (!rounds || s.elastic || s.deadline || s.nodes * s.ranks % 2 != 0 || !random.chance(0.4)) return;
  s.split = random.chance(0.5) ? ClusterScenario::Split::kSlices : ClusterScenario::Split::kStages;
}

// A network that loses, repeats and reorders what lanes and workers send each other, as no TCP does. Drawn apart.
void disturb_network(ClusterScenario& s) {
  Random random(s.seed ^ 0xd150deull);
  if (s.shares_memory || s.gentle || !random.chance(0.3)) return;
  s.disorder.loses = random.chance(0.5) ? 0.01 : 0.0;
  s.disorder.repeats = random.chance(0.5) ? 0.1 : 0.0;
  s.disorder.overtakes = random.chance(0.5) ? 0.2 : 0.0;
  s.rounds = std::min<std::uint64_t>(s.rounds, 20);
}

// Drawn apart: the others stay what they were without them.
void keep_large_states(ClusterScenario& s) {
  Random apart(s.seed ^ 0x1a46e57a7eull);
  s.large_states = apart.chance(0.3);
  const bool has_rounds = s.mode == Mode::kSync || s.mode == Mode::kLocalSgd;
  s.rewinds = s.large_states && has_rounds && !s.rare_snapshots && apart.chance(0.5);
}

}  // namespace

namespace {

// Several servers, as many from the beginning to the end, to which anything may happen.
bool many_servers(const ClusterScenario& s) {
  return s.servers > 1 && !s.gentle && !s.calm && !s.rare_snapshots && s.mode != Mode::kAllreduce &&
         !s.spoils_uncommitted && s.first_servers == s.servers && s.later_servers == s.servers;
}

// Several servers may have the coordinator. The machine of the one that has it is lost for good, or the network keeps
// them apart for a while. Drawn apart, as above.
void move_coordinator(ClusterScenario& s, std::uint64_t span_ns) {
  Random random(s.seed ^ 0x5ea75ull);
  if (!many_servers(s) || !random.chance(0.2)) return;
  s.coordinators = static_cast<std::uint32_t>(random.between(2, std::min<std::uint64_t>(s.servers, 3)));
  if (random.chance(0.6)) s.faults.push_back({Fault::Kind::kLost, random.below(span_ns), some_time(random), {0}});
  if (random.chance(0.4)) s.faults.push_back({Fault::Kind::kCut, random.below(span_ns), 4 * some_time(random), {0}});
  std::ranges::stable_sort(s.faults, {}, &Fault::at_ns);
}

// Servers are lost with their stores, and others take their place late or never: their chunks go to the servers that are
// there. Some are told to stop. Drawn apart, as above.
void let_servers_go(ClusterScenario& s, std::uint64_t span_ns) {
  Random random(s.seed ^ 0x60e5ull);
  if (!many_servers(s) || !random.chance(0.2)) return;
  s.goes_on = true;
  if (!s.elastic) s.rejoin_ms = static_cast<std::uint32_t>(random.between(300, 3000));
  s.rounds = std::max<std::uint64_t>(s.rounds, 30);
  for (std::uint64_t left = random.between(1, 3); left > 0; --left) {
    // The first one has the coordinator; where that may move, a majority decides.
    const auto who = static_cast<std::uint32_t>(random.between(s.coordinators > 1 ? 0 : 1, s.servers - 1));
    const bool stops = random.chance(0.4);
    const std::uint64_t away = random.between(100, 8000) * kMs;
    s.faults.push_back({stops ? Fault::Kind::kDrain : Fault::Kind::kStore, random.below(span_ns), away, {who}});
  }
  std::ranges::stable_sort(s.faults, {}, &Fault::at_ns);
}

// Somebody orders that chunks go to the servers that are there, but for some. Drawn apart, as above.
void order_deals(ClusterScenario& s, std::uint64_t span_ns) {
  Random random(s.seed ^ 0xdea1ull);
  if (!many_servers(s) || !random.chance(0.15)) return;
  s.rounds = std::max<std::uint64_t>(s.rounds, 30);
  for (std::uint64_t left = random.between(1, 3); left > 0; --left) {
    std::vector<std::uint32_t> without;
    if (random.chance(0.7)) without = some(random, s.servers);
    s.faults.push_back({Fault::Kind::kDeal, random.below(span_ns), 0, without});
  }
  std::ranges::stable_sort(s.faults, {}, &Fault::at_ns);
}

// A server's disk takes nothing for long while checkpoints are due: they come from memory.
void break_store(ClusterScenario& s, Random& random) {
  if (s.calm || s.gentle || s.rare_snapshots || !random.chance(0.3)) return;
  s.snapshot_s = 1;
  s.rounds = std::max(s.rounds, std::min<std::uint64_t>(9'000 * kMs / s.work_ns, 400));
  const auto server = static_cast<std::uint32_t>(random.below(s.servers));
  s.faults.push_back(
      {Fault::Kind::kDiskFull, random.between(500, 2000) * kMs, random.between(4, 8) * 1000 * kMs, {server}});
  std::ranges::stable_sort(s.faults, {}, &Fault::at_ns);
}

// Draws a cluster with one job.
ClusterScenario one_job_of(std::uint64_t seed) {
  Random random(seed ^ 0xc1a57e2ull);
  ClusterScenario s;
  s.seed = seed;
  s.servers = static_cast<std::uint32_t>(random.between(1, 3));
  s.lanes = static_cast<std::uint32_t>(random.chance(0.3) ? 2 : 1);
  s.nodes = static_cast<std::uint32_t>(random.between(1, 3));
  // So many that some of a round's frames are added before the last one is there. Drawn apart, as others below.
  if (Random crowd(seed ^ 0xc04dull); crowd.chance(0.1)) s.nodes = static_cast<std::uint32_t>(crowd.between(5, 7));
  Random large(seed ^ 0x1a49eull);
  const bool is_large = large.chance(0.04);
  if (is_large) s.servers = 4;
  if (is_large) s.nodes = static_cast<std::uint32_t>(large.between(4, 6));
  s.ranks = static_cast<std::uint32_t>(random.chance(0.3) ? 2 : 1);
  s.parameters = random.between(1030, 3000);
  s.rounds = random.between(10, 40);
  if (is_large) s.parameters = large.between(6000, 9000);
  if (is_large) s.rounds = std::min<std::uint64_t>(s.rounds, 20);
  static constexpr const char* kOptimizers[] = {"sgd", "adam", "adamw", "adagrad", "lion"};
  s.optimizer = kOptimizers[random.below(std::size(kOptimizers))];
  static constexpr const char* kPlain[] = {"fp32", "fp32", "bf16", "fp16"};
  s.push = kPlain[random.below(std::size(kPlain))];
  s.pull = kPlain[random.below(std::size(kPlain))];
  s.window_bytes = 4096 * random.between(1, 6);
  s.work_ns = random.between(5, 40) * kMs;
  s.ring_rounds = static_cast<std::uint32_t>(random.between(16, 20));
  s.gradients_move = Random(seed ^ 0x4109e5ull).chance(0.7);
  if (random.chance(0.5)) s.snapshot_rounds = random.between(2, 8);
  if (random.chance(0.5)) s.snapshot_s = 1;
  s.prepares = Random(seed ^ 0x93e9a3eull).chance(0.25);
  s.says_settings = Random(seed ^ 0x4a7e5ull).chance(0.3);
  s.disk_step_ns = random.chance(0.2) ? random.between(20, 200) * kMs : random.between(1, 5) * kMs;
  if (random.chance(0.15)) {  // a disk that rings outrun
    s.disk_step_ns = random.between(100, 500) * kMs;
    s.work_ns = random.between(15, 40) * kMs;
    s.rounds = random.between(30, 60);
  }
  Random loads(seed ^ 0x10ad5ull);
  s.load_step_ns = loads.chance(0.4) ? loads.between(50, 600) * kMs : s.disk_step_ns;
  s.fixed_ports = random.chance(0.5);
  s.disorder.drops = random.chance(0.3) ? 0.005 : 0.0;
  Random shares(seed ^ 0x10ca1ull);
  s.shares_memory = shares.chance(0.6);
  // Some with many chunks: then rounds are often half done when somebody is lost.
  if (s.shares_memory && shares.chance(0.3)) s.parameters = shares.between(6000, 9000);
  if (random.chance(0.3)) {
    s.slow_node = static_cast<std::uint32_t>(random.below(s.nodes));
    s.slow_factor = random.between(2, 5);
  }
  const double kind = static_cast<double>(random.below(100)) / 100.0;
  if (kind < 0.2) {
    s.mode = random.chance(0.7) ? Mode::kSsp : Mode::kAsync;
    s.staleness = random.below(4);
  } else if (kind < 0.3) {
    static constexpr const char* kPushes[] = {"int8", "topk:0.03", "onebit", "fp32"};
    s.push = kPushes[random.below(std::size(kPushes))];
    s.pull = s.push == std::string("fp32") || random.chance(0.3) ? "int8-delta" : "fp32";
  } else if (kind < 0.4) {
    s.redo = false;
  } else if (kind < 0.6) {
    if (random.chance(0.7)) s.clip_norm = 0.25 * static_cast<double>(random.between(1, 40));
    if (random.chance(0.5)) s.loss_scale = "dynamic";
    Random apart(s.seed ^ 0x7e51d0a1ull);
    if (s.clip_norm > 0.0 && s.loss_scale == "none" && apart.chance(0.5)) {
      static constexpr const char* kPushes[] = {"int8", "topk:0.03", "onebit"};
      s.push = kPushes[apart.below(std::size(kPushes))];
      if (apart.chance(0.3)) s.pull = "int8-delta";
    }
  }
  const std::uint64_t span = s.rounds * s.work_ns * 2 + 1500 * kMs;
  const bool gated = s.clip_norm > 0.0 || s.loss_scale != "none";
  const bool plain = s.pull != "int8-delta" && !(s.push == "int8" || s.push == "onebit" || s.push.starts_with("topk"));
  if (s.mode == Mode::kSync && !gated && plain && random.chance(0.2)) {
    s.deadline = true;
    s.slow_node = static_cast<std::uint32_t>(random.below(s.nodes));
    s.slow_factor = random.between(1, 4);
  }
  if (!gated && plain && random.chance(0.4)) make_elastic(s, random, span);
  if (gated || !plain) {  // drawn apart: the others stay what they were without them
    Random apart(s.seed ^ 0xe1a571cull);
    if (apart.chance(0.4)) make_elastic(s, apart, span);
  }
  s.gentle = !s.elastic && random.chance(0.06);
  const std::uint64_t faults = random.below(9);
  for (std::uint64_t i = 0; i < faults; ++i) {
    s.faults.push_back(s.gentle ? gentle_fault_of(s, random, span) : fault_of(s, random, span));
  }
  std::ranges::sort(s.faults, {}, &Fault::at_ns);
  s.kill_at_message = faults > 0 && !s.gentle && random.chance(0.4) ? 0.01 : 0.0;
  // Local SGD pushes how far a replica has moved: all processes but the trainers take it for a gradient.
  if (s.mode == Mode::kSync && !gated && !s.deadline && random.chance(0.15)) s.mode = Mode::kLocalSgd;
  disturb_network(s);
  const bool recovers = s.mode == Mode::kSync || s.mode == Mode::kLocalSgd;
  if (recovers) make_snapshots_rare(s);
  if (!s.rare_snapshots) fill_disks_in_turns(s);
  lose_stores(s, span);
  make_allreduce(s, span);
  if (s.mode != Mode::kAllreduce) hurt_disks(s, span);
  s.first_servers = s.later_servers = s.servers;
  if (s.mode != Mode::kAllreduce) order_checkpoints(s, span);
  permute_ranks(s, span);
  stop_daemons(s, span);
  split_model(s);
  keep_large_states(s);
  s.refuses_last = !s.gentle && Random(seed ^ 0x1a57ull).chance(0.2);
  s.gathers = Random(seed ^ 0x7a1e5ull).chance(0.5);
  const bool together = s.mode != Mode::kSsp && s.mode != Mode::kAsync && s.model_ranks().empty();
  if (Random apart(seed ^ 0xc8ec4ull); s.mode != Mode::kAllreduce && apart.chance(0.2)) {
    s.checkpoint_s = static_cast<std::uint32_t>(apart.between(1, 3));
    break_store(s, apart);
  }
  s.one_ends = together && !s.elastic && Random(seed ^ 0xe4d5ull).chance(0.3);
  move_coordinator(s, span);
  let_servers_go(s, span);
  order_deals(s, span);
  return s;
}

// A job as another seed has it, whose nodes are all there from the beginning, on the servers of this cluster.
ClusterScenario job_beside(const ClusterScenario& s, Random& random) {
  ClusterScenario other;
  do {
    other = one_job_of(random.next());
  } while (other.mode == Mode::kAllreduce || other.rare_snapshots || other.nodes > 3);
  other.job = s.job + "2";  // a name that begins as the first one's
  other.faults.clear();
  other.first_nodes = other.elastic ? other.nodes : 0;
  other.min_nodes = std::min(other.min_nodes, other.nodes);
  other.rounds = std::min<std::uint64_t>(other.rounds, 40);
  static_cast<ServersScenario&>(other) = s;
  return other;
}

// Another job on the same servers, in some clusters. Faults of servers and disks befall both jobs; some of its own
// processes die, too. Drawn apart, and last.
void share_servers(ClusterScenario& s) {
  Random random(s.seed ^ 0x7e4a475ull);
  if (s.first_servers != s.later_servers || !random.chance(0.2)) return;
  const ClusterScenario other = job_beside(s, random);
  const std::uint32_t first = s.servers + s.nodes + s.nodes * s.ranks;
  for (Fault& fault : s.faults) {
    if (fault.kind != Fault::Kind::kDrain || fault.who.size() != s.servers + s.nodes) continue;
    for (std::uint32_t node = 0; node < other.nodes; ++node) fault.who.push_back(first + node);
  }
  const std::uint64_t kills = s.calm || s.gentle || random.chance(0.5) ? 0 : random.between(1, 3);
  for (std::uint64_t i = 0; i < kills; ++i) {
    Fault fault{Fault::Kind::kKill, random.below(other.rounds * other.work_ns * 2 + 1500 * kMs), some_time(random), {}};
    fault.who = {first + static_cast<std::uint32_t>(random.below(other.nodes + other.nodes * other.ranks))};
    if (fault.who.front() < first + other.nodes && random.chance(0.3)) fault.kind = Fault::Kind::kMachine;
    s.faults.push_back(std::move(fault));
  }
  const bool stops = std::ranges::any_of(s.faults, [](const Fault& f) { return f.kind == Fault::Kind::kDrain; });
  const bool may_restore = !s.gentle && !stops && !spoilt(s) && !other.elastic && !other.deadline;
  if (may_restore && random.chance(0.2)) {
    s.faults.push_back({Fault::Kind::kRestore, random.below(other.rounds * other.work_ns), 0, {first}});
  }
  std::ranges::stable_sort(s.faults, {}, &Fault::at_ns);
  s.beside = {other};
}

}  // namespace

ClusterScenario cluster_scenario_of(std::uint64_t seed) {
  ClusterScenario s = one_job_of(seed);
  share_servers(s);
  return s;
}

std::uint32_t ClusterScenario::values_after(Round round) const {
  return gathers ? static_cast<std::uint32_t>(Random(seed ^ (round.value * 0x9e37ull)).below(4)) : 0;
}

std::vector<std::uint32_t> ClusterScenario::model_ranks() const {
  std::vector<std::uint32_t> parts;
  for (std::uint32_t rank = 0; split != Split::kWhole && rank < nodes * ranks; ++rank) {
    parts.push_back(split == Split::kSlices ? rank % 2 : rank / (nodes * ranks / 2));
  }
  return parts;
}

GateConfig ClusterScenario::gate() const {
  GateConfig config;
  config.clip_norm = clip_norm;
  config.loss_scale = loss_scale;
  config.init_scale = first_scale();
  config.growth_interval = 3;
  return config;
}

MembershipConfig ClusterScenario::membership() const {
  MembershipConfig config;
  if (rewinds) config.on_state_lost = OnStateLost::kRewind;
  if (goes_on) config.on_server_loss = OnLoss::kContinue;
  if (elastic || goes_on) config.rejoin_ms = rejoin_ms;
  if (!elastic) return config;
  config.on_worker_loss = OnLoss::kContinue;
  config.min_nodes = min_nodes;
  return config;
}

}  // namespace tributary::sim
