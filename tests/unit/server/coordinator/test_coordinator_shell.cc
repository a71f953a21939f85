#include <doctest/doctest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "server/coordinator/coordinator.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"
#include "tests/unit/server/lane/lane_fixture.h"
#include "tests/unit/temp_dir.h"

namespace tributary::coordinator_shell_test {
namespace {

using namespace testing;

// A registry on a disk that takes no records of one job until it is let.
class SlowRegistry final : public JobRegistry {
 public:
  explicit SlowRegistry(std::string slow) : slow_(std::move(slow)) {}
  Result<std::vector<JobId>> recorded() const override { return std::vector<JobId>(); }
  Result<JobRecord> record(JobId) const override { return fail(ErrorCode::kNotFound, "none"); }
  Status save_all(std::span<const JobRecord> records) override {
    std::unique_lock lock(mutex_);
    if (!contains(records.front().job_json, slow_)) return {};
    asked_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return let_; });
    return {};
  }
  Status remove(JobId) override { return {}; }
  LargePartStore& large_parts() override { return parts_; }
  Result<SeatTerms> terms() const override { return SeatTerms(); }
  Status promise(Term) override { return {}; }
  Status own(Term) override { return {}; }

  bool wait_until_asked() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [this] { return asked_; });
  }
  void let() {
    const std::lock_guard lock(mutex_);
    let_ = true;
    changed_.notify_all();
  }

 private:
  const std::string slow_;
  PartsInMemory parts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool asked_ = false, let_ = false;
};

// Terms outlive the process.
struct TermsInMemory {
  std::mutex mutex;
  SeatTerms terms;
};

class RegistryWithTerms final : public JobRegistry {
 public:
  explicit RegistryWithTerms(TermsInMemory& terms) : terms_(terms) {}
  Result<std::vector<JobId>> recorded() const override { return std::vector<JobId>(); }
  Result<JobRecord> record(JobId) const override { return fail(ErrorCode::kNotFound, "there is none"); }
  Status save_all(std::span<const JobRecord>) override { return {}; }
  Status remove(JobId) override { return {}; }
  LargePartStore& large_parts() override { return parts_; }
  Result<SeatTerms> terms() const override {
    const std::lock_guard lock(terms_.mutex);
    return terms_.terms;
  }
  Status promise(Term term) override {
    const std::lock_guard lock(terms_.mutex);
    terms_.terms.promised = std::max(terms_.terms.promised, term);
    return {};
  }
  Status own(Term term) override {
    const std::lock_guard lock(terms_.mutex);
    terms_.terms.owned = std::max(terms_.terms.owned, term);
    return {};
  }

 private:
  TermsInMemory& terms_;
  PartsInMemory parts_;
};

// A daemon, as far as the coordinator sees one.
struct Peer {
  Peer(zmq::context_t& context, const std::string& endpoint) : socket(context, zmq::socket_type::dealer) {
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::rcvtimeo, 5000);
    socket.connect(endpoint);
  }
  void say(const ControlMessage& message) {
    const std::vector<std::byte> bytes = encode_control(message);
    socket.send(zmq::const_buffer(bytes.data(), bytes.size()));
  }
  // The next one of its kind; none: nothing came for five seconds.
  template <class M>
  std::optional<M> hear() {
    for (zmq::message_t frame; socket.recv(frame);) {
      const auto message = required(decode_control({static_cast<const std::byte*>(frame.data()), frame.size()}));
      if (const M* m = std::get_if<M>(&message)) return *m;
    }
    return std::nullopt;
  }
  zmq::socket_t socket;
};

TEST_CASE("a disk that keeps the record of one job waiting does not keep the rounds of another") {
  SlowRegistry registry("slow-job");
  CoordinatorSettings config;
  config.address = "tcp://127.0.0.1:*";
  const auto coordinator = required(Coordinator::start(config, &registry, quiet_logger()));
  zmq::context_t context(1);
  Peer server(context, coordinator->local_endpoint()), worker(context, coordinator->local_endpoint());
  const Cluster words(1);  // of which peers say what
  server.say(words.hello_of(0));
  REQUIRE(server.hear<HelloReply>());
  worker.say(WorkerHello{"host0", worker_incarnation(0)});
  REQUIRE(worker.hear<HelloReply>());
  JoinOptions options;
  options.job = "quick-job";
  options.config.gate.clip_norm = 1.0;
  worker.say(words.join_of(options));
  const auto open = required(server.hear<OpenJob>());
  server.say(ShardReady{open.job, open.view, true, {}, {}});
  REQUIRE(worker.hear<JobWelcome>());

  options.job = "slow-job";
  worker.say(words.join_of(options));
  const bool stands = registry.wait_until_asked();
  CHECK(stands);
  RoundFacts facts{open.job, open.view, Round(1), {}, {}, {}};
  facts.before = GateDecision{GateVerdict::kVoid, 0.0, 0.0, 4.0f, 0};
  for (std::uint32_t c = 0; c < open.owners.size(); ++c) facts.chunks.push_back({ChunkIndex(c), {0.25, 1, true}});
  server.say(facts);
  CHECK(server.hear<RoundDecision>());
  worker.say(Heartbeat{worker_incarnation(0), {}});
  CHECK(worker.hear<HeartbeatReply>());
  CHECK(coordinator->jobs().size() == 2);
  registry.let();
  const auto slow = required(server.hear<OpenJob>());
  CHECK(slow.job != open.job);
}

