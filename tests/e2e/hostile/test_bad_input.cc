// A second cluster in a folder, and noise on the network, against real daemons: those that run continue.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <random>
#include <zmq.hpp>

#include "tests/e2e/e2e.h"
#include "tests/unit/required.h"

namespace tributary::e2e::bad_input_test {
namespace {

TEST_CASE("a second cluster in the same folder is refused while one runs there") {
  const TempDir dir;
  const auto cluster = start(options_in(dir / "run"));
  const auto second = failure_of(LocalCluster::start(options_in(dir / "run")));
  CHECK(contains(second.message, "a cluster is running in"));
  CHECK(contains(second.message, std::to_string(::getpid())));
  CHECK(cluster->stop().empty());
  CHECK(start(options_in(dir / "run"))->stop().empty());
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
