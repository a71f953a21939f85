// RedoKeeper: how long what a node pushed is kept.
#include <doctest/doctest.h>
#include <spdlog/sinks/null_sink.h>

#include <algorithm>
#include <memory>

#include "worker/redo_keeper.h"

namespace tributary {
namespace {

struct Keeper {
  Keeper() {
    config.name = "job";
    welcome.job = JobId(7);
    welcome.redo = true;
    keeper.emplace(budget, 20,
                   std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::null_sink_mt>()));
  }
  std::shared_ptr<RedoRing> begin() { return keeper->begin(config, NodeRank(0), *layout, welcome).value(); }
  static void push(RedoRing& ring, std::uint64_t round) {
    ring.frame(ChunkIndex(0), Round(round));
    ring.publish(ChunkIndex(0), Round(round), 1);
  }

  JobConfig config;
  JobWelcome welcome;
  std::shared_ptr<MemoryBudget> budget = std::make_shared<MemoryBudget>(64u << 20);
  std::optional<Layout> layout = Layout::unowned({{"w", {100}}}).value();
  std::optional<RedoKeeper> keeper;
};

}  // namespace

TEST_CASE("a ring is kept after the end of its job until a snapshot has all of it") {
  Keeper k;
  {
    const auto ring = k.begin();
    CHECK(ring->rounds() == 20);  // as many as it may have, not as many as fit
    Keeper::push(*ring, 1);
    Keeper::push(*ring, 2);
  }
  k.keeper->covered(JobId(7), Round(1));
  JoinJob join;
  join.tensors = {{"w", {100}}};
  k.keeper->describe(k.config, join);
  CHECK(join.redo_job == JobId(7));
  CHECK(join.redo_last == Round(2));
  CHECK(k.budget->used() > 0);
  k.keeper->covered(JobId(8), Round(2));  // another job's
  CHECK(k.budget->used() > 0);
  k.keeper->covered(JobId(7), Round(2));
  CHECK(k.budget->used() == 0);
  JoinJob later;
  later.tensors = join.tensors;
  k.keeper->describe(k.config, later);
  CHECK(later.redo_job == JobId());
}

}  // namespace tributary
