#include <doctest/doctest.h>

#include "common/base/checksum.h"
#include "tests/unit/required.h"
#include "tests/unit/worker/node_fixture.h"

namespace tributary::session_test {

using namespace testing;

namespace {

// All ranks are ready and the round is complete.
void complete(FakeNode& node, const std::vector<std::unique_ptr<Session>>& sessions, std::uint64_t round) {
  for (const auto& session : sessions) ready_all(*session);
  node.lanes.complete(Round(round));
  for (const auto& session : sessions) CHECK(required(session->wait()) == StepState::kContinue);
}

void name_snapshot(FakeNode& node, std::uint64_t round, std::uint32_t view = 1) {
  node.server->on_control(SnapshotAt{JobId(99), ViewId(view), Round(round)});
  REQUIRE(eventually([&] { return node.lanes.job()->header().snapshot_round.load() == round; }));
}

std::vector<std::byte> many(std::size_t bytes, std::uint64_t value) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(value));
}

std::span<const std::byte> kept(Session& session) {
  return required(session.kept()).bytes;
}

// Both ranks of a node, in a view that begins at this round; adjust(): changes the welcome to it.
std::vector<std::unique_ptr<Session>> welcomed(
    FakeNode& node, std::uint32_t view, Round round,
    const std::function<void(JobWelcome&)>& adjust = [](JobWelcome&) {}) {
  FakeNode::Attached attaching[] = {node.attach(node.session_options(0, 2)), node.attach(node.session_options(1, 2))};
  node.coordinator.await<JoinJob>(view);
  JobWelcome welcome = node.welcome_message(view, round);
  adjust(welcome);
  node.server->on_control(welcome);
  std::vector<std::unique_ptr<Session>> sessions;
  for (auto& one : attaching) sessions.push_back(FakeNode::session_of(std::move(one)));
  return sessions;
}

}  // namespace

TEST_CASE("two ranks train through shared memory and see the same parameters") {
  RunningNode node;
  auto sessions = node.sessions(2);
  CHECK(sessions[0]->fresh());
  CHECK(sessions[0]->resume_round() == Round(0));
  CHECK(sessions[1]->job() == JobId(99));
  for (std::uint64_t round = 1; round <= 20; ++round) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      for (float& g : sessions[rank]->gradient(2)) g = static_cast<float>(rank + 1);
      ready_all(*sessions[rank], 8);
    }
    CHECK(node.lanes.job()->tensor_words(1)[0].weight.load() == 8);
    std::thread worker([&] { node.lanes.complete(Round(round)); });
    for (auto& session : sessions) CHECK(required(session->wait()) == StepState::kContinue);
    worker.join();
    for (auto& session : sessions) {
      CHECK(session->parameters(2).front() == 3.0f * static_cast<float>(round));
      CHECK(session->parameters(2).back() == 3.0f * static_cast<float>(round));
      CHECK(session->parameters(0).front() == 0.0f);
    }
  }
}

