#include "tests/sim/simulation.h"

#include "tests/sim/world.h"

namespace tributary::sim {
namespace {

constexpr ViewId kFirstView{3};

void add(Outcome& outcome, World& world) {
  world.kept.clear();
  outcome.ok = world.failure.empty();
  outcome.failure = world.failure;
  outcome.virtual_ns += world.network.now_ns();
  outcome.messages += world.network.stats().sent;
  outcome.resends += world.resends;
  outcome.snapshots += world.snapshots_checked;
  outcome.withheld += world.withheld;
  outcome.clipped += world.clipped;
  outcome.skipped += world.skipped;
}

}  // namespace

Outcome run(std::uint64_t seed, Mutation mutation) {
  Outcome outcome;
  outcome.scenario = scenario_of(seed);
  std::optional<Restart> from;
  if (outcome.scenario.restarts) {
    // A view that is cut off in the middle. What is under way is lost, as it is when nodes come back in a new view.
    World world(outcome.scenario, mutation, kFirstView, nullptr);
    const bool ended = world.train(outcome.scenario.cut_after_events, outcome.events);
    if (ended && world.failure.empty()) world.leave(outcome.events);
    from = world.newest_complete();
    add(outcome, world);
    if (ended || !outcome.ok) return outcome;
    outcome.restarted = from.has_value();
  }
  const ViewId view = outcome.scenario.restarts ? kFirstView.next() : kFirstView;
  World world(outcome.scenario, mutation, view, from ? &*from : nullptr);
  world.train(~0ull, outcome.events);
  world.leave(outcome.events);
  add(outcome, world);
  return outcome;
}

}  // namespace tributary::sim
