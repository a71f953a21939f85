// The messages that each key may send to the coordinator.
#include <doctest/doctest.h>

#include "common/config/job_json.h"
#include "server/coordinator/cluster/control_permits.h"
#include "tests/unit/common/wire/random_message.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::testing::control_permits_test {
namespace {

const Identity kServer1{"server-1", Role::kServer, std::string(kKeyText, 's')};
const Identity kNode0{"node-0", Role::kWorker, std::string(kKeyText, 'w')};
const Identity kNode1{"node-1", Role::kWorker, std::string(kKeyText, 'v')};
const Identity kAdmin{"ops", Role::kAdmin, std::string(kKeyText, 'a')};

WorkerHello hello_of(const Identity& who, std::uint64_t incarnation) {
  WorkerHello hello;
  hello.name = who.name;
  hello.incarnation = incarnation;
  hello.key = who.key;
  return hello;
}

}  // namespace

TEST_CASE("every kind of message is one role's, both's, or nobody's") {
  Random random(7);
  std::size_t servers = 0, workers = 0, both = 0;
  for (const ControlMessage& message : one_of_each<ControlMessage>(random)) {
    // Only the role of a hello counts here.
    const auto may = [&](Identity who) {
      if (const auto* hello = std::get_if<WorkerHello>(&message)) who.name = hello->name, who.key = hello->key;
      if (const auto* hello = std::get_if<ServerHello>(&message)) {
        who.name = "server-" + std::to_string(hello->shard.value), who.key = hello->key;
      }
      if (const auto* report = std::get_if<SeatReport>(&message)) {
        who.name = "server-" + std::to_string(report->place.value);
      }
      return check_permitted(who, message, {}).has_value();
    };
    const bool server = may(kServer1), worker = may(kNode0);
    servers += server && !worker;
    workers += worker && !server;
    both += server && worker;
    CHECK_FALSE(may(kAdmin));
  }
  // ServerHello, ShardReady, ShardKept, RoundFacts, CheckpointDone, JobRecordCopy, HeldRecord, SnapshotCopied,
  // HeldParts, SeatReport
  CHECK(servers == 10);
  CHECK(workers == 6);  // WorkerHello, JoinJob, LeaveJob, PeerAddress, NodeRankState, RankValues
  // Heartbeat, DrainRequest, ControlError, SnapshotDone, TracePart, ClusterQuestion, Diagnosed, WantPart, StatePart
  CHECK(both == 9);
}

TEST_CASE("a hello is said with the key, and by the name, that the connection has") {
  CHECK(check_permitted(kNode0, hello_of(kNode0, 1), {}));
  const auto renamed = failure_of(check_permitted(kNode1, hello_of({"node-0", Role::kWorker, kNode1.key}, 2), {}));
  CHECK(contains(renamed.message, "worker 'node-0' shows the key of worker 'node-1'"));
  CHECK_FALSE(check_permitted(kNode1, hello_of(kNode0, 2), {}));
  CHECK_FALSE(check_permitted(kNode0, hello_of(kNode0, 0), {}));
  ServerHello server;
  server.shard = ShardIndex(1);
  server.incarnation = 5;
  server.key = kNode0.key;
  CHECK_FALSE(check_permitted(kServer1, server, {}));
  CHECK_FALSE(check_permitted(kNode0, server, {}));  // a worker's key used as a server's
  server.key = kServer1.key;
  CHECK(check_permitted(kServer1, server, {}));
}

TEST_CASE("a server's key is good for its own index") {
  const Identity coordinator{"coordinator", Role::kServer, std::string(kKeyText, 'c')};
  const auto hello = [](const Identity& who, std::uint16_t index) {
    ServerHello m;
    m.shard = ShardIndex(index);
    m.incarnation = 5;
    m.key = who.key;
    return check_permitted(who, m, {});
  };
  CHECK(hello(kServer1, 1));
  const auto seventh = failure_of(hello(kServer1, 7));
  CHECK(contains(seventh.message, "server 7 shows the key of server 'server-1'"));
  CHECK(contains(seventh.message, "keys new server-7"));
  CHECK_FALSE(hello(kServer1, 0));
  CHECK(hello(coordinator, 0));
  CHECK_FALSE(hello(coordinator, 1));
  CHECK(hello({"server-0", Role::kServer, coordinator.key}, 0));
  CHECK_FALSE(hello({"alpha", Role::kServer, coordinator.key}, 2));
}

TEST_CASE("a worker whose key has jobs may be a node of these alone") {
  const auto join = [](const std::string& name) {
    JobConfig config;
    config.name = name;
    JoinJob m;
    m.job_json = to_canonical_json(config);
    return m;
  };
  Identity bound = kNode0;
  CHECK(check_permitted(bound, join("anything"), {}));
  bound.jobs = {"mnist", "alice-*"};
  for (const char* own : {"mnist", "alice-", "alice-gpt"}) CHECK_MESSAGE(check_permitted(bound, join(own), {}), own);
  for (const char* others : {"mnist2", "alice", "bob-gpt"}) {
    const Status refused = check_permitted(bound, join(others), {});
    REQUIRE_FALSE_MESSAGE(refused, others);
    CHECK(refused.error().message.find(std::string("worker 'node-0' may not be a node of job '") + others) == 0);
  }
  CHECK(check_permitted(bound, hello_of(bound, 1), {}));
}

TEST_CASE("who speaks for a process, or over a connection, has the key that it said hello with") {
  const KeysOfHello none, of_process{std::nullopt, kNode0.key}, of_peer{kNode0.key, std::nullopt};
  const Heartbeat beat{1, {}, {}};
  CHECK(check_permitted(kNode0, beat, none));  // not known yet: the core asks it to say hello
  CHECK(check_permitted(kNode0, beat, of_process));
  CHECK_FALSE(check_permitted(kNode1, beat, of_process));
  CHECK_FALSE(check_permitted(kServer1, DrainRequest{1}, of_process));
  CHECK_FALSE(check_permitted(kNode1, hello_of(kNode1, 1), of_process));  // nor takes it over
  LeaveJob leave;
  CHECK(check_permitted(kNode0, leave, of_peer));
  CHECK_FALSE(check_permitted(kNode1, leave, of_peer));
  CHECK(process_in(beat) == 1);
  CHECK_FALSE(process_in(leave).has_value());
}

}  // namespace tributary::testing::control_permits_test