TEST_CASE("rank 0 of a fresh job gives the initial values, and nobody starts before") {
  RunningNode node;
  auto ranks = welcomed(node, 1, Round());
  auto started = std::async(std::launch::async, [&] { return ranks[1]->start(); });
  CHECK(started.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  for (float& value : ranks[0]->initial(1)) value = 2.5f;
  CHECK(ranks[0]->start());
  CHECK(started.get());
  CHECK(ranks[1]->parameters(1)[49] == 2.5f);
}

TEST_CASE("who writes parameters has a copy of his own, and who holds their memory can read it after the session") {
  RunningNode node;
  auto sessions = node.sessions(2);
  const auto read = [](const auto& values) { return values[0]; };
  const auto own = sessions[0]->hold_parameters(), held = sessions[1]->hold_parameters();
  REQUIRE((own && held));
  const std::span<const float> mine = sessions[0]->parameters(2), others = sessions[1]->parameters(2);
  const_cast<float&>(mine[0]) = 7.0f;
  CHECK(read(mine) == 7.0f);
  CHECK(read(others) == 0.0f);
  CHECK(*(node.lanes.job()->parameters() + sessions[0]->layout().tensor_offset(2)) == 0.0f);
  for (auto& session : sessions) {
    for (float& g : session->gradient(2)) g = 1.0f;
    ready_all(*session);
  }
  node.lanes.complete(Round(1));
  for (auto& session : sessions) CHECK(required(session->wait()) == StepState::kContinue);
  CHECK(read(others) == 2.0f);
  sessions.clear();
  CHECK(read(others) == 2.0f);
}

TEST_CASE("a resumed job begins at its round, for the rounds of every tensor") {
  RunningNode node;
  auto sessions = node.sessions(1, 4, Round(123));
  CHECK_FALSE(sessions[0]->fresh());
  CHECK(sessions[0]->resume_round() == Round(123));
  CHECK(node.lanes.job()->tensor_words(0)[0].round.load() == 123);
  ready_all(*sessions[0]);
  CHECK(node.lanes.job()->tensor_words(0)[2].round.load() == 124);
  node.lanes.complete(Round(124));
  CHECK(required(sessions[0]->wait()) == StepState::kContinue);
}

TEST_CASE("what a rank keeps goes to the coordinator for the round of a snapshot, and comes back to the rank") {
  RunningNode node;
  auto sessions = node.sessions(2);
  CHECK(kept(*sessions[1]).empty());
  name_snapshot(node, 2);
  for (std::uint64_t round = 1; round <= 4; ++round) {
    for (auto& session : sessions) {
      CHECK(session->keep(Round(round), many(3, round)));
      ready_all(*session);
    }
    node.lanes.complete(Round(round));
    for (auto& session : sessions) CHECK(required(session->wait()) == StepState::kContinue);
  }
  const NodeRankState sent = node.coordinator.await<NodeRankState>(2);
  CHECK(sent.job == JobId(99));
  CHECK(sent.view == ViewId(1));
  CHECK(sent.kept.round == Round(2));
  CHECK(sent.kept.state == many(3, 2));

  // A stop is after a round that is complete: the worker gets what is newer than it has.
  for (auto& session : sessions) CHECK(session->finish(LeaveKind::kStopped));
  CHECK(node.coordinator.await<NodeRankState>(6).kept.round == Round(4));
  node.coordinator.await<LeaveJob>();
  sessions.clear();
  node.server->on_control(StopJob{JobId(99), ViewId(1), StopKind::kStopped, Round(4), "stopped"});

  auto again = node.attach(node.session_options());
  node.coordinator.await<JoinJob>(2);
  node.welcome(2, Round(4), 1024, {many(3, 4)});
  const auto session = FakeNode::session_of(std::move(again));
  CHECK(std::ranges::equal(kept(*session), many(3, 4)));
  CHECK(session->keep(Round(5), std::vector<std::byte>(kMaxRankState + 1)).error().code == ErrorCode::kLimit);
}

TEST_CASE("what a rank keeps is held for the trainer that takes its place, though no snapshot has the round") {
  RunningNode node;
  {
    auto sessions = node.sessions(2);
    for (std::uint64_t round = 1; round <= 2; ++round) {
      complete(node, sessions, round);
      CHECK(sessions[0]->keep(Round(round), many(3, 1)));
      CHECK(sessions[0]->keep(Round(round), many(3, 10 + round)));  // the last one counts
    }
  }  // killed: nobody has finished
  node.coordinator.await<LeaveJob>();
  auto again = welcomed(node, 2, Round(2));
  CHECK(std::ranges::equal(kept(*again[0]), many(3, 12)));
  CHECK(kept(*again[1]).empty());
}

TEST_CASE(
    "a large part is shared with the worker, held for whoever takes the rank's place, and sent when it is asked for") {
  const std::vector<std::byte> a = many(3u << 20, 7), b = many(5, 8);
  const std::span<const std::byte> pieces[] = {a, b};
  std::vector<std::byte> all = a;
  all.insert(all.end(), b.begin(), b.end());
  RunningNode node;
  LargePart large;
  {
    auto sessions = node.sessions(2);
    REQUIRE(sessions[1]->keep(Round(1), {many(2, 1), pieces}));
    complete(node, sessions, 1);
    node.server->on_control(SnapshotAt{JobId(99), ViewId(1), Round(1)});
    REQUIRE(eventually([&] { return sessions[1]->wanted_round() == Round(1); }));
    REQUIRE(sessions[1]->keep(Round(1), {many(2, 2), pieces, false}));
    const StateHead head = StateHead::of(node.coordinator.await<NodeRankState>().kept.state);
    large = head.large;
    CHECK(large.bytes == all.size());
    CHECK_FALSE(head.whole);
  }
  node.coordinator.await<LeaveJob>();
  auto sessions = welcomed(node, 2, Round(1));
  CHECK(node.coordinator.await<JoinJob>(2).held_rounds.empty());  // it was not whole
  const auto again = required(sessions[1]->kept());
  CHECK(std::ranges::equal(again.bytes, many(2, 2)));
  CHECK(std::ranges::equal(again.large, all));
  CHECK_FALSE(again.whole);
  CHECK(kept(*sessions[0]).empty());

  node.server->on_control(WantPart{JobId(99), large, 3u << 20});
  const StatePart part = node.coordinator.await<StatePart>();
  CHECK(std::ranges::equal(part.data, b));
  LargePart another = large;
  ++another.low;
  node.server->on_control(WantPart{JobId(99), another, 0});
  CHECK(node.coordinator.await<StatePart>(2).data.empty());
}

TEST_CASE("the giver's state comes to the ranks that have nothing, by way of the coordinator") {
  const std::vector<std::byte> values = many(100'000, 3);
  const std::span<const std::byte> pieces[] = {values};
  RunningNode node;
  auto sessions = welcomed(node, 1, Round(), [](JobWelcome& welcome) { welcome.giver = 0; });
  CHECK(sessions[0]->first_state() == FirstState::kGiven);
  CHECK(sessions[1]->first_state() == FirstState::kComes);
  auto waiting = std::async(std::launch::async, [&] { return sessions[1]->kept_of_first(); });
  REQUIRE(sessions[0]->keep(Round(0), {many(1, 9), pieces}));
  const NodeRankState given = node.coordinator.await<NodeRankState>();
  CHECK(given.kept.round == Round(0));
  CHECK(waiting.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout);
  CHECK(node.coordinator.await<NodeRankState>(2).kept.state == given.kept.state);  // the first may be lost on its way
  node.server->on_control(given);
  const auto first = required(waiting.get());
  CHECK(std::ranges::equal(first.bytes, many(1, 9)));
  CHECK(std::ranges::equal(first.large, values));
  CHECK(node.coordinator.all<WantPart>().empty());  // the node has it
}

TEST_CASE("a large part that no rank of the node has comes from the coordinator, part by part") {
  std::vector<std::byte> values = many((2u << 20) + 10, 4);
  values.back() = std::byte{5};
  Checksum128 checksum;
  checksum.add(values.data(), values.size());
  const LargePart large{values.size(), checksum.value().high, checksum.value().low};
  RunningNode node;
  auto sessions = welcomed(node, 1, Round(6), [&](JobWelcome& welcome) {
    welcome.first_state = StateHead{large, true}.before(many(1, 6));
  });
  CHECK(sessions[0]->first_state() == FirstState::kComes);
  const auto answer = [&](std::byte change) {
    for (const WantPart& want : node.coordinator.all<WantPart>()) {
      const auto part =
          std::span(values).subspan(want.offset).first(std::min<std::size_t>(kPartBytes, values.size() - want.offset));
      StatePart message{want, {part.begin(), part.end()}};
      message.data.front() ^= change;
      node.server->on_control(message);
    }
  };
  node.coordinator.await<WantPart>(3);
  SUBCASE("and is there") {
    for (const WantPart& want : node.coordinator.all<WantPart>()) {
      node.server->on_control(StatePart{want, {}, true});  // it comes there, too
    }
    answer({});
    for (auto& session : sessions) {
      const auto first = required(session->kept_of_first());
      CHECK(std::ranges::equal(first.large, values));
    }
  }
  SUBCASE("and is another") {
    answer(std::byte{1});
    CHECK(contains(sessions[0]->kept_of_first().error().message, "is lost"));
  }
  SUBCASE("or is lost") {
    node.server->on_control(StatePart{{JobId(99), large, 0}, {}});
    CHECK(contains(sessions[0]->kept_of_first().error().message, "is lost"));
  }
  SUBCASE("or the view ends before") {
    auto waiting = std::async(std::launch::async, [&] { return sessions[0]->kept_of_first(); });
    node.server->on_control(StopJob{JobId(99), ViewId(1), StopKind::kRestart, Round(6), "somebody died"});
    CHECK(contains(waiting.get().error().message, "somebody died"));
  }
}

TEST_CASE("what a rank keeps is given for the round that it stops after, though a later one was given for a snapshot") {
  RunningNode node;
  auto session = std::move(node.sessions(1)[0]);
  name_snapshot(node, 3);
  for (std::uint64_t round = 1; round <= 3; ++round) {
    REQUIRE(session->keep(Round(round), many(3, round)));
    ready_all(*session);
    if (round == 3) break;  // other nodes stop before they get there
    node.lanes.complete(Round(round));
    CHECK(required(session->wait()) == StepState::kContinue);
  }
  CHECK(node.coordinator.await<NodeRankState>().kept.round == Round(3));
  CHECK(session->finish(LeaveKind::kStopped));
  const NodeRankState sent = node.coordinator.await<NodeRankState>(2);
  CHECK(sent.kept.round == Round(2));
  CHECK(sent.kept.state == many(3, 2));
  CHECK(node.coordinator.all<NodeRankState>().size() == 2);
}

TEST_CASE("what a rank keeps is given for a snapshot that is named late") {
  RunningNode node;
  auto session = std::move(node.sessions(1)[0]);
  const auto keep_and_ready = [&](std::uint64_t round) {
    REQUIRE(session->keep(Round(round), many(3, round)));
    ready_all(*session);
  };
  keep_and_ready(1);
  SUBCASE("before the round is waited for") {
    name_snapshot(node, 1);
    node.lanes.complete(Round(1));
    CHECK(required(session->wait()) == StepState::kContinue);
  }
  SUBCASE("in the next round") {
    node.lanes.complete(Round(1));
    CHECK(required(session->wait()) == StepState::kContinue);
    name_snapshot(node, 1);
    keep_and_ready(2);
  }
  SUBCASE("while the next round waits for it") {
    node.lanes.complete(Round(1));
    CHECK(required(session->wait()) == StepState::kContinue);
    keep_and_ready(2);
    auto waiting = std::async(std::launch::async, [&] { return session->wait(); });
    name_snapshot(node, 1);
    node.coordinator.await<NodeRankState>();
    node.lanes.complete(Round(2));
    CHECK(required(waiting.get()) == StepState::kContinue);
  }
  const NodeRankState sent = node.coordinator.await<NodeRankState>();
  CHECK(sent.kept.round == Round(1));
  CHECK(sent.kept.state == many(3, 1));
  CHECK(node.coordinator.all<NodeRankState>().size() == 1);
}

TEST_CASE("a welcome whose rules of redo do not fit the job is refused in words") {
  RunningNode node;
  SessionOptions options = node.session_options();
  std::string words;
  SUBCASE("pushes are to be kept of nodes with clocks of their own") {
    options.job.mode = Mode::kSsp;
    words = "configuration rules that out";
  }
  SUBCASE("servers are missing in the list of what they have") {
    words = "server 1";
  }
  auto attached = node.attach(options);
  node.coordinator.await<JoinJob>();
  JobWelcome message = node.welcome_message(1, Round(3));
  if (options.job.mode == Mode::kSsp) {
    message.redo = true;
  } else {
    message.owners.back().shard = ShardIndex(1);
    message.redo_after = {Version(3)};
  }
  node.server->on_control(message);
  const Error error = error_of(std::move(attached));
  CHECK(error.code == ErrorCode::kMalformed);
  CHECK(contains(error.message, words));
  CHECK(node.coordinator.await<LeaveJob>().kind == LeaveKind::kFailed);
}

TEST_CASE("the next view of a job is joined when the lanes have let go of its redo ring") {
  RunningNode node;
  auto first = node.attach(node.session_options());
  node.coordinator.await<JoinJob>();
  JobWelcome message = node.welcome_message();
  message.redo = true;
  node.server->on_control(message);
  auto session = FakeNode::session_of(std::move(first));
  const std::shared_ptr<RedoRing> ring = node.lanes.job()->spec().redo;
  REQUIRE(ring);
  RedoRing::Use lane = RedoRing::use(ring);  // as a lane would
  node.server->on_control(StopJob{JobId(99), ViewId(1), StopKind::kRestart, Round(0), "somebody is lost"});
  REQUIRE(eventually([&] { return node.lanes.closed() == 1; }));
  session.reset();
  auto second = node.attach(node.session_options());
  REQUIRE(eventually([&] {
    const auto summaries = node.server->summaries();
    return std::ranges::any_of(summaries, [](const NodeJobSummary& job) { return job.phase == "joining"; });
  }));
  CHECK(node.coordinator.all<JoinJob>().size() == 1);
  lane.reset();
  CHECK(node.coordinator.await<JoinJob>(2).redo_job == JobId(99));
  node.welcome(2);
  CHECK(second.get());
}

TEST_CASE("after a lost member a rank finds what it kept itself, for the round that the view begins at") {
  RunningNode node;
  SessionOptions options = node.session_options();
  options.recovery = std::make_shared<RecoveryHandle>();
  auto session = node.session(options, 1, Round(7));
  REQUIRE(session->start());
  for (std::uint64_t round = 8; round <= 10; ++round) {
    REQUIRE(session->keep(Round(round), many(1, round)));
    ready_all(*session);
    if (round == 10) break;
    node.lanes.complete(Round(round));
    CHECK(required(session->wait()) == StepState::kContinue);
  }
  node.server->on_control(StopJob{JobId(99), ViewId(1), StopKind::kRestart, Round(9), "somebody is lost"});
  CHECK(required(session->wait()) == StepState::kRestart);
  session.reset();
  session = node.session(options, 2, Round(9));
  SUBCASE("and gives it, as the welcome has none") {
    const NodeRankState sent = node.coordinator.await<NodeRankState>();
    CHECK(sent.view == ViewId(2));
    CHECK(sent.kept.round == Round(9));
    CHECK(sent.kept.state == many(1, 9));
  }
  SUBCASE("and again when the next view ends before its first round is complete") {
    REQUIRE(session->start());
    REQUIRE(session->keep(Round(10), many(1, 110)));
    ready_all(*session);
    node.server->on_control(StopJob{JobId(99), ViewId(2), StopKind::kRestart, Round(9), "somebody is lost again"});
    CHECK(required(session->wait()) == StepState::kRestart);
    session.reset();
    session = node.session(options, 3, Round(9));
  }
  SUBCASE("and gives it, if a snapshot is named for where the view begins") {
    REQUIRE(session->start());
    REQUIRE(session->keep(Round(10), many(1, 110)));
    ready_all(*session);
    name_snapshot(node, 9, 2);
    node.lanes.complete(Round(10));
    CHECK(required(session->wait()) == StepState::kContinue);
    REQUIRE(session->keep(Round(11), many(1, 111)));
    const NodeRankState sent = node.coordinator.await<NodeRankState>();
    CHECK(sent.kept.round == Round(9));
    CHECK(sent.kept.state == many(1, 9));
  }
  CHECK(std::ranges::equal(kept(*session), many(1, 9)));
}

TEST_CASE("ready rings the doorbells of exactly the lanes that own chunks of the tensor") {
  RunningNode node(2);
  auto sessions = node.sessions(1);
  const Layout& layout = sessions[0]->layout();
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    bool owned[2] = {false, false};
    const auto [begin, end] = layout.chunks_of(t);
    for (std::uint32_t c = begin; c < end; ++c) owned[layout.owner(ChunkIndex(c)).lane.value] = true;
    sessions[0]->ready(t, 1);
    CHECK(node.lanes.rung(0) == owned[0]);
    CHECK(node.lanes.rung(1) == owned[1]);
  }
}

TEST_CASE("wait for one tensor returns before the others' answers are in") {
  RunningNode node;
  auto sessions = node.sessions(1);
  ready_all(*sessions[0]);
  const Layout& layout = sessions[0]->layout();
  const auto [begin, end] = layout.chunks_of(2);
  REQUIRE(end == layout.chunks());
  REQUIRE(begin > 0);
  for (std::uint32_t c = begin; c < end; ++c) FakeLanes::publish_chunk(*node.lanes.job(), c, Version(1));
  CHECK(required(sessions[0]->wait(2)) == StepState::kContinue);
  auto all = std::async(std::launch::async, [&] { return sessions[0]->wait(); });
  CHECK(all.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  for (std::uint32_t c = 0; c < begin; ++c) FakeLanes::publish_chunk(*node.lanes.job(), c, Version(1));
  CHECK(required(all.get()) == StepState::kContinue);
}

TEST_CASE("a stop request is heard at the end of a complete round, and the last leave carries that round") {
  RunningNode node;
  auto sessions = node.sessions(2);
  for (auto& session : sessions) ready_all(*session);
  node.server->on_control(StopRequest{JobId(99), ViewId(1), "maintenance"});
  REQUIRE(eventually([&] { return node.lanes.job()->header().state.load() != 0; }));
  node.lanes.complete(Round(1));
  for (auto& session : sessions) CHECK(required(session->wait()) == StepState::kStopRequested);
  for (auto& session : sessions) CHECK(session->finish(LeaveKind::kStopped));
  const LeaveJob leave = node.coordinator.await<LeaveJob>();
  CHECK(leave.kind == LeaveKind::kStopped);
  CHECK(leave.round == Round(1));
  CHECK(leave.job == JobId(99));
  CHECK(node.lanes.closed() == 1);
}

// Three ranks. The first leaves after round 1, the second has begun another, and the third has yet to look.
std::vector<std::unique_ptr<Session>> left_by_the_first(FakeNode& node, LeaveKind kind, const std::string& message) {
  node.run();
  auto sessions = node.sessions(3);
  for (auto& session : sessions) ready_all(*session);
  node.lanes.complete(Round(1));
  CHECK(required(sessions[0]->wait()) == StepState::kContinue);
  CHECK(required(sessions[1]->wait()) == StepState::kContinue);
  ready_all(*sessions[1]);  // round 2, which rank 0 will not see
  CHECK(sessions[0]->finish(kind, message));
  return sessions;
}

TEST_CASE(
    "a rank that went on when its neighbour stopped is told, and one that is at the same round may stop with it") {
  FakeNode node;
  auto sessions = left_by_the_first(node, LeaveKind::kStopped, {});
  CHECK(required(sessions[1]->wait()) == StepState::kStopped);
  CHECK(contains(sessions[1]->stop_reason(), "after round 1"));
  CHECK(required(sessions[2]->wait()) == StepState::kStopRequested);
  CHECK(node.coordinator.all<LeaveJob>().empty());
  CHECK(sessions[1]->finish(LeaveKind::kStopped));
  sessions[2].reset();  // just goes: cleanly, the view is stopped
  const LeaveJob leave = node.coordinator.await<LeaveJob>();
  CHECK(leave.kind == LeaveKind::kStopped);
  CHECK(leave.round == Round(1));
}

TEST_CASE("a rank that finishes for all ends the rounds of the node's others") {
  FakeNode node;
  auto sessions = left_by_the_first(node, LeaveKind::kFinishesAll, "rank 0 ended training: enough");
  CHECK(required(sessions[1]->wait()) == StepState::kFinished);
  CHECK(sessions[1]->stop_reason() == "rank 0 ended training: enough");
  CHECK(required(sessions[2]->wait()) == StepState::kContinue);  // round 1 is complete
  ready_all(*sessions[2]);
  CHECK(required(sessions[2]->wait()) == StepState::kFinished);
  for (std::size_t rank : {1, 2}) CHECK(sessions[rank]->finish(LeaveKind::kFinished));
  const LeaveJob leave = node.coordinator.await<LeaveJob>();
  CHECK(leave.kind == LeaveKind::kFinishesAll);
  CHECK(leave.round == Round(1));
  CHECK(leave.message == "rank 0 ended training: enough");
}

TEST_CASE("a view that ends before it has parameters begins again, unless it ended cleanly") {
  for (const StopKind kind : {StopKind::kRestart, StopKind::kStopped, StopKind::kFinished}) {
    CAPTURE(static_cast<int>(kind));
    RunningNode node;
    auto ranks = welcomed(node, 1, Round());
    auto started = std::async(std::launch::async, [&] { return ranks[1]->start(); });  // waits for the first's values
    node.server->on_control(StopJob{JobId(99), ViewId(1), kind, Round(0), "it is over"});
    const auto status = failure_of(started.get());
    CHECK(status.code == (kind == StopKind::kRestart ? ErrorCode::kUnavailable : ErrorCode::kStopped));
    CHECK(contains(status.message, "it is over"));
  }
}

TEST_CASE("all ranks that finish make the node finish, one that stopped instead makes it a stop") {
  for (const LeaveKind second : {LeaveKind::kFinished, LeaveKind::kStopped}) {
    RunningNode node;
    auto sessions = node.sessions(2);
    complete(node, sessions, 1);
    CHECK(sessions[0]->finish(LeaveKind::kFinished));
    CHECK(sessions[1]->finish(second));
    CHECK(node.coordinator.await<LeaveJob>().kind == second);
  }
}

TEST_CASE("a rank that begins a round after another one finished does not wait forever") {
  RunningNode node;
  auto sessions = node.sessions(2);
  complete(node, sessions, 1);
  CHECK(sessions[0]->finish(LeaveKind::kFinished));
  ready_all(*sessions[1]);
  CHECK(required(sessions[1]->wait()) == StepState::kStopped);
}

TEST_CASE("the coordinator's stop reaches a sleeping rank, with kind and reason") {
  RunningNode node;
  auto sessions = node.sessions(1);
  ready_all(*sessions[0]);
  auto waiting = std::async(std::launch::async, [&] { return sessions[0]->wait(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  node.server->on_control(StopJob{JobId(99), ViewId(1), StopKind::kRestart, Round(0), "server 1 was lost"});
  CHECK(required(waiting.get()) == StepState::kRestart);
  CHECK(sessions[0]->stop_reason() == "server 1 was lost");
  // The next view, on the same socket, after the old session.
  sessions.clear();
  auto again = node.sessions(1, 2, Round(5));
  CHECK(again[0]->resume_round() == Round(5));
}

TEST_CASE("a stop at a round lets that round's last answers in first") {
  RunningNode node;
  auto sessions = node.sessions(1);
  ready_all(*sessions[0]);
  node.server->on_control(StopJob{JobId(99), ViewId(1), StopKind::kStopped, Round(1), "node 1 was stopped"});
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  node.lanes.complete(Round(1));
  const auto job = node.lanes.job();
  REQUIRE(eventually([&] { return job->header().state.load() == static_cast<std::uint32_t>(RegionState::kStopped); }));
  CHECK(required(sessions[0]->wait()) == StepState::kStopRequested);
  CHECK(sessions[0]->stop_reason() == "node 1 was stopped");
}

TEST_CASE("messages of another view stop nothing") {
  RunningNode node;
  auto sessions = node.sessions(1, 3);
  node.server->on_control(StopJob{JobId(99), ViewId(2), StopKind::kRestart, Round(0), "old"});
  node.server->on_control(StopRequest{JobId(98), ViewId(3), "other job"});
  ready_all(*sessions[0]);
  node.lanes.complete(Round(1));
  CHECK(required(sessions[0]->wait()) == StepState::kContinue);
  CHECK(node.lanes.job());
}

TEST_CASE("a worker that goes away is noticed by a sleeping rank") {
  RunningNode node;
  auto sessions = node.sessions(1);
  ready_all(*sessions[0]);
  auto waiting = std::async(std::launch::async, [&] { return sessions[0]->wait(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  node.server.reset();
  const auto result = failure_of(waiting.get());
  CHECK(result.code == ErrorCode::kUnavailable);
  CHECK(contains(result.message, node.socket()));
  CHECK(contains(result.message, "is gone"));
  CHECK_FALSE(sessions[0]->finish(LeaveKind::kFinished));
}

TEST_CASE("a server's refusal reaches every rank in the server's words") {
  RunningNode node;
  auto sessions = node.sessions(2);
  for (auto& session : sessions) ready_all(*session);
  node.server->lane_failed(node.lanes.job(),
                           {LaneFailure::Kind::kRefused, 0, {ErrorCode::kWrongLength, "wrong length: 12"}});
  for (auto& session : sessions) {
    const auto result = failure_of(session->wait());
    CHECK(result.code == ErrorCode::kWrongLength);
    CHECK(result.message == "wrong length: 12");
  }
  CHECK(node.coordinator.await<LeaveJob>().kind == LeaveKind::kFailed);
}

TEST_CASE("a rank that breaks the rules is told so, the others are asked to attach again") {
  RunningNode node;
  auto sessions = node.sessions(2);
  for (auto& session : sessions) ready_all(*session);
  node.server->lane_failed(node.lanes.job(), {LaneFailure::Kind::kTrainer, 1, {ErrorCode::kWrongRound, "ready twice"}});
  const auto culprit = failure_of(sessions[1]->wait());
  CHECK(contains(culprit.message, "trainer rank 1"));
  CHECK(contains(culprit.message, "broke the rules: ready twice"));
  CHECK(required(sessions[0]->wait()) == StepState::kRestart);
  CHECK(contains(sessions[0]->stop_reason(), "trainer rank 1"));
  CHECK(contains(node.coordinator.await<LeaveJob>().message, "broke the rules: ready twice"));
}

TEST_CASE("an attach waits for a worker that is started later, and says so") {
  FakeNode node;
  SessionOptions options = node.session_options();
  const std::string worker = options.socket;
  const TempDir dir;
  options.socket = dir / "later.sock";
  std::vector<std::string> notes;
  options.note = [&](const std::string& note) {
    notes.push_back(note);
    std::filesystem::create_symlink(worker, options.socket);  // as if it were started now
  };
  node.run();
  node.session(options);
  REQUIRE(notes.size() >= 1);
  CHECK(contains(notes[0], options.socket));
}

TEST_CASE("nobody listens on the socket: the path is named") {
  SessionOptions options;
  options.socket = "/tmp/tributary-test-no-such-directory/w.sock";
  SUBCASE("not as long as the attach may take") {
    options.attach_timeout = std::chrono::milliseconds(50);
  }
  SUBCASE("now, and the caller does not want to wait") {
    options.await_worker = false;
  }
  const auto session = failure_of(Session::attach(options, small_model()));
  CHECK(session.code == ErrorCode::kUnavailable);
  CHECK(contains(session.message, options.socket));
  options.socket = std::string(200, 'x');
  CHECK(Session::attach(options, small_model()).error().code == ErrorCode::kInvalidArgument);
}

TEST_CASE("members that never come end the attach with a time-out that says what to look at") {
  RunningNode node;
  SessionOptions options = node.session_options(0, 2);
  options.attach_timeout = std::chrono::milliseconds(50);
  const Error error = error_of(node.attach(options));
  CHECK(error.code == ErrorCode::kTimeout);
  CHECK(contains(error.message, "'a-job' did not come together within 50 ms"));
}

TEST_CASE(
    "whoever waits for others hears who they are: ranks of the node from the worker, the rest from the coordinator") {
  RunningNode node;
  SessionOptions options = node.session_options(0, 2);
  options.attach_timeout = std::chrono::milliseconds(1500);
  auto alone = node.attach(options);
  CHECK(contains(error_of(std::move(alone)).message, "missing: local rank 1 of node 0"));

  std::vector<std::string> notes;
  options.attach_timeout = std::chrono::milliseconds(6000);
  options.note = [&](const std::string& text) { notes.push_back(text); };
  auto first = node.attach(options);
  SessionOptions other = node.session_options(1, 2);
  other.attach_timeout = std::chrono::milliseconds(9000);
  auto second = node.attach(other);
  node.coordinator.await<JoinJob>();
  node.server->on_control(JobWaits{"a-job", "node 1, server 0"});
  node.server->on_control(JobWaits{"another", "nobody"});
  CHECK(contains(error_of(std::move(first)).message, "missing: node 1, server 0"));
  REQUIRE_FALSE(notes.empty());
  CHECK(contains(notes.back(), "waiting for node 1, server 0, "));
  CHECK(contains(notes.back(), " s of 6 s"));
  node.welcome();
  second.get();
}

TEST_CASE("an attach whose servers get on waits for longer than its time-out, and no longer once they stand still") {
  RunningNode node;
  SessionOptions options = node.session_options(0, 1);
  options.attach_timeout = std::chrono::milliseconds(4000);
  const auto began = std::chrono::steady_clock::now();
  auto attach = node.attach(options);
  node.coordinator.await<JoinJob>();
  bool comes = true;
  SUBCASE("they are there in the end") {}
  SUBCASE("they stand still") {
    comes = false;
  }
  for (std::uint64_t loaded = 1; loaded <= (comes ? 6 : 12); ++loaded) {
    // A worker that joins again knows of no step before the coordinator's next word.
    node.server->on_control(JobWaits{"a-job", "server 0, which loads its part", comes ? loaded : loaded % 2});
    if (attach.wait_for(std::chrono::milliseconds(1000)) == std::future_status::ready) break;
  }
  const auto lasted = [&] { return std::chrono::steady_clock::now() - began; };
  if (comes) {
    node.welcome();
    CHECK(attach.get());
    CHECK(lasted() > std::chrono::milliseconds(6000));
  } else {
    const Error error = error_of(std::move(attach));
    CHECK(error.code == ErrorCode::kTimeout);
    CHECK(contains(error.message, "within 4000 ms after its last step forward; missing: server 0, which loads"));
    CHECK(lasted() < std::chrono::milliseconds(11'000));
  }
}

}  // namespace tributary::session_test
