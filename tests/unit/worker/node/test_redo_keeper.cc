// RedoKeeper: how long a node's pushes are kept.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "common/daemon/log.h"
#include "common/wire/redo_plan.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "worker/node/redo_keeper.h"

namespace tributary::redo_keeper_test {
namespace {

struct Keeper {
  Keeper() {
    config.name = "job";
    welcome.job = JobId(7);
    welcome.redo = true;
    keeper.emplace(budget, 20, quiet_logger());
  }
  std::shared_ptr<RedoRing> begin() { return keeper->begin(config, NodeRank(0), *layout, welcome, now_ms).value(); }
  static void push(RedoRing& ring, std::uint64_t round) {
    ring.frame(ChunkIndex(0), Round(round));
    ring.publish(ChunkIndex(0), Round(round), 1);
  }

  std::uint64_t now_ms = 5'000'000;  // as long as a machine may be up
  JobConfig config;
  JobWelcome welcome;
  std::shared_ptr<MemoryBudget> budget = std::make_shared<MemoryBudget>(64u << 20);
  std::optional<Layout> layout = Layout::unowned({{"w", {100}}}).value();
  std::optional<RedoKeeper> keeper;
};

}  // namespace

TEST_CASE("a ring of another rank, or of another part of the model, is not offered, and goes when a view begins") {
  Keeper k;
  k.layout = Layout::unowned({{"w", {100}, 0, {0}}, {"v", {200}, 0, {1}}})->part(std::vector<std::uint32_t>{0}).value();
  Keeper::push(*k.begin(), 1);
  const auto offered = [&](std::uint32_t node, std::uint32_t model_rank) {
    JoinJob join{
        .tensors = {{"w", {100}, 0, {0}}, {"v", {200}, 0, {1}}}, .node = NodeRank(node), .model_ranks = {model_rank}};
    CHECK(k.keeper->describe(k.config, join) == "");
    CHECK(join.redo_capacity == 20);
    return join.redo_last;
  };
  CHECK(offered(0, 0) == Round(1));
  CHECK(offered(1, 0) == Round(0));
  CHECK(offered(0, 1) == Round(0));
  const auto ring = required(k.keeper->begin(k.config, NodeRank(1), *k.layout, k.welcome, k.now_ms));
  CHECK_FALSE(ring->find(ChunkIndex(0), Round(1)));
}

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

TEST_CASE("a ring has the rounds that are of use to its job, no more than fit, and no more than any job needs") {
  JobConfig config;
  config.recovery.redo_mb = 256;
  CHECK(redo_rounds(config, 1u << 20) == kMaxRedoRounds);
  CHECK(redo_rounds(config, 4u << 20) == 64);
  CHECK(redo_rounds(config, 32u << 20) == 0);
  config.snapshot.every_rounds = 10;  // and by time: how many rounds that are nobody knows
  CHECK(redo_rounds(config, 1u << 20) == kMaxRedoRounds);
  config.snapshot.every_s = 0;
  CHECK(redo_rounds(config, 1u << 20) == 2 * (10 + kRoundsOfSnapshot));
  CHECK(redo_rounds(config, 4u << 20) == 64);
  config.snapshot.every_rounds = ~0ull;
  CHECK(redo_rounds(config, 1u << 20) == kMaxRedoRounds);
}

TEST_CASE("a ring of a job with a gate has room for the residuals of a round more") {
  for (const bool gate : {false, true}) {
    Keeper k;
    k.config.push = EncodingId::kInt8;
    if (gate) k.config.gate.clip_norm = 1.0;
    const auto ring = k.begin();
    CHECK(ring->memory().size() == RedoRing::bytes_needed(*k.layout, k.config.push, 20, gate ? 3 : 2));
    CHECK(k.budget->used() == ring->memory().size());
    CHECK((ring->area(ChunkIndex(0), Round(0)) == ring->area(ChunkIndex(0), Round(2))) != gate);
  }
}

TEST_CASE("a ring ages from the beginning of its view on") {
  Keeper k;
  k.begin();
  k.keeper->tick(k.now_ms + RedoKeeper::kKeepMs);
  CHECK(k.budget->used() > 0);
  k.keeper->tick(k.now_ms + RedoKeeper::kKeepMs + 1);
  CHECK(k.budget->used() == 0);
}

TEST_CASE("a ring is busy until the last lane has let go of it") {
  Keeper k;
  CHECK_FALSE(k.keeper->busy("job"));
  const auto ring = k.begin();
  CHECK_FALSE(k.keeper->busy("job"));
  RedoRing::Use one = RedoRing::use(ring), other = RedoRing::use(ring);
  CHECK(k.keeper->busy("job"));
  one.reset();
  CHECK(k.keeper->busy("job"));
  other.reset();
  CHECK_FALSE(k.keeper->busy("job"));
}

TEST_CASE("why nothing is kept is said in words, with what would do") {
  Keeper k;
  JoinJob join;
  join.tensors = {{"w", {4 << 20}}};  // 16 MiB a round
  std::string why;
  SUBCASE("rounds are too large") {
    k.config.recovery.redo_mb = 255;
    why = k.keeper->describe(k.config, join);
    CHECK(testing::contains(why, "recovery.redo_mb = 255; 256 would do"));
  }
  SUBCASE("the worker has no room") {
    why = k.keeper->describe(k.config, join);
    CHECK(testing::contains(why, "max_shared_memory"));
    // Unless what takes it goes when a view wants it.
    JoinJob other = join;
    REQUIRE(k.budget->take(k.budget->limit()));
    CHECK_FALSE(k.keeper->describe(k.config, other).empty());
    other.tensors = {{"w", {1 << 10}}};
    CHECK_FALSE(k.keeper->describe(k.config, other).empty());
    CHECK(k.keeper->describe(k.config, other, k.budget->limit()).empty());
    CHECK(other.redo_capacity > 0);
    k.budget->give_back(k.budget->limit());
  }
  SUBCASE("nothing is to be kept") {
    k.config.recovery.redo_mb = 0;
    CHECK(k.keeper->describe(k.config, join).empty());
  }
  CHECK(join.redo_capacity == 0);
}

}  // namespace tributary::redo_keeper_test
