// Mistakes of users and noise on the network, against real daemons: the author of a mistake gets an error with the
// cure, and all others continue.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <optional>
#include <random>
#include <zmq.hpp>

#include "common/wire/codec.h"
#include "session/session.h"
#include "session/shared/attach_socket.h"
#include "tests/e2e/e2e.h"

namespace tributary::e2e::bad_input_test {
namespace {

std::string start_error(const ClusterOptions& options) {
  const auto cluster = LocalCluster::start(options);
  REQUIRE_FALSE(cluster);
  return cluster.error().message;
}

SessionOptions session_options(LocalCluster& cluster, std::uint32_t node, std::uint32_t local_rank,
                               const std::string& name) {
  const std::uint32_t per_node = cluster.options().ranks_per_node;
  SessionOptions options;
  options.socket = cluster.workers()[node].socket;
  options.job.name = name;
  options.topology = {.rank = node * per_node + local_rank,
                      .world_size = cluster.options().nodes * per_node,
                      .local_rank = local_rank,
                      .local_world_size = per_node,
                      .node_rank = node};
  options.attach_timeout = milliseconds(30'000);
  return options;
}

// Trains `rounds` rounds with gradients of 1 and finishes; the error if something went wrong.
std::optional<Error> train(const SessionOptions& options, const std::vector<TensorSpec>& tensors, int rounds) {
  auto attached = Session::attach(options, tensors);
  if (!attached) return attached.error();
  Session& session = **attached;
  if (session.fresh() && options.topology.rank == 0) {
    for (std::size_t t = 0; t < tensors.size(); ++t) std::ranges::fill(session.initial(t), 0.5f);
  }
  if (auto ok = session.start(); !ok) return ok.error();
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      std::ranges::fill(session.gradient(t), 1.0f);
      session.ready(t, 1);
    }
    const auto state = session.wait();
    if (!state) return state.error();
    if (*state != StepState::kContinue) return Error{ErrorCode::kStopped, session.stop_reason()};
  }
  if (auto ok = session.finish(LeaveKind::kFinished); !ok) return ok.error();
  return std::nullopt;
}

// Sends one message to a ROUTER as a DEALER and returns the first frame of the answer.
std::vector<std::byte> ask(const std::string& endpoint, const std::vector<std::vector<std::byte>>& frames) {
  zmq::context_t context(1);
  zmq::socket_t socket(context, zmq::socket_type::dealer);
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::rcvtimeo, 10'000);
  socket.connect(endpoint);
  for (std::size_t i = 0; i < frames.size(); ++i) {
    socket.send(zmq::buffer(frames[i].data(), frames[i].size()),
                i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }
  zmq::message_t answer;
  if (!socket.recv(answer)) return {};
  const auto* bytes = static_cast<const std::byte*>(answer.data());
  return {bytes, bytes + answer.size()};
}

TEST_CASE("a daemon with an unknown configuration key does not start and names file, line, key and the right one") {
  const TempDir dir;
  ClusterOptions options = options_in(dir / "run");
  options.extra_server_toml = "levle = \"info\"\n";
  std::string error = start_error(options);
  CHECK(has(error, "server 0"));
  CHECK(has(error, "server-0.toml:"));
  CHECK(has(error, "levle"));
  CHECK(has(error, "did you mean 'level'"));
  options.extra_server_toml.clear();
  options.extra_worker_toml = "colour = true\n";
  error = start_error(options);
  CHECK(has(error, "worker 0"));
  CHECK(has(error, "worker-0.toml:"));
  CHECK(has(error, "colour"));
}

TEST_CASE("a server whose port or socket is taken does not start and names the address") {
  for (const Transport transport : {Transport::kTcp, Transport::kIpc}) {
    const TempDir dir;
    ClusterOptions options = options_in(dir / "run");
    options.transport = transport;
    const auto cluster = start(options);
    const std::string config = dir / "second.toml", log = dir / "second.log";
    std::ofstream(config) << "[server]\nindex = 0\nservers = 1\ncoordinator = \"" << cluster->coordinator()
                          << "\"\nadmin = \"\"\n[security]\ninsecure = true\n";
    const std::string said = refusal_of("tributary-server", config, log);
    CHECK(has(said, cluster->coordinator()));
    CHECK(has(said, transport == Transport::kTcp ? "another process has this port" : "another process listens there"));
    CHECK_FALSE(cluster->failure());
  }
}

TEST_CASE("a second cluster in the same folder is refused while one runs there") {
  const TempDir dir;
  const auto cluster = start(options_in(dir / "run"));
  const std::string error = start_error(options_in(dir / "run"));
  CHECK(has(error, "a cluster is running in"));
  CHECK(has(error, std::to_string(::getpid())));
  CHECK(cluster->stop().empty());
  CHECK(start(options_in(dir / "run"))->stop().empty());
}

TEST_CASE("a store of another server index is refused with both numbers") {
  const TempDir dir;
  ClusterOptions options = options_in(dir / "run");
  options.servers = 2;
  CHECK(start(options)->stop().empty());
  std::filesystem::rename(dir / "run/store-0", dir / "run/aside");
  std::filesystem::rename(dir / "run/store-1", dir / "run/store-0");
  std::filesystem::rename(dir / "run/aside", dir / "run/store-1");
  const std::string error = start_error(options);
  CHECK(has(error, "store-"));
  CHECK(has(error, "server"));
  CHECK(has(error, "0"));
  CHECK(has(error, "1"));
}

TEST_CASE("a missing data set ends the trainers with a message that names the folder and the package") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "nodata"});
  const auto cluster = start(options_in(dir / "run"), job_file, {"train.data_dir=/nowhere/data"});
  REQUIRE(cluster->wait_for_trainers(kPatience));
  const auto failure = cluster->failure();
  REQUIRE(failure);
  CHECK(has(*failure, "trainer of rank 0"));
  CHECK(has(*failure, "/nowhere/data"));
  CHECK(has(*failure, "dataset-fashion-mnist"));
}