TEST_CASE("the coordinator refuses garbage with words, and keeps serving") {
  CoordinatorSettings config;
  config.address = "tcp://127.0.0.1:*";
  const auto coordinator = required(Coordinator::start(config, nullptr, quiet_logger()));
  zmq::context_t context(1);
  zmq::socket_t peer(context, zmq::socket_type::dealer);
  peer.set(zmq::sockopt::linger, 0);
  peer.set(zmq::sockopt::rcvtimeo, 10'000);
  peer.connect(coordinator->local_endpoint());
  const auto ask = [&](std::span<const std::byte> bytes) -> ControlMessage {
    peer.send(zmq::const_buffer(bytes.data(), bytes.size()));
    zmq::message_t reply;
    REQUIRE(peer.recv(reply));
    return required(decode_control({static_cast<const std::byte*>(reply.data()), reply.size()}));
  };
  const auto garbage = ask(as_bytes(filled(3.0f)));
  REQUIRE(std::holds_alternative<ControlError>(garbage));
  CHECK(std::get<ControlError>(garbage).code == ErrorCode::kMalformed);
  const auto version = ask(encode_control_as_version(WorkerHello{"me", 5}, kProtocolVersion + 41));
  REQUIRE(std::holds_alternative<ControlError>(version));
  CHECK(std::get<ControlError>(version).code == ErrorCode::kProtocolVersion);
  CHECK(contains(std::get<ControlError>(version).message, std::to_string(kProtocolVersion + 41)));
  CHECK(std::holds_alternative<HelloReply>(ask(encode_control(WorkerHello{"me", 5}))));
  CHECK(coordinator->malformed() == 2);
  REQUIRE(coordinator->peers().size() == 1);
  CHECK(coordinator->peers()[0].name == "me");
  const auto events = coordinator->events();
  REQUIRE_FALSE(events.empty());
  CHECK(events.back().words == "worker me is there");
}

// One of two servers that may have the coordinator.
struct Place {
  Place(std::uint16_t index, const std::vector<std::string>& places, TermsInMemory& terms) : registry(terms) {
    CoordinatorSettings settings;
    settings.address = places[index];
    settings.servers = 2;
    settings.peer_timeout_ms = 600;
    settings.heartbeat_ms = 50;
    settings.home = ShardIndex(index);
    settings.places = places;
    coordinator = required(Coordinator::start(settings, &registry, quiet_logger()));
    coordinator->tell_admin("admin-of-" + std::to_string(index));
  }
  bool takes_it() const {
    for (int i = 0; i < 1000 && !coordinator->holds(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return coordinator->holds();
  }
  RegistryWithTerms registry;
  std::unique_ptr<Coordinator> coordinator;
};

TEST_CASE("of two servers that may have the coordinator the second takes it when the first is gone, and keeps it") {
  const TempDir dir;
  const std::vector<std::string> places = {"ipc://" + (dir / "a"), "ipc://" + (dir / "b")};
  TermsInMemory terms[2];
  auto first = std::make_unique<Place>(0, places, terms[0]);
  Place second(1, places, terms[1]);
  REQUIRE(first->takes_it());
  CHECK_FALSE(second.coordinator->holds());
  CHECK(terms[0].terms.owned == terms[0].terms.promised);

  zmq::context_t context(1);
  Peer worker(context, places[1]);
  for (SeatReport heard; heard.holder != ShardIndex(0);) {  // until the second has heard the first
    worker.say(WorkerHello{"host0", worker_incarnation(0)});
    heard = required(worker.hear<SeatReport>());
    CHECK(heard.place == ShardIndex(1));
  }
  CHECK(second.coordinator->jobs().empty());
  const auto elsewhere = failure_of(second.coordinator->stop_job("mnist"));
  CHECK(contains(elsewhere.message, "server 0 (http://admin-of-0) has it"));

  first.reset();
  REQUIRE(second.takes_it());
  worker.say(WorkerHello{"host0", worker_incarnation(0)});
  const auto reply = required(worker.hear<HelloReply>());
  CHECK(reply.term > terms[0].terms.promised);
  CHECK(terms[1].terms.promised == reply.term);
  // The first one is back, and follows.
  Place again(0, places, terms[0]);
  for (int i = 0; i < 500 && again.coordinator->holder_in_words().empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(again.coordinator->holder_in_words() == "server 1 (http://admin-of-1)");
  CHECK_FALSE(again.coordinator->holds());
  CHECK(second.coordinator->holds());
}

TEST_CASE("a coordinator that a server has outlived in a later term gives way, and takes a later one still") {
  const TempDir dir;
  const std::vector<std::string> places = {"ipc://" + (dir / "a"), "ipc://" + (dir / "b")};
  TermsInMemory terms;
  Place first(0, places, terms);
  REQUIRE(first.takes_it());
  zmq::context_t context(1);
  Peer server(context, places[0]);
  ServerHello hello = Cluster(2).hello_of(1);
  hello.promised = Term(177);
  server.say(hello);
  REQUIRE(server.hear<SeatReport>());
  hello.promised = Term(177);
  std::optional<HelloReply> reply;
  for (int i = 0; i < 200 && !reply; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (!first.coordinator->holds()) continue;
    server.say(hello);
    reply = server.hear<HelloReply>();
  }
  REQUIRE(reply);
  CHECK(reply->term > Term(177));
}

TEST_CASE("a coordinator's address that is taken is refused by name") {
  CoordinatorSettings config;
  config.address = "tcp://127.0.0.1:*";
  const auto first = required(Coordinator::start(config, nullptr, quiet_logger()));
  config.address = first->endpoint();
  const auto second = failure_of(Coordinator::start(config, nullptr, quiet_logger()));
  CHECK(contains(second.message, config.address));
}

}  // namespace
}  // namespace tributary::coordinator_shell_test
