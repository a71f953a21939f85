#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "common/config/job_json.h"
#include "common/wire/codec.h"
#include "tests/unit/required.h"
#include "tests/unit/worker/node_fixture.h"

namespace tributary::attach_server_test {

using namespace testing;

namespace {

std::string pid_text() {
  return "pid " + std::to_string(getpid());
}

// A raw connection to the attach socket.
FileDescriptor raw_connection(const std::string& path) {
  const auto address = unix_address(path);
  FileDescriptor fd(socket(AF_UNIX, SOCK_SEQPACKET, 0));
  REQUIRE(connect(fd.get(), reinterpret_cast<const sockaddr*>(address->storage), address->length) == 0);
  return fd;
}

AttachRequest request_of(const SessionOptions& options) {
  AttachRequest request{.job_json = to_canonical_json(options.job),
                        .rank = options.topology.rank,
                        .local_rank = options.topology.local_rank,
                        .world_size = options.topology.world_size,
                        .local_world_size = options.topology.local_world_size,
                        .node_rank = options.topology.node_rank,
                        .tensors = small_model()};
  return request;
}

// A request that no worker takes.
AttachRequest impossible_request(const FakeNode& node) {
  AttachRequest request = request_of(node.session_options());
  request.local_rank = 3;
  return request;
}

Result<AttachReceived> answer(AttachSocket& socket) {
  return socket.receive(std::chrono::steady_clock::now() + std::chrono::seconds(20));
}

AttachError refusal_on(AttachSocket& socket) {
  auto got = required(answer(socket));
  const auto* error = std::get_if<AttachError>(&got.message);
  REQUIRE(error);
  return *error;
}

// The worker's answer to it on a connection of its own.
AttachError refusal_of(const FakeNode& node, const AttachRequest& request, std::span<const int> descriptors = {}) {
  auto socket = required(AttachSocket::connect(node.socket()));
  REQUIRE(socket.send(request, descriptors));
  return refusal_on(socket);
}

}  // namespace

TEST_CASE("the join names what all local ranks agreed on, once all are there") {
  RunningNode node;
  auto first = node.attach(node.session_options(1, 2, 6));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(node.coordinator.all<JoinJob>().empty());
  auto second = node.attach(node.session_options(0, 2, 6));
  const JoinJob join = node.coordinator.await<JoinJob>();
  CHECK(join.node == NodeRank(0));
  CHECK(join.nodes == 3);
  CHECK(join.local_world_size == 2);
  CHECK(join.world_size == 6);
  CHECK(join.tensors == small_model());
  node.welcome();
  CHECK(first.get());
  CHECK(second.get());
}

TEST_CASE("the join says what the ranks compute with, each kind once") {
  RunningNode node;
  std::vector<FakeNode::Attached> ranks;
  for (const char* kind : {"B", "A", "B", ""}) {
    SessionOptions options = node.session_options(static_cast<std::uint32_t>(ranks.size()), 4);
    options.computes_with = kind;
    ranks.push_back(node.attach(options));
  }
  CHECK(node.coordinator.await<JoinJob>().computes_with == ComputeKinds{"A", "B"});
  node.welcome();
  for (auto& rank : ranks) CHECK(rank.get());
  SessionOptions options = node.session_options();
  options.job.name = "another";
  options.computes_with = "\xff";
  CHECK(contains(error_of(node.attach(options)).message, "is no UTF-8"));
}

TEST_CASE("contradicting ranks are refused before anything is opened") {
  RunningNode node;
  const AttachError error = refusal_of(node, impossible_request(node));
  CHECK(error.code == ErrorCode::kTopology);
  CHECK(contains(error.message, "local_rank 3 is not below local_world_size 1"));
  CHECK(node.coordinator.all<JoinJob>().empty());
}

TEST_CASE("connections that read nothing do not hold up the others") {
  RunningNode node;
  const AttachRequest request = impossible_request(node);
  std::vector<AttachSocket> silent;
  for (int i = 0; i < 5; ++i) {
    silent.push_back(std::move(AttachSocket::connect(node.socket()).value()));
    // More answers than a socket holds; one that has been given up takes no more.
    for (int k = 0; k < 1000 && silent.back().send(request); ++k) continue;
  }
  const auto from = std::chrono::steady_clock::now();
  auto socket = required(AttachSocket::connect(node.socket()));
  REQUIRE(socket.send(request));
  REQUIRE(answer(socket));
  CHECK(std::chrono::steady_clock::now() - from < AttachSocket::kSendTimeout);
}

TEST_CASE("a trainer that sends more descriptors than one is refused") {
  RunningNode node;
  const std::vector<int> many(100, 0);
  CHECK(contains(refusal_of(node, impossible_request(node), many).message, "a packet with 100 descriptors"));
}

TEST_CASE("a local rank that is taken is refused with the process that has it, while gathering and while running") {
  RunningNode node;
  auto first = node.attach(node.session_options(0, 2));
  REQUIRE(eventually([&] { return node.server->summaries().size() == 1; }));
  Error error = error_of(node.attach(node.session_options(0, 2)));
  CHECK(error.code == ErrorCode::kTopology);
  CHECK(contains(error.message, "local_rank 0 of job 'a-job' is attached already, by " + pid_text()));
  auto second = node.attach(node.session_options(1, 2));
  node.admit();
  auto a = first.get(), b = second.get();
  REQUIRE(a);
  REQUIRE(b);
  error = error_of(node.attach(node.session_options(1, 2)));
  CHECK(contains(error.message, "local_rank 1 of job 'a-job' is attached already, by " + pid_text()));
  CHECK(node.lanes.job());  // the others train on
}

TEST_CASE("ranks of one node must agree on world, node, tensors and every key of the configuration") {
  RunningNode node;
  auto first = node.attach(node.session_options(0, 2, 4));
  REQUIRE(eventually([&] { return node.server->summaries().size() == 1; }));

  CHECK(contains(error_of(node.attach(node.session_options(1, 2, 8))).message, "world_size 8"));
  SessionOptions other_node = node.session_options(1, 2, 4);
  other_node.topology.rank = 3;
  other_node.topology.node_rank = 1;
  CHECK(contains(error_of(node.attach(other_node)).message,
                 "serves node_rank 0 of job 'a-job', the trainer says node_rank 1"));

  std::vector<TensorSpec> other_tensors = small_model();
  other_tensors[1].shape = {51};
  Error error = error_of(node.attach(node.session_options(1, 2, 4), other_tensors));
  CHECK(error.code == ErrorCode::kLayoutMismatch);
  CHECK(contains(error.message, "bias"));

  const auto differs = [&](auto change) {
    SessionOptions other = node.session_options(1, 2, 4);
    change(other.job);
    error = error_of(node.attach(other));
    CHECK(error.code == ErrorCode::kConfigMismatch);
    return error.message;
  };
  const std::string words = differs([](JobConfig& job) { job.optimizer.lr = 0.75; });
  CHECK(contains(words, "optimizer.lr"));
  CHECK(contains(words, "0.75"));
  // Also on those that a resumed job may change.
  CHECK(contains(differs([](JobConfig& job) { job.train.epochs += 1; }), "train.epochs is "));
  CHECK(contains(differs([](JobConfig& job) { job.membership.on_worker_loss = OnLoss::kContinue; }),
                 "membership.on_worker_loss is "));

  // None of them hurt the one that waits.
  auto second = node.attach(node.session_options(1, 2, 4));
  node.admit();
  CHECK(first.get());
  CHECK(second.get());
}

TEST_CASE("impossible declarations are refused in words") {
  RunningNode node;
  CHECK(contains(error_of(node.attach(node.session_options(), {})).message, "no tensor"));
  CHECK(contains(error_of(node.attach(node.session_options(), {{"a", {4}}, {"a", {4}}})).message, "a"));
  CHECK(error_of(node.attach(node.session_options(), {{"a", {0}}})).code == ErrorCode::kInvalidArgument);
  const Error huge = error_of(node.attach(node.session_options(), {{"a", {1u << 30}}}));
  CHECK(huge.code == ErrorCode::kLimit);
  CHECK(contains(huge.message, "max_shared_memory"));
  CHECK(contains(huge.message, std::to_string(64u << 20)));
  CHECK(eventually([&] { return node.server->summaries().empty(); }));
}

TEST_CASE("a trainer of another protocol version is told both versions, one of another kind of message may go on") {
  RunningNode node;
  const FileDescriptor fd = raw_connection(node.socket());
  auto socket = AttachSocket::adopt(FileDescriptor(dup(fd.get())));
  const auto refusal_of_bytes = [&](const std::vector<std::byte>& bytes) {
    const std::uint32_t header[4] = {0x74726174, static_cast<std::uint32_t>(bytes.size()), 0, 0};
    std::vector<std::byte> packet(sizeof header + bytes.size());
    std::memcpy(packet.data(), header, sizeof header);
    std::memcpy(packet.data() + sizeof header, bytes.data(), bytes.size());
    REQUIRE(send(fd.get(), packet.data(), packet.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size()));
    return refusal_on(socket);
  };
  std::vector<std::byte> newer = encode_attach(InitialValues{});
  *std::ranges::mismatch(newer, encode_attach(DetachReply{})).in1 = std::byte{200};
  for (int i = 0; i < 2; ++i) {
    const AttachError error = refusal_of_bytes(newer);
    CHECK(error.code == ErrorCode::kUnknownKind);
    CHECK(contains(error.message, "of kind 200, which this program does not know"));
  }
  const AttachError error =
      refusal_of_bytes(encode_attach_as_version(request_of(node.session_options()), kProtocolVersion + 1));
  CHECK(error.code == ErrorCode::kProtocolVersion);
  CHECK(contains(error.message, std::to_string(kProtocolVersion)));
  CHECK(contains(error.message, std::to_string(kProtocolVersion + 1)));
}

TEST_CASE("garbage on the socket is refused and hurts nobody") {
  RunningNode node;
  auto sessions = node.sessions(1);
  std::vector<FileDescriptor> strangers;
  const auto words = [](std::vector<std::uint32_t> header) {
    return std::string(reinterpret_cast<const char*>(header.data()), 4 * header.size());
  };
  for (const std::string& packet :
       {std::string("GET / HTTP/1.1\r\n\r\n") + '\0', words({0x74726174, 0xffffffff, 0, 0, 1}),  // a message of 4 GiB
        words({0x74726174, 100, 64, 0, 1}),                                                      // begins in the middle
        words({0x74726174, 16, 0, 0, 0xdeadbeef, 0xdeadbeef, 0xdeadbeef, 0xdeadbeef})}) {
    CAPTURE(packet);
    strangers.push_back(raw_connection(node.socket()));
    const int fd = strangers.back().get();
    send(fd, packet.data(), packet.size(), MSG_NOSIGNAL);
    auto socket = AttachSocket::adopt(FileDescriptor(dup(fd)));
    CHECK(refusal_on(socket).code == ErrorCode::kMalformed);
    char byte;
    CHECK(eventually([&] { return recv(fd, &byte, 1, MSG_DONTWAIT) == 0; }));  // and closed
  }
  CHECK(node.server->refused() == 4);
  for (std::size_t t = 0; t < 3; ++t) sessions[0]->ready(t, 1);
  node.lanes.complete(Round(1));
  CHECK(sessions[0]->wait());
}

TEST_CASE("messages that do not fit the state of a trainer are refused or ignored") {
  RunningNode node;
  auto socket = required(AttachSocket::connect(node.socket()));
  CHECK(socket.send(InitialValues{}));  // before any attach: nothing to do
  CHECK(socket.send(Detach{}));
  auto got = answer(socket);
  REQUIRE(got);
  CHECK(std::holds_alternative<DetachReply>(got->message));
  CHECK(socket.send(AttachReply{}));
  got = answer(socket);
  REQUIRE(got);
  REQUIRE(std::holds_alternative<AttachError>(got->message));
  CHECK(contains(std::get<AttachError>(got->message).message, "only worker daemons send"));
}

TEST_CASE("a trainer that is killed is noticed, its memory is reclaimed, and the next attach works") {
  FakeNode node;
  int go[2];
  REQUIRE(pipe(go) == 0);
  const pid_t child = fork();  // before any thread runs
  REQUIRE(child >= 0);
  if (child == 0) {
    char byte;
    if (read(go[0], &byte, 1) != 1) _exit(2);
    SessionOptions options = node.session_options(1, 2);
    auto session = Session::attach(options, small_model());
    if (!session || !(*session)->start()) _exit(3);
    while (true) pause();
  }
  node.run();
  REQUIRE(write(go[1], "x", 1) == 1);
  auto survivor_attached = node.attach(node.session_options(0, 2));
  node.admit();
  auto survivor = required(survivor_attached.get());
  REQUIRE(survivor->start());
  for (std::size_t t = 0; t < 3; ++t) survivor->ready(t, 1);
  std::weak_ptr<NodeJob> job = node.lanes.job();
  const std::uint64_t parameters = NodeRegion::bytes_needed(node.lanes.job()->layout());
  CHECK(eventually([&] { return node.server->memory_used() > parameters; }));

  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const auto state = required(survivor->wait());
  CHECK(state == StepState::kRestart);
  const std::string expected = "trainer rank 1 (pid " + std::to_string(child) + ") on node 0 died";
  CHECK(survivor->stop_reason() == expected);
  const LeaveJob leave = node.coordinator.await<LeaveJob>();
  CHECK(leave.kind == LeaveKind::kFailed);
  CHECK(leave.message == expected);
  CHECK(leave.view == ViewId(1));
  // All but the parameters, which the next view may still need.
  CHECK(eventually([&] { return job.expired() && node.server->memory_used() == parameters; }));

  survivor.reset();
  auto again = node.sessions(2, 2);
  CHECK(again.size() == 2);
  CHECK(node.lanes.opened() == 2);
  close(go[0]);
  close(go[1]);
}

// A process that connects without the library, says `request`, and has a child that keeps the connection open.
struct ForkingTrainer {
  ForkingTrainer(const FakeNode& node, const AttachRequest& request) {
    int told[2];
    REQUIRE(pipe(told) == 0);
    process = fork();  // before any thread runs
    REQUIRE(process >= 0);
    if (process == 0) {
      AttachSocket socket = AttachSocket::adopt(raw_connection(node.socket()));
      const pid_t child = fork();
      if (child == 0) {
        while (true) pause();
      }
      if (!socket.send(request) || write(told[1], &child, sizeof child) != sizeof child) _exit(2);
      while (true) pause();
    }
    REQUIRE(read(told[0], &keeper, sizeof keeper) == sizeof keeper);
    close(told[0]);
    close(told[1]);
  }
  void kill_it() const {
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
  }
  ~ForkingTrainer() { kill(keeper, SIGKILL); }