TEST_CASE("a misspelt key and an impossible value in a job are refused before anything trains") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "misspelt", .extra = "epoch = 3\n"});
  const Outcome misspelt = run({bin("tributary"), "up", job_file, "--base-dir", dir / "run"});
  CHECK(misspelt.status == 2);
  CHECK(has(misspelt.text, "misspelt.toml:"));
  CHECK(has(misspelt.text, "did you mean 'epochs'"));
  CHECK_FALSE(std::filesystem::exists(dir / "run"));
  const Outcome value = run({bin("tributary"), "up", write_job(dir, {.name = "value"}), "--base-dir", dir / "run",
                             "--set", "optimizer.lr=-1"});
  CHECK(value.status == 2);
  CHECK(has(value.text, "optimizer.lr"));
}

TEST_CASE("a node with another layout or optimizer is refused with the first difference, and the right one trains") {
  const std::vector<TensorSpec> tensors = {{"first", {30, 10}}, {"second", {10}}};
  struct Other {
    const char* name;
    std::vector<TensorSpec> tensors;
    double lr;
    ErrorCode code;
    std::vector<const char*> words;
  };
  for (const Other& other :
       {Other{
            "layout", {{"first", {30, 10}}, {"second", {11}}}, 0.0, ErrorCode::kLayoutMismatch, {"second", "10", "11"}},
        Other{"config", tensors, 0.125, ErrorCode::kConfigMismatch, {"optimizer.lr", "0.125"}}}) {
    CAPTURE(other.name);
    const TempDir dir;
    const auto cluster = start(spread(dir / "run", {.ranks_per_node = 1, .servers = 1}));
    const auto options_of = [&](std::uint32_t node) { return session_options(*cluster, node, 0, other.name); };
    auto node0 = std::async(std::launch::async, [&] { return train(options_of(0), tensors, 20); });
    REQUIRE(eventually([&] { return job_number(*cluster, "joined") == 1; }));
    SessionOptions different = options_of(1);
    if (other.lr > 0.0) different.job.optimizer.lr = other.lr;
    const auto refused = train(different, other.tensors, 1);
    REQUIRE(refused);
    CHECK(refused->code == other.code);
    for (const char* words : other.words) CHECK(has(refused->message, words));
    const auto node1 = train(options_of(1), tensors, 20);
    CHECK_MESSAGE(!node1, node1->message);
    const auto outcome = node0.get();
    CHECK_MESSAGE(!outcome, outcome->message);
  }
}

