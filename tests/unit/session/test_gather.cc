// Session::gather() over a real attach server: ranks give each other values, are answered again, and stop waiting.
#include <doctest/doctest.h>

#include "tests/unit/required.h"
#include "tests/unit/worker/node_fixture.h"

namespace tributary::gather_test {

using namespace testing;

namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

// As it is in the background.
using Given = std::future<Result<std::pair<StepState, std::vector<RankValue>>>>;
Given give(Session& session, std::uint64_t round, std::uint32_t index, const std::string& text) {
  return std::async(
      std::launch::async, [&session, round, index, text]() -> Result<std::pair<StepState, std::vector<RankValue>>> {
        const auto gathered = session.gather(Round(round), index, bytes_of(text));
        if (!gathered) return tl::unexpected(gathered.error());
        return std::pair(gathered->step, std::vector<RankValue>(gathered->values.begin(), gathered->values.end()));
      });
}

std::vector<RankValue> values_of(Given given) {
  auto got = required(given.get());
  CHECK(got.first == StepState::kContinue);
  return got.second;
}

StepState step_of(Given given) {
  auto got = required(given.get());
  CHECK(got.second.empty());
  return got.first;
}

// The coordinator's answer to what the node says: two ranks, whatever they gave.
RankValues answer(std::uint64_t round, std::uint32_t index, std::uint32_t view = 1) {
  return {JobId(99), ViewId(view), {Round(round), index, true, {{0, bytes_of("a")}, {1, bytes_of("bc")}}}, {}, ""};
}

}  // namespace

TEST_CASE("ranks give, the node says it to the coordinator, and all get the answer") {
  RunningNode node;
  auto sessions = node.sessions(2);
  for (std::uint32_t index = 0; index < 3; ++index) {
    Given first = give(*sessions[0], 0, index, "a"), second = give(*sessions[1], 0, index, "bc");
    const RankValues said = node.coordinator.await<RankValues>(index + 1);
    CHECK(said.view == ViewId(1));
    CHECK_FALSE(said.shared.complete);
    CHECK(said.shared.key() == ValueKey{Round(0), index});
    CHECK(said.shared.values == answer(0, index).shared.values);
    node.server->on_control(answer(0, index));
    CHECK(values_of(std::move(first)) == answer(0, index).shared.values);
    CHECK(values_of(std::move(second)) == answer(0, index).shared.values);
  }
  // A rank with a new process asks again, and no peer is asked.
  CHECK(values_of(give(*sessions[1], 0, 1, "another")) == answer(0, 1).shared.values);
  CHECK(node.coordinator.all<RankValues>().size() == 3);
}

TEST_CASE("what a gather came to in an earlier process is told to those that ask again") {
  RunningNode node;
  auto sessions = node.sessions(2);
  CHECK(sessions[0]->gathered(answer(7, 3).shared));
  const RankValues said = node.coordinator.await<RankValues>();
  CHECK(said.shared == answer(7, 3).shared);
  CHECK(said.shared.complete);
  CHECK(values_of(give(*sessions[1], 7, 3, "another")) == answer(7, 3).shared.values);
  SharedValues large = answer(7, 4).shared;
  large.values.assign(65, {0, std::vector<std::byte>(kMaxValueBytes)});
  const auto refused = failure_of(sessions[0]->gathered(large));
  CHECK(contains(refused.message, "value 4 after round 7 has 4260880 bytes"));
  CHECK(node.coordinator.all<RankValues>().size() == 1);
}

TEST_CASE("what cannot be given is refused before anybody hears of it") {
  RunningNode node;
  auto sessions = node.sessions(1);
  const auto large = failure_of(sessions[0]->gather(Round(0), 0, std::vector<std::byte>(kMaxValueBytes + 1)));
  CHECK(large.code == ErrorCode::kLimit);
  CHECK(contains(large.message, "a value of 65537 bytes; at most 65536"));
  CHECK(node.coordinator.all<RankValues>().empty());
  // The largest goes through.
  Given most = give(*sessions[0], 0, ~0u, std::string(kMaxValueBytes, 'm'));
  RankValues said = node.coordinator.await<RankValues>();
  said.shared.complete = true;
  node.server->on_control(said);
  CHECK(values_of(std::move(most)).front().data.size() == kMaxValueBytes);
}

