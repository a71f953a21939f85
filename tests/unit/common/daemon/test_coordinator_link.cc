// CoordinatorLink: hello, heartbeats, waiting messages, and a coordinator that goes, comes back or is none.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/daemon/coordinator_link.h"
#include "tests/unit/expect.h"
#include "tests/unit/fake_coordinator.h"
#include "tests/unit/required.h"
#include "tests/unit/worker/node/lane_listener.h"

namespace tributary::coordinator_link_test {
namespace {

using namespace testing;

// A daemon that is nothing but its link.
class Daemon final : private CoordinatorLinkOwner {
 public:
  static constexpr std::uint64_t kIncarnation = 4711;

  explicit Daemon(const std::string& coordinator, std::uint32_t peer_timeout_ms = 10'000)
      : Daemon(std::vector{coordinator}, peer_timeout_ms) {}
  Daemon(std::vector<std::string> coordinators, std::uint32_t peer_timeout_ms, std::optional<Term> promised = {})
      : link(std::move(*CoordinatorLink::open({.section = "[worker]",
                                               .coordinators = std::move(coordinators),
                                               .promised = promised,
                                               .silence = "waiting",
                                               .incarnation = kIncarnation,
                                               .heartbeat_ms = 20,
                                               .peer_timeout_ms = peer_timeout_ms},
                                              *this, quiet_logger()))),
        thread_([this] {
          while (!over_) {
            link->turn();
            link->wait();
          }
        }) {}
  ~Daemon() override {
    over_ = true;
    link->rouse();
    thread_.join();
  }

  std::atomic<int> met{0}, others{0}, forgotten{0}, messages{0}, terms{0};
  const std::unique_ptr<CoordinatorLink> link;

 private:
  ControlMessage hello_message() override { return WorkerHello{"w", kIncarnation, "host", 1.0, {}}; }
  Heartbeat heartbeat_message() override { return {}; }
  void on_met(bool another) override {
    ++met;
    if (another) ++others;
  }
  void on_term(Term) override { ++terms; }
  void on_forgotten() override { ++forgotten; }
  void on_control(ControlMessage) override { ++messages; }

  std::atomic<bool> over_{false};
  std::thread thread_;
};

LeaveJob leave_of(std::uint32_t node) {
  LeaveJob leave;
  leave.node = NodeRank(node);
  return leave;
}

bool comes(auto&& condition) {
  for (int i = 0; i < 1000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return condition();
}

}  // namespace

TEST_CASE("what is said before the coordinator knows the daemon waits, and comes in order behind a heartbeat") {
  FakeCoordinator coordinator;
  Daemon daemon(coordinator.endpoint());
  daemon.link->send(leave_of(1));
  daemon.link->send(leave_of(2));
  CHECK_FALSE(daemon.link->joined());
  const auto first = required(coordinator.expect<LeaveJob>());
  CHECK(first.node == NodeRank(1));
  CHECK(coordinator.hellos == 1);
  CHECK(coordinator.last_beat.incarnation == Daemon::kIncarnation);
  CHECK(coordinator.expect<LeaveJob>()->node == NodeRank(2));
  CHECK(daemon.link->coordinator() == coordinator.incarnation);
  CHECK(daemon.link->connected());
  CHECK(daemon.met == 1);
  CHECK(daemon.others == 0);
}

TEST_CASE("a coordinator that does not know the daemon any more is greeted again") {
  FakeCoordinator coordinator;
  Daemon daemon(coordinator.endpoint());
  REQUIRE(coordinator.expect<Heartbeat>());
  coordinator.incarnation = 78;  // a new process: its answer to the next heartbeat says so
  REQUIRE(comes([&] {
    coordinator.expect<Heartbeat>(200);
    return daemon.link->coordinator() == 78;
  }));
  CHECK(daemon.forgotten == 1);
  CHECK(daemon.met == 2);
  CHECK(coordinator.hellos == 2);
}

TEST_CASE("garbage disturbs nothing, and messages go to the owner") {
  FakeCoordinator coordinator;
  Daemon daemon(coordinator.endpoint());
  REQUIRE(coordinator.expect<Heartbeat>());
  const std::vector<std::byte> garbage(100, std::byte{7});
  coordinator.send_bytes(garbage);
  coordinator.send(DrainDone{});
  CHECK(comes([&] { return daemon.messages == 1; }));
  CHECK(daemon.forgotten == 0);
}

TEST_CASE("silence is noticed, and its end") {
  FakeCoordinator coordinator;
  Daemon daemon(coordinator.endpoint(), 200);
  REQUIRE(coordinator.expect<Heartbeat>());
  REQUIRE(comes([&] { return daemon.link->connected(); }));
  CHECK(comes([&] { return !daemon.link->connected(); }));  // nobody answers meanwhile
  CHECK(daemon.link->joined());
  REQUIRE(comes([&] {
    coordinator.expect<Heartbeat>(200);
    return daemon.link->connected();
  }));
}

TEST_CASE("where several servers may have the coordinator, a daemon goes on with the one that has it") {
  auto first = std::make_unique<FakeCoordinator>();
  FakeCoordinator second;
  second.incarnation = 88;
  Daemon daemon(std::vector{first->endpoint(), second.endpoint()}, 300);
  REQUIRE(first->expect<Heartbeat>());
  REQUIRE(comes([&] { return daemon.link->joined(); }));
  CHECK(daemon.link->address() == first->endpoint());
  first.reset();
  REQUIRE(second.expect<Heartbeat>());
  CHECK(comes([&] { return daemon.link->coordinator() == 88; }));
  CHECK(daemon.link->address() == second.endpoint());
  CHECK(daemon.forgotten == 1);
}

TEST_CASE("a coordinator that is new in the same place is not left for another, however long it was known") {
  FakeCoordinator first, second;
  Daemon daemon(std::vector{first.endpoint(), second.endpoint()}, 10'000);
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(CoordinatorChoice::kTryMs + 200);
  while (std::chrono::steady_clock::now() < until) REQUIRE(first.expect<Heartbeat>());
  first.incarnation = 78;
  REQUIRE(comes([&] {
    first.expect<Heartbeat>(200);
    return daemon.link->coordinator() == 78;
  }));
  CHECK(daemon.link->address() == first.endpoint());
  CHECK_FALSE(second.expect<WorkerHello>(100));
}

TEST_CASE("a server leaves a coordinator of a lower term, and goes where the coordinator is said to be") {
  FakeCoordinator old, next;
  old.term = Term(16);
  next.term = Term(33);
  next.incarnation = 88;
  Daemon daemon({old.endpoint(), next.endpoint()}, 10'000, Term(17));
  REQUIRE(old.expect<WorkerHello>());
  REQUIRE(next.expect<Heartbeat>());
  CHECK(comes([&] { return daemon.link->coordinator() == 88; }));
  CHECK(daemon.terms == 1);
  next.send(SeatReport{ShardIndex(1), Term(48), ShardIndex(0), 10, {}});
  old.term = Term(48);
  REQUIRE(old.expect<Heartbeat>());
  CHECK(comes([&] { return daemon.link->coordinator() == 77; }));
  CHECK(daemon.terms == 2);
  CHECK(daemon.messages == 0);
}

TEST_CASE("a lane's address given as the coordinator's is named as the cause") {
  FakeCoordinator lane;
  Daemon daemon(lane.endpoint());
  lane.incarnation = 0;  // what it says to the hello makes nobody join
  REQUIRE(lane.expect<WorkerHello>());
  ErrorReply reply;
  reply.code = ErrorCode::kMalformed;
  lane.send_bytes(encode_data_as_version(reply, kProtocolVersion));
  REQUIRE(comes([&] { return daemon.link->refused().has_value(); }));
  CHECK(daemon.link->refused()->find("[worker] coordinator = ") != std::string::npos);
  CHECK_FALSE(daemon.link->joined());
}

TEST_CASE("an address that cannot be used is an error that names its key") {
  struct Nobody final : CoordinatorLinkOwner {
    ControlMessage hello_message() override { return WorkerHello(); }
    Heartbeat heartbeat_message() override { return {}; }
    void on_met(bool) override {}
    void on_forgotten() override {}
    void on_control(ControlMessage) override {}
  } nobody;
  const auto opened =
      CoordinatorLink::open({.section = "[server]", .coordinators = {"nonsense"}}, nobody, quiet_logger());
  REQUIRE_FALSE(opened);
  CHECK(opened.error().code == ErrorCode::kConfig);
  CHECK(contains(opened.error().message, "[server] coordinator = \"nonsense\""));
}

}  // namespace tributary::coordinator_link_test