  pid_t process = -1, keeper = -1;
};

TEST_CASE("a trainer that is killed is noticed at once, whoever still has its connection, and its place is free") {
  FakeNode node;
  const ForkingTrainer trainer(node, request_of(node.session_options(0, 2)));
  node.run();
  REQUIRE(eventually([&] { return node.server->summaries().size() == 1; }));
  trainer.kill_it();
  // At once is before its successor is heard.
  auto successor = node.attach(node.session_options(0, 2));
  auto other = node.attach(node.session_options(1, 2));
  node.admit();
  CHECK(successor.get());
  CHECK(other.get());
  CHECK(kill(trainer.keeper, 0) == 0);  // that has it all the time
}

TEST_CASE("a trainer that had ended before it was accepted has no place, and what it said last counts") {
  FakeNode node;
  AttachRequest wrong = request_of(node.session_options(0, 2));
  wrong.local_rank = 3;  // which is counted as refused
  const ForkingTrainer first(node, wrong);
  const ForkingTrainer trainer(node, request_of(node.session_options(0, 2)));
  first.kill_it();
  trainer.kill_it();
  node.run();
  CHECK(eventually([&] { return node.server->refused() == 1; }));
  CHECK(eventually([&] { return node.server->summaries().empty(); }));
  auto successor = node.attach(node.session_options(0, 1));
  node.admit();
  CHECK(successor.get());
}

TEST_CASE("a trainer that leaves while gathering frees its place, the coordinator hears of it only if it knew") {
  RunningNode node;
  {
    auto socket = AttachSocket::connect(node.socket());
    REQUIRE(socket->send(request_of(node.session_options(0, 2))));
    REQUIRE(eventually([&] { return node.server->summaries().size() == 1; }));
  }
  CHECK(eventually([&] { return node.server->summaries().empty(); }));
  CHECK(node.coordinator.all<LeaveJob>().empty());

  auto stays = node.attach(node.session_options(0, 2));
  {
    auto socket = AttachSocket::connect(node.socket());
    REQUIRE(socket->send(request_of(node.session_options(1, 2))));
    node.coordinator.await<JoinJob>();
  }
  const LeaveJob leave = node.coordinator.await<LeaveJob>();
  CHECK(leave.job == JobId(0));
  CHECK(leave.name == "a-job");
  auto comes = node.attach(node.session_options(1, 2));
  node.coordinator.await<JoinJob>(2);
  node.welcome();
  CHECK(stays.get());
  CHECK(comes.get());
}

TEST_CASE("a welcome for a job whose trainer has left meanwhile is answered with a leave") {
  RunningNode node;
  {
    auto socket = AttachSocket::connect(node.socket());
    REQUIRE(socket->send(request_of(node.session_options())));
    node.coordinator.await<JoinJob>();
  }
  node.coordinator.await<LeaveJob>();
  node.welcome(5);
  const LeaveJob leave = node.coordinator.await<LeaveJob>(2);
  CHECK(leave.job == JobId(99));
  CHECK(leave.view == ViewId(5));
  CHECK(leave.kind == LeaveKind::kFailed);
  CHECK(node.lanes.opened() == 0);
}

TEST_CASE("the coordinator's refusal reaches all ranks; \"not now\" is tried again") {
  RunningNode node;
  auto first = node.attach(node.session_options(0, 2));
  auto second = node.attach(node.session_options(1, 2));
  node.coordinator.await<JoinJob>();
  node.server->on_control(ControlError{ErrorCode::kConfigMismatch, "somebody else's trouble", "another-job"});
  node.server->on_control(ControlError{ErrorCode::kUnavailable, "being stopped; attach again in a moment", "a-job"});
  node.coordinator.await<JoinJob>(2);
  CHECK(node.server->summaries().at(0).last_refusal == "being stopped; attach again in a moment");
  node.server->on_control(ControlError{ErrorCode::kLayoutMismatch, "tensor 'x' differs", "a-job"});
  for (auto* attached : {&first, &second}) {
    const Error error = error_of(std::move(*attached));
    CHECK(error.code == ErrorCode::kLayoutMismatch);
    CHECK(error.message == "tensor 'x' differs");
  }
}

TEST_CASE("what the coordinator answers to trainers that have gone is not for those that came after them") {
  RunningNode node;
  auto gone = node.attach(node.session_options(0, 1, 2));
  const JoinJob first = node.coordinator.await<JoinJob>();
  const JobWelcome late = node.welcome_message();
  node.server->on_control(ControlError{ErrorCode::kTopology, "no such rank", "a-job", first.number});
  CHECK(error_of(std::move(gone)).message == "no such rank");
  auto here = node.attach(node.session_options(0, 1, 2));
  const JoinJob second = node.coordinator.await<JoinJob>(2);
  CHECK(second.number != first.number);
  node.server->on_control(ControlError{ErrorCode::kTopology, "no such rank", "a-job", first.number});
  JobWelcome welcome = late;
  welcome.join = first.number;
  node.server->on_control(welcome);
  CHECK(node.coordinator.await<LeaveJob>().kind == LeaveKind::kFailed);
  CHECK(node.lanes.opened() == 0);
  welcome.view = ViewId(2);
  welcome.join = second.number;
  node.server->on_control(welcome);
  FakeNode::session_of(std::move(here));
}

TEST_CASE("a node joins anew when one of its trainers was replaced, also after a welcome that was late") {
  struct : TrainerPort {
    void send(TrainerId, const AttachMessage&, std::span<const int>) override {}
  } trainers;
  FakeNode node;  // its server does not run: the test has jobs of its own
  NodeJobs jobs({.max_memory = 64u << 20}, trainers, node.coordinator, node.lanes, quiet_logger());
  const auto attach = [&](std::uint64_t id, std::uint32_t rank, std::uint64_t now) {
    AttachRequest request;
    JobConfig config;
    config.name = "a-job";
    request.job_json = to_canonical_json(config);
    request.rank = request.local_rank = rank;
    request.world_size = request.local_world_size = 2;
    request.tensors = small_model();
    jobs.attach(TrainerId(id), request, 0, now);
  };
  const auto joins = [&] { return node.coordinator.all<JoinJob>(); };
  attach(1, 0, 1000);
  attach(2, 1, 1000);
  REQUIRE(joins().size() == 1);
  JobWelcome late = node.welcome_message();
  late.join = joins()[0].number;
  jobs.gone(TrainerId(2), 1001);
  REQUIRE(node.coordinator.all<LeaveJob>().size() == 1);
  attach(3, 1, 1002);
  REQUIRE(joins().size() == 2);
  CHECK(joins()[1].number != joins()[0].number);
  jobs.on_control(late, 1003);
  CHECK(node.lanes.opened() == 0);
  CHECK(node.coordinator.all<LeaveJob>().size() == 2);
  REQUIRE(joins().size() == 3);  // the coordinator took that leave for one of the join before, too
  CHECK(joins()[2].number == joins()[1].number);
  late.view = ViewId(2);
  late.join = joins()[2].number;
  jobs.on_control(late, 1004);
  CHECK(node.lanes.opened() == 1);
}

TEST_CASE("a node that has said what it keeps still has it when a snapshot of all of it is committed before the view") {
  struct : TrainerPort {
    void send(TrainerId, const AttachMessage&, std::span<const int>) override {}
  } trainers;
  FakeNode node;  // its server does not run: the test has a job of its own
  NodeJobs jobs({.max_memory = 64u << 20}, trainers, node.coordinator, node.lanes, quiet_logger());
  std::uint64_t now = 1000;
  const auto attach = [&](std::uint64_t id) {
    AttachRequest request;
    JobConfig config;
    config.name = "a-job";
    request.job_json = to_canonical_json(config);
    request.world_size = request.local_world_size = 1;
    request.tensors = small_model();
    jobs.attach(TrainerId(id), request, 0, now);
  };
  const auto joins = [&] { return node.coordinator.all<JoinJob>(); };
  attach(1);
  REQUIRE(joins().size() == 1);
  JobWelcome welcome = node.welcome_message();
  welcome.redo = true;
  jobs.on_control(welcome, now);
  REQUIRE(node.lanes.opened() == 1);
  jobs.on_control(StopJob{JobId(99), ViewId(1), StopKind::kRestart, Round(0), "a node is lost"}, now);
  jobs.gone(TrainerId(1), now);
  attach(2);
  REQUIRE(joins().size() == 2);
  REQUIRE(joins()[1].redo_job == JobId(99));
  jobs.on_control(SnapshotCommit{JobId(99), Round(3)}, now);
  const auto ask_again = [&] {
    jobs.on_control(ControlError{ErrorCode::kUnavailable, "not now", "a-job"}, now);
    for (int i = 0; i < 50; ++i) jobs.tick(now += 100);
  };
  ask_again();
  REQUIRE(joins().size() > 2);
  CHECK(joins().back().redo_job == JobId(99));
  // Nobody waits for a view any more.
  jobs.gone(TrainerId(2), now);
  jobs.on_control(SnapshotCommit{JobId(99), Round(3)}, now);
  attach(3);
  CHECK(joins().back().redo_job == JobId());
}

TEST_CASE("a restarted coordinator ends running views and is joined again by waiting ones") {
  RunningNode node;
  auto sessions = node.sessions(1);
  sessions[0]->ready(0, 1);
  node.server->on_coordinator_restarted();
  const auto state = required(sessions[0]->wait());
  CHECK(state == StepState::kRestart);
  sessions.clear();
  auto waiting = node.attach(node.session_options());
  node.coordinator.await<JoinJob>(2);
  node.server->on_coordinator_restarted();
  node.coordinator.await<JoinJob>(3);
  node.welcome(2);
  CHECK(waiting.get());
}

TEST_CASE("a view that is stopped where it began ends at once for a node that has not got its parameters") {
  FakeNode node;
  node.lanes.answers = false;
  node.run();
  auto attached = node.attach(node.session_options());
  node.coordinator.await<JoinJob>();
  JobWelcome welcome = node.welcome_message(1, Round(5));
  welcome.committed = Round(5);
  node.server->on_control(welcome);
  const auto session = FakeNode::session_of(std::move(attached));
  auto starting = std::async(std::launch::async, [&] { return session->start(); });
  node.server->on_control(StopRequest{JobId(99), ViewId(1), "server 0 was told to stop"});
  node.server->on_control(StopJob{JobId(99), ViewId(1), StopKind::kStopped, Round(5), "server 0 was told to stop"});
  REQUIRE(starting.wait_for(std::chrono::seconds(10)) == std::future_status::ready);
  const auto started = failure_of(starting.get());
  CHECK(started.code == ErrorCode::kStopped);
  CHECK(started.message == "the job ended before its first round: server 0 was told to stop");
}

TEST_CASE("a job of more than half of the memory waits until what its last view had is free") {
  std::uint64_t bytes = 0;
  {
    RunningNode probe;
    const auto sessions = probe.sessions(1);
    bytes = probe.lanes.job()->budget_bytes();
  }
  RunningNode node(1, bytes * 3 / 2);
  auto sessions = node.sessions(1);
  auto last = node.lanes.job();  // as a lane that has not closed it yet
  node.server->on_coordinator_restarted();
  sessions.clear();
  auto waiting = node.attach(node.session_options());
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(node.coordinator.all<JoinJob>().size() == 1);
  last.reset();
  node.admit(2);
  FakeNode::session_of(std::move(waiting));
}

TEST_CASE(
    "draining asks running ranks to stop, refuses new ones, and is done when the coordinator has ended the view") {
  RunningNode node;
  auto sessions = node.sessions(1);
  node.server->drain();
  CHECK(node.coordinator.await<DrainRequest>().incarnation == 7);
  CHECK(error_of(node.attach(node.session_options())).code == ErrorCode::kUnavailable);
  // Servers may have a part of the view's first round: they say when ranks may stop.
  const auto state_of = [&] { return node.lanes.job()->state(); };
  CHECK(state_of() == RegionState::kRunning);
  node.server->on_control(StopRequest{JobId(99), ViewId(1), "worker host0 was told to stop"});
  REQUIRE(eventually([&] { return state_of() == RegionState::kStopRequested; }));
  for (std::size_t t = 0; t < 3; ++t) sessions[0]->ready(t, 1);
  node.lanes.complete(Round(1));
  const auto state = required(sessions[0]->wait());
  CHECK(state == StepState::kStopRequested);
  CHECK_FALSE(node.server->drained());
  CHECK(sessions[0]->finish(LeaveKind::kStopped));
  node.coordinator.await<LeaveJob>();
  CHECK_FALSE(node.server->drained());
  node.server->on_control(StopJob{JobId(99), ViewId(1), StopKind::kStopped, Round(1), "node 0 was stopped"});
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // three ticks
  CHECK_FALSE(node.server->drained());
  bool saved = false;
  SUBCASE("and its state is saved") {
    saved = true;
  }
  SUBCASE("and its state could not be saved") {}
  node.server->on_control(SnapshotDone{JobId(99), ViewId(1), Round(1), saved, 0, saved ? "" : "server 1: disk full"});
  CHECK(eventually([&] { return node.server->drained(); }));
  const Status told = sessions[0]->saved();
  CHECK(told.has_value() == saved);
  if (!saved) CHECK(told.error().code == ErrorCode::kStore);
  if (!saved) CHECK(told.error().message == "server 1: disk full");
  CHECK(sessions[0]->stop_reason() == "node 0 was stopped");
}

TEST_CASE("a drained worker that hears nothing of the coordinator asks its ranks to stop after a whole round") {
  RunningNode node;
  auto sessions = node.sessions(1);
  node.server->drain();
  node.coordinator.await<DrainRequest>();
  const auto state_of = [&] { return node.lanes.job()->state(); };
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // three ticks
  CHECK(state_of() == RegionState::kRunning);
  SUBCASE("of the view") {
    for (std::size_t t = 0; t < 3; ++t) sessions[0]->ready(t, 1);
    node.lanes.complete(Round(1));
  }
  SUBCASE("or when no answer comes") {
    node.coordinator.await<DrainRequest>(2);  // again: the first one, or its answer, may have been lost
  }
  CHECK(eventually([&] { return state_of() == RegionState::kStopRequested; }));
}

TEST_CASE("a rank that has finished hears if what it trained is lost with another, or with the coordinator") {
  RunningNode node;
  auto sessions = node.sessions(2);
  CHECK(sessions[0]->finish(LeaveKind::kFinished));
  SUBCASE("another rank fails") {
    CHECK(sessions[1]->finish(LeaveKind::kFailed, "out of memory"));
  }
  SUBCASE("a server is lost while it writes") {
    CHECK(sessions[1]->finish(LeaveKind::kFinished));
    node.coordinator.await<LeaveJob>();
    node.server->on_control(StopJob{JobId(99), ViewId(1), StopKind::kFinished, Round(0), "training is complete"});
    node.server->on_control(StopJob{JobId(99), ViewId(1), StopKind::kRestart, Round(0), "server 1 is lost"});
  }
  SUBCASE("the coordinator is") {
    CHECK(sessions[1]->finish(LeaveKind::kFinished));
    node.coordinator.await<LeaveJob>();
    node.server->on_coordinator_restarted();
  }
  const auto saved = failure_of(sessions[0]->saved());
  CHECK(may_come_back(saved));
}

TEST_CASE("a drained worker stays for trainers that have not detached from a view that ended cleanly") {
  RunningNode node;
  auto sessions = node.sessions(1);
  node.server->drain();
  node.coordinator.await<DrainRequest>();
  StopKind kind = StopKind::kStopped;
  SUBCASE("cleanly") {}
  SUBCASE("not if it was cut") {
    kind = StopKind::kRestart;
  }
  const auto job = node.lanes.job();
  node.server->on_control(StopJob{JobId(99), ViewId(1), kind, Round(0), "another node was stopped"});
  node.server->on_control(DrainDone{});
  REQUIRE(eventually([&] { return job->state() >= RegionState::kStopped; }));
  if (kind == StopKind::kStopped) {
    const auto state = required(sessions[0]->wait());
    CHECK(state == StepState::kStopRequested);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // three ticks
    CHECK_FALSE(node.server->drained());
    REQUIRE(sessions[0]->keep(Round(1), std::vector<std::byte>(1)));
    CHECK(sessions[0]->finish(LeaveKind::kStopped));
    CHECK(node.coordinator.await<NodeRankState>().kept.round == Round(1));
  }
  CHECK(eventually([&] { return node.server->drained(); }));
}

TEST_CASE("a worker that gives up tells the coordinator and its trainers before it goes") {
  RunningNode node;
  auto sessions = node.sessions(1);
  sessions[0]->ready(0, 1);
  node.server->abandon("the stop took too long");
  node.server->stop();
  const LeaveJob leave = node.coordinator.await<LeaveJob>();
  CHECK(leave.kind == LeaveKind::kFailed);
  CHECK(leave.message == "the stop took too long");
  const auto state = required(sessions[0]->wait());
  CHECK(state == StepState::kRestart);
  CHECK(sessions[0]->stop_reason() == "the stop took too long");
}

TEST_CASE("a socket that a dead worker left is replaced, one in use, or a file, is named") {
  RunningNode node;
  AttachServerOptions options;
  options.socket = node.socket();
  options.jobs.max_memory = 1 << 20;
  const auto second = failure_of(AttachServer::create(options, node.coordinator, node.lanes, node.logger));
  CHECK(second.code == ErrorCode::kUnavailable);
  CHECK(contains(second.message, node.socket()));
  CHECK(contains(second.message, "another worker daemon is listening"));

  options.socket = node.directory / "file";
  std::ofstream(options.socket) << "precious";
  CHECK(contains(AttachServer::create(options, node.coordinator, node.lanes, node.logger).error().message,
                 "is no socket"));

  options.socket = node.directory / "stale.sock";
  {
    const auto address = unix_address(options.socket);
    FileDescriptor fd(socket(AF_UNIX, SOCK_SEQPACKET, 0));
    REQUIRE(bind(fd.get(), reinterpret_cast<const sockaddr*>(address->storage), address->length) == 0);
  }
  CHECK(AttachServer::create(options, node.coordinator, node.lanes, node.logger));

  options.socket = node.directory / "missing/w.sock";
  CHECK(contains(AttachServer::create(options, node.coordinator, node.lanes, node.logger).error().message,
                 options.socket));
}

TEST_CASE("a declaration of many tensors travels in several packets") {
  RunningNode node;
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 20'000; ++i) tensors.push_back({"layer" + std::to_string(i) + ".weight", {4, 4}});
  auto attached = node.attach(node.session_options(), tensors);
  const JoinJob join = node.coordinator.await<JoinJob>();
  CHECK(join.tensors == tensors);
  node.welcome();
  auto session = required(attached.get());
  CHECK(session->layout().tensors().size() == 20'000);
}

TEST_CASE("a welcome that is said again changes nothing, and that of a view which is over here is answered") {
  RunningNode node;
  auto sessions = node.sessions(1);
  node.welcome();
  StopJob stop{.job = JobId(99), .view = ViewId(1), .kind = StopKind::kRestart};
  node.server->on_control(stop);
  REQUIRE(eventually([&] { return node.lanes.closed() == 1; }));
  CHECK(node.lanes.opened() == 1);
  CHECK(node.coordinator.all<LeaveJob>().empty());
  node.welcome();
  const auto leave = node.coordinator.await<LeaveJob>();
  CHECK(leave.kind == LeaveKind::kFailed);
  CHECK(leave.job == JobId(99));
  CHECK(leave.view == ViewId(1));
  CHECK(node.lanes.opened() == 1);
}

// Without a descriptor UBSan takes every object's table for unreadable memory: it asks with a pipe.
#ifndef TRIBUTARY_SANITIZED
namespace {

// Sets the soft limit of descriptors to those that are open, until it is destroyed.
class NoDescriptors {
 public:
  NoDescriptors() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(::dup(0));  // the lowest that is free
    ::close(static_cast<int>(none.rlim_cur));
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

double process_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

TEST_CASE("without descriptors a trainer waits to be accepted, and costs no processor time meanwhile") {
  RunningNode node;
  const auto address = unix_address(node.socket());
  AttachSocket client = AttachSocket::adopt(FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET, 0)));
  {
    const NoDescriptors none;
    REQUIRE(connect(client.fd(), reinterpret_cast<const sockaddr*>(address->storage), address->length) == 0);
    const double before = process_seconds();
    std::this_thread::sleep_for(std::chrono::seconds(2));
    CHECK(process_seconds() - before < 0.5);
  }
  AttachRequest request = request_of(node.session_options());
  request.local_rank = 3;
  REQUIRE(client.send(request));
  CHECK(answer(client));  // it was accepted after all
}
#endif

TEST_CASE("a tensor's name that is no UTF-8 is refused, with its number and what to do") {
  RunningNode node;
  std::vector<TensorSpec> tensors = small_model();
  tensors[1].name = "b\xff\xfe";
  const Error error = error_of(node.attach(node.session_options(), tensors));
  CHECK(error.code == ErrorCode::kInvalidArgument);
  CHECK(contains(error.message, "the name of tensor 1, 'b\?\?'"));
  CHECK(contains(error.message, "no UTF-8"));
  CHECK(node.coordinator.all<JoinJob>().empty());
}

}  // namespace tributary::attach_server_test
