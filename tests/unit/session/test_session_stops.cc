// A session whose rank gets a stop while it waits.
#include <atomic>
#include <future>
#include <thread>

#include "tests/unit/required.h"
#include "tests/unit/worker/node_fixture.h"

namespace tributary::session_stops_test {

using namespace testing;

TEST_CASE("an attach ends when its rank is to stop, and says what it waited for") {
  std::atomic<bool> told = false;
  FakeNode node;
  SessionOptions options = node.session_options(0, 2);
  options.stops = [&] { return told.load(); };
  SUBCASE("the worker") {
    options.socket = node.directory / "later.sock";
    options.note = [&](const std::string&) { told = true; };
    const Error error = error_of(node.attach(options));
    CHECK(error.code == ErrorCode::kStopped);
    CHECK(contains(error.message, "told to stop while job 'a-job' waited for the worker daemon: "));
    CHECK(contains(error.message, options.socket));
  }
  SUBCASE("other ranks") {
    node.run();
    options.note = [&](const std::string& note) { told = contains(note, "local rank 1 of node 0"); };
    const Error error = error_of(node.attach(options));
    CHECK(error.code == ErrorCode::kStopped);
    CHECK(contains(error.message, "told to stop while job 'a-job' waited for local rank 1 of node 0, "));
    CHECK(contains(error.message, " s of 20 s"));
    // The worker has let it go: the same rank can come again.
    auto again = node.attach(node.session_options(0, 2)), other = node.attach(node.session_options(1, 2));
    node.admit();
    CHECK(again.get());
    CHECK(other.get());
  }
  SUBCASE("nobody: it was told before") {
    node.run();
    told = true;
    CHECK(error_of(node.attach(options)).code == ErrorCode::kStopped);
  }
}

TEST_CASE("who waits for a round, or for the last state, is asked, and waits on") {
  std::atomic<int> asked = 0;
  std::atomic<bool> told = false;
  RunningNode node;
  SessionOptions options = node.session_options();
  options.stops = [&] {
    ++asked;
    return told.load();
  };
  auto session = node.session(options);
  told = true;
  REQUIRE(session->start());
  ready_all(*session);
  auto waiting = std::async(std::launch::async, [&] { return session->wait(); });
  const auto is_asked_again = [&, before = asked.load()] { return asked > before + 2; };
  REQUIRE(eventually(is_asked_again));
  CHECK(waiting.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
  node.lanes.complete(Round(1));
  const auto state = required(waiting.get());
  CHECK(state == StepState::kContinue);

  REQUIRE(session->finish(LeaveKind::kFinished));
  auto saving = std::async(std::launch::async, [&] { return session->saved(); });
  const auto is_asked_then = [&, before = asked.load()] { return asked > before + 2; };
  REQUIRE(eventually(is_asked_then));
  node.coordinator.await<LeaveJob>();
  node.server->on_control(StopJob{JobId(99), ViewId(1), StopKind::kFinished, Round(1), {}});
  node.server->on_control(SnapshotDone{JobId(99), ViewId(1), Round(1), true, 0, ""});
  CHECK(saving.get());
}

TEST_CASE("a worker that is busy when a rank detaches is waited for") {
  std::atomic<bool> over = false;
  RunningNode node;
  auto session = node.session(node.session_options());
  REQUIRE(session->start());
  SessionOptions others = node.session_options();
  others.job.name = "another";
  others.stops = [&] { return over.load(); };
  auto busy = node.coordinator.hold();
  auto another = node.attach(others);  // the worker is about to join that job
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  auto leaving = std::async(std::launch::async, [&] { return session->finish(LeaveKind::kFinished); });
  CHECK(leaving.wait_for(std::chrono::milliseconds(10'500)) == std::future_status::timeout);
  busy.unlock();
  const Status left = leaving.get();
  CHECK_MESSAGE(left, left.error().message);
  over = true;
  CHECK(error_of(std::move(another)).code == ErrorCode::kStopped);
}

}  // namespace tributary::session_stops_test