// Sends these bytes as a message over a worker's attach socket. The framing is that of a genuine packet, which a socket
// of our own shows.
Error refusal(AttachSocket& attach, const std::vector<std::byte>& message) {
  int pair[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
  AttachSocket own = AttachSocket::adopt(FileDescriptor(pair[0]));
  REQUIRE(own.send(InitialValues{}));
  std::vector<std::byte> packet(message.size() + 64);
  constexpr std::size_t kFraming = 16;
  REQUIRE(::recv(pair[1], packet.data(), packet.size(), 0) > static_cast<ssize_t>(kFraming));
  ::close(pair[1]);
  const auto bytes = static_cast<std::uint32_t>(message.size());
  std::memcpy(packet.data() + 4, &bytes, sizeof bytes);
  std::ranges::copy(message, packet.begin() + kFraming);
  packet.resize(kFraming + message.size());
  REQUIRE(::send(attach.fd(), packet.data(), packet.size(), 0) == static_cast<ssize_t>(packet.size()));
  const auto reply = attach.receive(std::chrono::steady_clock::now() + seconds(10));
  REQUIRE_MESSAGE(reply, reply.error().message);
  REQUIRE(std::holds_alternative<AttachError>(reply->message));
  const auto& error = std::get<AttachError>(reply->message);
  return {error.code, error.message};
}

// Returns the answers of a coordinator, a lane and a worker's attach socket to these messages.
std::vector<Error> refusals(LocalCluster& cluster, const std::vector<std::byte>& control,
                            const std::vector<std::byte>& data, const std::vector<std::byte>& attach) {
  const auto to_control = decode_control(ask(cluster.coordinator(), {control}));
  REQUIRE_MESSAGE(to_control, to_control.error().message);
  REQUIRE(std::holds_alternative<ControlError>(*to_control));
  const auto& control_error = std::get<ControlError>(*to_control);
  const auto to_data = decode_data(ask(cluster.servers()[0].lanes.at(0), {data}));
  REQUIRE_MESSAGE(to_data, to_data.error().message);
  REQUIRE(std::holds_alternative<ErrorReply>(*to_data));
  const auto& data_error = std::get<ErrorReply>(*to_data);
  auto socket = AttachSocket::connect(cluster.workers()[0].socket);
  REQUIRE_MESSAGE(socket, socket.error().message);
  return {{control_error.code, control_error.message}, {data_error.code, data_error.message}, refusal(*socket, attach)};
}

TEST_CASE("a peer of another protocol version is told both versions, on every socket") {
  const TempDir dir;
  const auto cluster = start(options_in(dir / "run"));
  const std::uint16_t future = kProtocolVersion + 41;
  for (const Error& error : refusals(*cluster, encode_control_as_version(WorkerHello{.incarnation = 1}, future),
                                     encode_data_as_version(Pull{}, future),
                                     encode_attach_as_version(AttachRequest{.job_json = "{}"}, future))) {
    CHECK(error.code == ErrorCode::kProtocolVersion);
    CHECK(has(error.message, "version " + std::to_string(future)));
    CHECK(has(error.message, std::to_string(kProtocolVersion)));
  }
  CHECK_FALSE(cluster->failure());
}

// Returns the message `one`, but of an unknown kind. other: one that differs from it in nothing but the kind.
std::vector<std::byte> of_unknown_kind(std::vector<std::byte> one, const std::vector<std::byte>& other) {
  *std::ranges::mismatch(one, other).in1 = std::byte{200};
  return one;
}

TEST_CASE("a peer that says what only newer programs know is told so, on every socket, and may go on") {
  const TempDir dir;
  const auto cluster = start(options_in(dir / "run"));
  const auto attach = of_unknown_kind(encode_attach(InitialValues{}), encode_attach(DetachReply{}));
  for (const Error& error :
       refusals(*cluster, of_unknown_kind(encode_control(HeartbeatReply{}), encode_control(DrainRequest{})),
                of_unknown_kind(encode_data_as_version(Init{}, kProtocolVersion),
                                encode_data_as_version(Pull{}, kProtocolVersion)),
                attach)) {
    CHECK(error.code == ErrorCode::kUnknownKind);
    CHECK(has(error.message, "of kind 200, which this program does not know"));
  }
  auto socket = AttachSocket::connect(cluster->workers()[0].socket);
  REQUIRE_MESSAGE(socket, socket.error().message);
  CHECK(refusal(*socket, attach).code == ErrorCode::kUnknownKind);
  CHECK(refusal(*socket, attach).code == ErrorCode::kUnknownKind);
  CHECK(refusal(*socket, encode_attach(AttachRequest{.job_json = "{}"})).code == ErrorCode::kConfig);
  CHECK_FALSE(cluster->failure());
}

TEST_CASE("pushes of a wrong job, garbage headers and lone frames get an error and disturb nobody") {
  const TempDir dir;
  const auto cluster = start(options_in(dir / "run"));
  const std::string lane = cluster->servers()[0].lanes.at(0);
  alignas(8) std::byte buffer[kMaxErrorHeader];
  Push push;
  push.key.job = JobId(12345);
  push.round = Round(1);
  const auto encoded = encode_data(push, buffer);
  const std::vector<std::byte> header(encoded.begin(), encoded.end());
  const auto unknown = decode_data(ask(lane, {header, std::vector<std::byte>(4096)}));
  REQUIRE_MESSAGE(unknown, unknown.error().message);
  REQUIRE(std::holds_alternative<ErrorReply>(*unknown));
  CHECK(std::get<ErrorReply>(*unknown).code == ErrorCode::kUnknownJob);
  CHECK(has(std::get<ErrorReply>(*unknown).message, "12345"));
  const auto garbage =
      decode_data(ask(lane, {std::vector<std::byte>(100, std::byte{0xab}), std::vector<std::byte>(64)}));
  REQUIRE_MESSAGE(garbage, garbage.error().message);
  REQUIRE(std::holds_alternative<ErrorReply>(*garbage));
  CHECK(std::get<ErrorReply>(*garbage).code == ErrorCode::kMalformed);
  const auto outcome = train(session_options(*cluster, 0, 0, "after"), {{"w", {100}}}, 20);
  CHECK_MESSAGE(!outcome, outcome->message);
}

// Random bytes to a TCP port, over as many connections as the other side makes us open, until `stop` or `most` bytes. A
// connection whose bytes are not taken (ZeroMQ waits up to 30 s for a handshake to make sense) is given up for a new
// one.
std::uint64_t make_noise(const std::string& endpoint, const std::atomic<bool>& stop, std::uint64_t most) {
  std::mt19937_64 random(address_of(endpoint).sin_port);
  std::vector<std::uint64_t> noise(1 << 17);
  for (auto& word : noise) word = random();
  std::uint64_t sent = 0;
  while (!stop && sent < most) {
    const FileDescriptor connection = connect_to(endpoint);
    const int fd = connection.get();
    if (fd < 0) break;
    const timeval patience{.tv_sec = 0, .tv_usec = 50'000};
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    // Some connections begin with a proper ZMTP greeting, and go wrong later.
    static constexpr unsigned char kGreeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
    if (random() % 2 == 0 && ::send(fd, kGreeting, sizeof kGreeting, MSG_NOSIGNAL) < 0) ::perror("send");
    while (!stop && sent < most) {
      const ssize_t got = ::send(fd, noise.data(), noise.size() * sizeof noise[0], MSG_NOSIGNAL);
      if (got <= 0) break;
      sent += static_cast<std::uint64_t>(got);
    }
  }
  return sent;
}

TEST_CASE("a gigabyte of noise on a server's ports while a job trains changes nothing") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "noise", .chunk_bytes = 8192, .rounds = 2000});
  const std::string reference = standalone_digest(dir, job_file, 2);
  ClusterOptions options = options_in(dir / "run");
  options.nodes = 2;
  options.transport = Transport::kTcp;
  options.peer_timeout_ms = 20'000;  // the noise takes the processors, too, and nobody is to be given up for that
  const auto cluster = start(options);
  constexpr std::uint64_t kEach = 500'000'000;
  std::atomic<bool> stop{false};
  const std::string lane = cluster->servers()[0].lanes.at(0);
  auto to_lane = std::async(std::launch::async, [&] { return make_noise(lane, stop, kEach); });
  auto to_coordinator = std::async(std::launch::async, [&] { return make_noise(cluster->coordinator(), stop, kEach); });
  // And a peer that speaks ZeroMQ but sends messages that are none of ours, one of them far over the limit.
  auto garbler = std::async(std::launch::async, [&] {
    zmq::context_t context(1);
    zmq::socket_t socket(context, zmq::socket_type::dealer);
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::sndtimeo, 100);
    socket.connect(lane);
    for (int i = 0; i < 2000 && !stop; ++i) {
      const std::vector<std::byte> junk(i == 1000 ? (96u << 20) : static_cast<std::size_t>(i * 13 % 5000),
                                        std::byte{0x5a});
      socket.send(zmq::buffer(junk.data(), junk.size()), i % 3 == 0 ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  });
  start_trainers(*cluster, job_file);
  finish_training(*cluster);
  const std::uint64_t noise = to_lane.get() + to_coordinator.get();
  garbler.get();
  stop = true;
  CHECK(noise >= 2 * kEach);
  const auto all = results(*cluster);
  CHECK(all[0].at("digest") == reference);
  CHECK(all[0].at("restarts") == 0);
  CHECK_FALSE(cluster->failure());
  // Still there for the next job.
  const auto status = status_of(cluster->servers()[0]);
  CHECK(status.at("lanes").at(0).at("malformed").get<std::uint64_t>() > 0);
  CHECK(cluster->stop().empty());
}

}  // namespace
}  // namespace tributary::e2e::bad_input_test