TEST_CASE("a gather ends with its view, as a wait does") {
  RunningNode node;
  auto sessions = node.sessions(2);
  Given waits = give(*sessions[0], 0, 0, "a");
  CHECK(waits.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout);
  SUBCASE("a member is lost") {
    node.server->on_control(StopJob{JobId(99), ViewId(1), StopKind::kRestart, Round(0), "node 1 is lost"});
    CHECK(step_of(std::move(waits)) == StepState::kRestart);
    CHECK(sessions[0]->stop_reason() == "node 1 is lost");
  }
  SUBCASE("another rank of the node dies") {
    sessions[1].reset();
    CHECK(step_of(std::move(waits)) == StepState::kRestart);
  }
  SUBCASE("the job is stopped") {
    node.server->on_control(StopJob{JobId(99), ViewId(1), StopKind::kStopped, Round(0), "node 1 was stopped"});
    CHECK(step_of(std::move(waits)) == StepState::kStopped);
  }
  SUBCASE("another rank of the node stops") {
    CHECK(sessions[1]->finish(LeaveKind::kStopped));
    CHECK(step_of(std::move(waits)) == StepState::kStopped);
  }
  SUBCASE("another rank of the node has finished") {
    CHECK(sessions[1]->finish(LeaveKind::kFinished));
    CHECK(step_of(std::move(waits)) == StepState::kStopped);  // after a while
    CHECK(contains(sessions[0]->stop_reason(), "trainer rank 1"));
  }
  SUBCASE("the worker is gone") {
    node.server->stop();
    const auto got = waits.get();
    const bool over = got ? got->first == StepState::kRestart : got.error().code == ErrorCode::kUnavailable;
    CHECK(over);
  }
  SUBCASE("ranks make different calls") {
    const std::string why = "rank 0 is at value 0, rank 1 at value 1: all ranks make the same calls";
    node.server->on_control(
        RankValues{JobId(99), ViewId(1), {Round(0), 0, false, {}}, ErrorCode::kInvalidArgument, why});
    const auto got = failure_of(waits.get());
    CHECK(got.code == ErrorCode::kInvalidArgument);
    CHECK(got.message == why);
    // Its parameters are there, so that it may still pass before the view is over for it, too.
    auto other = sessions[1]->wait();
    REQUIRE(eventually([&] { return !other || !(other = sessions[1]->wait()); }));
    CHECK(other.error().message == why);
    const LeaveJob leave = node.coordinator.await<LeaveJob>();
    CHECK(leave.kind == LeaveKind::kFailed);
    CHECK(leave.message == why);
  }
}

TEST_CASE("a stop that is asked for does not end a gather, which others still answer") {
  RunningNode node;
  auto sessions = node.sessions(1);
  Given given = give(*sessions[0], 0, 0, "a");
  node.coordinator.await<RankValues>();
  node.server->on_control(StopRequest{JobId(99), ViewId(1), "somebody asks"});
  REQUIRE(eventually([&] {
    return node.lanes.job()->header().state.load() == static_cast<std::uint32_t>(RegionState::kStopRequested);
  }));
  node.server->on_control(answer(0, 0));
  CHECK(values_of(std::move(given)).size() == 2);
}

TEST_CASE("what is open is said again, and all that is known when the coordinator says a welcome again") {
  RunningNode node;
  auto sessions = node.sessions(2);
  Given first = give(*sessions[0], 0, 0, "a"), second = give(*sessions[1], 0, 0, "bc");
  node.coordinator.await<RankValues>();
  node.server->on_control(answer(0, 0));
  CHECK(values_of(std::move(first)) == values_of(std::move(second)));
  first = give(*sessions[0], 0, 1, "a");
  // The coordinator may know the answer already.
  const RankValues again = node.coordinator.await<RankValues>(2);
  CHECK(again.shared.values.size() == 1);
  CHECK(again.shared.values[0].rank == 0);
  node.welcome();
  node.coordinator.await<RankValues>(4);
  const std::vector<RankValues> said = node.coordinator.all<RankValues>();
  CHECK(std::ranges::count_if(said, [](const RankValues& one) { return one.shared == answer(0, 0).shared; }) == 1);
  node.server->on_control(answer(0, 1));
  CHECK(values_of(std::move(first)).size() == 2);
}

TEST_CASE("answers outlive views in the worker, and workers in the recovery handles of trainers") {
  const auto recovery = std::make_shared<RecoveryHandle>();
  auto node = std::make_unique<FakeNode>();
  node->run();
  const auto attach = [&](std::uint32_t view, std::uint64_t round) {
    SessionOptions options = node->session_options();
    options.recovery = recovery;
    const std::size_t joins = node->coordinator.all<JoinJob>().size();
    auto attached = node->attach(options);
    node->coordinator.await<JoinJob>(joins + 1);
    node->welcome(view, Round(round));
    auto session = FakeNode::session_of(std::move(attached));
    REQUIRE(session->start());
    return session;
  };
  {
    auto session = attach(1, 4);
    for (std::uint64_t round = 4; round < 6; ++round) {
      Given given = give(*session, round, 0, "a");
      node->coordinator.await<RankValues>(round - 3);
      node->server->on_control(answer(round, 0));
      values_of(std::move(given));
    }
  }
  node->coordinator.await<LeaveJob>();
  SUBCASE("the worker lives") {
    recovery->answers = {};
    auto session = attach(2, 5);
    // It says them, when the view begins.
    const RankValues said = node->coordinator.await<RankValues>(4);
    CHECK(said.view == ViewId(2));
    CHECK(said.shared == answer(5, 0).shared);
    CHECK(values_of(give(*session, 4, 0, "other")) == answer(4, 0).shared.values);
  }
  SUBCASE("it is another one") {
    node = std::make_unique<FakeNode>();
    node->run();
    auto session = attach(2, 5);
    CHECK(node->coordinator.await<RankValues>(2).shared == answer(5, 0).shared);
    CHECK(values_of(give(*session, 4, 0, "other")) == answer(4, 0).shared.values);
  }
  SUBCASE("the last round is gone through again") {
    auto session = attach(2, 4);
    CHECK(values_of(give(*session, 4, 0, "other")) == answer(4, 0).shared.values);
    Given given = give(*session, 5, 0, "z");
    RankValues said = node->coordinator.await<RankValues>(4);
    CHECK(said.shared.values.front().data == bytes_of("z"));
    said.shared.complete = true;
    node->server->on_control(said);
    CHECK(values_of(std::move(given)).front().data == bytes_of("z"));
  }
}

}  // namespace tributary::gather_test
