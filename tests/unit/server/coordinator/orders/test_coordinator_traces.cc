// The coordinator's part in a trace: rounds to come are named, and what daemons send is kept.
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::coordinator_traces_test {
namespace {

using testing::Cluster;
using testing::server_peer;
using testing::TrainingCluster;
using testing::worker_peer;

// A job of two nodes whose pace is known: ten rounds a second.
void run_some(Cluster& cluster) {
  cluster.everybody(2);
  cluster.run(2);
  for (std::uint64_t second = 1; second <= 3; ++second) cluster.pass(1000, 2, {}, 10 * second);
  cluster.sent.clear();
}

TracePart part_of(const TraceRounds& order, std::size_t events, bool done) {
  TracePart part;
  part.job = order.job;
  part.view = order.view;
  part.first = order.first;
  part.events.resize(events);
  part.done = done;
  return part;
}

}  // namespace

TEST_CASE("a trace's rounds are named ahead of the job, to everybody in its view") {
  Cluster cluster;
  run_some(cluster);
  const auto id = required(cluster.core.trace_job("mnist", 20, cluster.now));
  for (const PeerId peer : {server_peer(0), server_peer(1), worker_peer(0), worker_peer(1)}) {
    const auto order = required(cluster.only<TraceRounds>(peer));
    CHECK(order.job == cluster.open().job);
    CHECK(order.view == cluster.open().view);
    CHECK(order.first > Round(35));  // half a second ahead of round 30
    CHECK(order.last.value - order.first.value == 19);
  }
  const auto status = required(cluster.core.trace(id));
  CHECK_FALSE(status.over);
  CHECK(status.awaited.size() == 4);
  CHECK_FALSE(cluster.core.trace(id + 1));
}

TEST_CASE("a trace is over when everybody has sent everything, and is kept until the next one") {
  Cluster cluster;
  run_some(cluster);
  const auto id = required(cluster.core.trace_job("mnist", 20, cluster.now));
  const TraceRounds order = *cluster.only<TraceRounds>(server_peer(0));
  CHECK(failure_of(cluster.core.trace_job("mnist", 20, cluster.now)).message.find("is being recorded") !=
        std::string::npos);
  for (const PeerId peer : {server_peer(0), server_peer(1), worker_peer(1)}) {
    cluster.say(peer, part_of(order, 3, false));
    cluster.say(peer, part_of(order, 0, true));
    cluster.say(peer, part_of(order, 5, true));  // said again: nobody asks for it any more
  }
  TracePart other = part_of(order, 9, true);
  other.first = order.first.next();
  cluster.say(worker_peer(0), other);  // of another trace
  CHECK_FALSE(cluster.core.trace(id)->over);
  cluster.say(worker_peer(0), part_of(order, 4, true));
  const auto status = cluster.core.trace(id);
  CHECK(status->over);
  CHECK(status->short_because.empty());
  CHECK(status->events == 13);
  REQUIRE(status->parts == 4);
  CHECK(cluster.core.trace_piece(id, 2)->source == TraceSource{false, 1});
  CHECK(cluster.core.trace_piece(id, 3)->part.events.size() == 4);
  CHECK_FALSE(cluster.core.trace_piece(id, 4));
  REQUIRE(cluster.core.trace_job("mnist", 5, cluster.now));
  CHECK_FALSE(cluster.core.trace(id));
}

TEST_CASE("a trace holds a bounded number of events, and counts what it cannot hold") {
  Cluster cluster;
  run_some(cluster);
  const auto id = cluster.core.trace_job("mnist", 20, cluster.now);
  const TraceRounds order = *cluster.only<TraceRounds>(server_peer(0));
  for (std::size_t i = 0; i < TraceKeeper::kMaxEvents / kMaxPartEvents + 2; ++i)
    cluster.say(server_peer(0), part_of(order, kMaxPartEvents, false));
  CHECK(cluster.core.trace(*id)->events == TraceKeeper::kMaxEvents);
  CHECK(cluster.core.trace(*id)->lost == 2 * kMaxPartEvents);
}

TEST_CASE("what cannot be traced is said") {
  Cluster cluster;
  CHECK(failure_of(cluster.core.trace_job("mnist", 20, cluster.now)).message.find("nobody in the cluster has a job") !=
        std::string::npos);
  cluster.everybody(2);
  cluster.run(2);
  CHECK(failure_of(cluster.core.trace_job("mnist", 20, cluster.now)).message.find("has just begun") !=
        std::string::npos);
  for (std::uint64_t second = 1; second <= 3; ++second) cluster.pass(1000, 2, {}, 10 * second);
  CHECK(failure_of(cluster.core.trace_job("mnist", 0, cluster.now)).message.find("1 to 256") != std::string::npos);
  CHECK(failure_of(cluster.core.trace_job("mnist", 257, cluster.now)).message.find("1 to 256") != std::string::npos);
  cluster.leave(0, LeaveKind::kFailed, 30, "gone");
  CHECK(failure_of(cluster.core.trace_job("mnist", 20, cluster.now)).message.find("does not run") != std::string::npos);
}

TEST_CASE("a large job can have fewer rounds in a trace, and hears how many") {
  TrainingCluster cluster({.workers = 2}, {.tensors = {{"w", {400'000'000}}}});
  for (std::uint64_t second = 1; second <= 3; ++second) cluster.pass(1000, 2, {}, 10 * second);
  const std::string most = failure_of(cluster.core.trace_job("mnist", 256, cluster.now)).message;
  const auto at = most.find("1 to ");
  REQUIRE(at != std::string::npos);
  const std::uint64_t rounds = std::stoull(most.substr(at + 5));
  CHECK(rounds < 256);
  CHECK(cluster.core.trace_job("mnist", rounds, cluster.now));
}

TEST_CASE("a view that ends makes a trace short, and what came is kept") {
  Cluster cluster;
  run_some(cluster);
  const auto id = cluster.core.trace_job("mnist", 20, cluster.now);
  const TraceRounds order = *cluster.only<TraceRounds>(server_peer(0));
  cluster.say(server_peer(0), part_of(order, 3, true));
  cluster.leave(0, LeaveKind::kFailed, 30, "a rank died");
  for (const PeerId peer : {server_peer(1), worker_peer(1)}) cluster.say(peer, part_of(order, 2, true));
  CHECK_FALSE(cluster.core.trace(*id)->over);  // node 0 may have something left
  cluster.pass(TraceKeeper::kLastWordsMs + 2000, 2);
  const auto status = cluster.core.trace(*id);
  CHECK(status->over);
  CHECK(status->events == 7);
  CHECK(testing::contains(status->short_because, "the view ended"));
  CHECK(testing::contains(status->short_because, "a rank died"));
  CHECK(testing::contains(status->short_because, "node 0 sent not all"));
}

TEST_CASE("a job that stands still ends its trace: daemons are told to send what they have") {
  Cluster cluster;
  run_some(cluster);
  const auto id = cluster.core.trace_job("mnist", 20, cluster.now);
  cluster.sent.clear();
  cluster.pass(TraceKeeper::kPatienceMs + 3000, 2, {}, 31);
  const auto cut = required(cluster.only<TraceRounds>(worker_peer(1)));
  CHECK(cut.last == Round());
  TraceRounds order = cut;
  for (const PeerId peer : {server_peer(0), server_peer(1), worker_peer(0), worker_peer(1)})
    cluster.say(peer, part_of(order, 1, true));
  CHECK(cluster.core.trace(*id)->over);
  CHECK(testing::contains(cluster.core.trace(*id)->short_because, "no round got done"));
}

TEST_CASE("a daemon that sends nothing, as one of an older release, is not waited for while the job goes on") {
  Cluster cluster;
  run_some(cluster);
  const auto id = cluster.core.trace_job("mnist", 20, cluster.now);
  const TraceRounds order = *cluster.only<TraceRounds>(server_peer(0));
  for (std::uint64_t second = 1; second <= 5; ++second) cluster.pass(1000, 2, {}, order.last.value + 10 * second);
  for (const PeerId peer : {server_peer(0), server_peer(1), worker_peer(0)}) cluster.say(peer, part_of(order, 1, true));
  CHECK_FALSE(cluster.core.trace(*id)->over);
  for (std::uint64_t second = 6; second <= 40; ++second) cluster.pass(1000, 2, {}, order.last.value + 10 * second);
  CHECK(cluster.core.trace(*id)->over);
  CHECK(cluster.core.trace(*id)->short_because == "node 1 sent not all");
}

}  // namespace tributary::coordinator_traces_test
