// StateDelivery: a large part that no rank of the node has, on its way from the coordinator. The time is the test's.
#include <doctest/doctest.h>

#include "tests/unit/worker/node_fixture.h"
#include "worker/state_delivery.h"

namespace tributary::testing::state_delivery_test {
namespace {

class Trainers final : public TrainerPort {
 public:
  void send(TrainerId, const AttachMessage& message, std::span<const int> fds) override {
    REQUIRE(std::holds_alternative<RankState>(message));
    with_memory.push_back(!fds.empty());
  }
  std::vector<bool> with_memory;  // by message
};

struct Node {
  Trainers trainers;
  FakeCoordinator coordinator;
  FakeLanes lanes{1};
  NodeJobsContext context{{}, trainers, coordinator, lanes, quiet_logger()};
  StateDelivery delivery{context, JobId(7)};
};

TEST_CASE("a part that the coordinator is getting is waited for as long as it says so") {
  Node node;
  const std::vector<std::byte> bytes(100, std::byte{5});
  const auto [high, low] = Checksum128().add(bytes.data(), bytes.size()).value();
  const LargePart large{bytes.size(), high, low};
  node.delivery.deliver(TrainerId(1), StateDelivery::Whose::kFirst, {Round(3), StateHead{large, true}.before({})}, 0);
  const WantPart want = node.coordinator.await<WantPart>();
  std::uint64_t now = 0;
  while (now < 10 * PartFetch::kPatienceMs) {
    node.delivery.on(StatePart{want, {}, true}, now);
    node.delivery.tick(now += PartFetch::kRepeatMs);
  }
  CHECK(node.trainers.with_memory.empty());
  CHECK(node.coordinator.all<WantPart>().size() > 100);
  bool there = false;
  SUBCASE("and is there") {
    node.delivery.on(StatePart{want, bytes}, now);
    there = true;
  }
  SUBCASE("and nobody has it any more") {
    node.delivery.on(StatePart{want, {}}, now);
  }
  SUBCASE("and not when it is silent") {
    node.delivery.tick(now + PartFetch::kPatienceMs);
  }
  CHECK(node.trainers.with_memory == std::vector{there});
}

}  // namespace
}  // namespace tributary::testing::state_delivery_test
