// Crowds before a cluster with keys: connections without a key, many with one, and half-sent messages. A job keeps its
// pace, and daemons' memory stays within its bound. The figures are for readers (docs/tests.md); the checks leave room
// for a machine that does other things, too.
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <list>
#include <zmq.hpp>

#include "common/security/key_folder.h"
#include "common/security/socket_keys.h"
#include "common/system/file_descriptor.h"
#include "common/system/host_port.h"
#include "common/wire/zmq_util.h"
#include "server/lane/lane.h"
#include "tests/e2e/e2e.h"

namespace tributary::e2e::crowds_test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLeastPace = 0.5;  // share of the calm one
constexpr seconds kMeasured{4};

// Returns the bytes of a process's private memory without a file.
std::uint64_t anonymous_bytes(int pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoull(line.substr(8)) * 1024;
  }
  return 0;
}

std::uint64_t descriptors(int pid) {
  const std::filesystem::directory_iterator all("/proc/" + std::to_string(pid) + "/fd"), end;
  return static_cast<std::uint64_t>(std::distance(all, end));
}

// A cluster with keys, whose job trains until it is stopped.
struct Cluster {
  Cluster() {
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
    const std::string job_file = write_job(dir, {.name = "crowded", .rounds = 10'000'000});
    ClusterOptions options = options_in(dir / "run");
    options.nodes = 2;
    options.lanes = 1;
    options.secure = PayloadSecurity::kEncrypt;
    options.transport = Transport::kTcp;
    cluster = start(options);
    start_trainers(*cluster, job_file);
    wait_for(*cluster, "max_version", 100);
  }
  const Daemon& server() { return cluster->servers()[0]; }
  int pid() { return server().process.pid(); }

  struct Measured {
    double rounds_per_s = 0.0, coming_rounds_per_s = 0.0;
    std::uint64_t most_bytes = 0, most_descriptors = 0;
  };
  Measured measure() {
    Measured found;
    const std::uint64_t before = job_number(*cluster, "max_version");
    const auto from = Clock::now();
    while (Clock::now() < from + kMeasured) {
      found.most_bytes = std::max(found.most_bytes, anonymous_bytes(pid()));
      found.most_descriptors = std::max(found.most_descriptors, descriptors(pid()));
      std::this_thread::sleep_for(milliseconds(20));
    }
    const std::uint64_t after = job_number(*cluster, "max_version");
    found.rounds_per_s =
        static_cast<double>(after - before) / std::chrono::duration<double>(Clock::now() - from).count();
    return found;
  }
  // calm: the mean of before and after, because the machine has others' work, too. While a crowd comes it takes
  // processors of this machine itself.
  void check(const char* what, const Measured& crowded, const Measured& before) {
    const Measured after = measure();
    const double calm = (before.rounds_per_s + after.rounds_per_s) / 2.0;
    MESSAGE(what << ": " << crowded.rounds_per_s / calm << " of the calm pace (" << before.rounds_per_s
                 << ", as they came " << crowded.coming_rounds_per_s << ", while they were there "
                 << crowded.rounds_per_s << ", then " << after.rounds_per_s << " rounds/s), server's memory "
                 << (crowded.most_bytes >> 20) << " MiB (calm " << (before.most_bytes >> 20) << "), descriptors "
                 << crowded.most_descriptors);
    CHECK(crowded.rounds_per_s >= kLeastPace * calm);
    CHECK(job_number(*cluster, "view") == 1);
    CHECK(cluster->trainers_running());
  }

  TempDir dir;
  std::unique_ptr<LocalCluster> cluster;
};

// Brings a crowd while the job is measured.
template <class Crowd>
Cluster::Measured beside(Cluster& cluster, Crowd&& crowd) {
  std::atomic<bool> over{false};
  std::thread brings([&] { crowd(over); });
  const auto coming = cluster.measure();
  std::this_thread::sleep_for(seconds(2));
  auto measured = cluster.measure();
  measured.coming_rounds_per_s = coming.rounds_per_s;
  measured.most_bytes = std::max(measured.most_bytes, coming.most_bytes);
  measured.most_descriptors = std::max(measured.most_descriptors, coming.most_descriptors);
  over.store(true);
  brings.join();
  return measured;
}

}  // namespace

TEST_CASE("10,000 connections without a key take neither a job's pace nor its server's memory or descriptors") {
  Cluster cluster;
  for (const std::string& endpoint : {cluster.server().lanes[0], cluster.cluster->coordinator()}) {
    const auto before = cluster.measure();
    const auto crowded = beside(cluster, [&](const std::atomic<bool>& over) {
      std::vector<FileDescriptor> crowd;
      for (int i = 0; i < 10'000 && !over.load(); ++i) crowd.push_back(connect_to(endpoint));
      // Connections that were cut come again, a thousand a second.
      for (std::size_t i = 0; !over.load(); i = (i + 1) % crowd.size()) {
        crowd[i] = connect_to(endpoint);
        std::this_thread::sleep_for(milliseconds(1));
      }
    });
    cluster.check("10,000 connections without a key", crowded, before);
    CHECK(crowded.most_descriptors < 1500);
    CHECK(crowded.most_bytes < before.most_bytes + (128u << 20));
  }
}

TEST_CASE("1,000 connections with a key of the job's are bounded, and the job goes on") {
  Cluster cluster;
  const KeyFolder keys{cluster.dir / "run/keys"};
  const KeyPair own = read_key_pair(keys.pair("node-1")).value();
  const std::string server_key = read_identity(keys.coordinator())->key;
  const auto before = cluster.measure();
  const auto crowded = beside(cluster, [&](const std::atomic<bool>& over) {
    zmq::context_t context(1, 2000);
    std::list<zmq::socket_t> crowd;
    for (int i = 0; i < 1000; ++i) {
      zmq::socket_t& socket = crowd.emplace_back(context, zmq::socket_type::dealer);
      set_common_options(socket, 1 << 20, 10);
      connect_with(socket, own, server_key);
      socket.connect(cluster.server().lanes[0]);
    }
    for (; !over.load(); std::this_thread::sleep_for(milliseconds(100))) {
      for (zmq::socket_t& socket : crowd) {
        zmq::message_t nonsense(100);
        std::memset(nonsense.data(), 0, nonsense.size());
        send_now(socket, nonsense, false);
      }
    }
  });
  cluster.check("1,000 connections with a key", crowded, before);
  CHECK(crowded.most_descriptors < 1500);
  CHECK(crowded.most_bytes < before.most_bytes + (128u << 20));
}

TEST_CASE("half-sent messages of 192 MiB are bounded together, and the job goes on") {
  constexpr std::size_t kPassedOn = 160u << 20;
  constexpr int kMessages = 8;
  Cluster cluster;
  const KeyFolder keys{cluster.dir / "run/keys"};
  const KeyPair own = read_key_pair(keys.pair("node-1")).value();
  const std::string server_key = read_identity(keys.coordinator())->key;
  const auto before = cluster.measure();
  std::atomic<std::uint64_t> passed{0};
  const auto crowded = beside(cluster, [&](const std::atomic<bool>& over) {
    const std::vector<char> large(192u << 20);
    zmq::context_t context(1);
    std::list<FileDescriptor> held;
    for (int i = 0; i < kMessages && !over.load(); ++i) {
      // Between the two: what the peer sends is passed on, but for its end.
      FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in address = address_of("tcp://127.0.0.1:0");
      socklen_t size = sizeof address;
      REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
      REQUIRE(::listen(listener.get(), 1) == 0);
      REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
      zmq::socket_t peer(context, zmq::socket_type::dealer);
      set_common_options(peer, large.size(), 10);
      connect_with(peer, own, server_key);
      peer.connect("tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
      zmq::message_t message(const_cast<char*>(large.data()), large.size(), [](void*, void*) {});
      send_now(peer, message, false);
      const FileDescriptor in(::accept(listener.get(), nullptr, nullptr));
      const int out = held.emplace_back(connect_to(cluster.server().lanes[0])).get();
      std::vector<char> bytes(1u << 20);
      for (std::size_t left = kPassedOn; left > 0 && !over.load();) {
        pollfd fds[2] = {{in.get(), POLLIN, 0}, {out, POLLIN, 0}};
        ::poll(fds, 2, 100);
        if ((fds[0].revents & POLLIN) != 0) {
          const ssize_t got = ::recv(in.get(), bytes.data(), std::min(bytes.size(), left), 0);
          if (got <= 0 || ::send(out, bytes.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL) != got) break;
          left -= static_cast<std::size_t>(got);
          passed += static_cast<std::uint64_t>(got);
        }
        if ((fds[1].revents & POLLIN) != 0) {
          const ssize_t got = ::recv(out, bytes.data(), bytes.size(), 0);
          if (got <= 0 || ::send(in.get(), bytes.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL) != got) break;
        }
      }
    }
    while (!over.load()) std::this_thread::sleep_for(milliseconds(10));
  });
  MESSAGE("passed on: " << (passed.load() >> 20) << " MiB of half-sent messages");
  CHECK(passed.load() > 3 * Lane::kMaxHeldBytes);
  cluster.check("half-sent messages", crowded, before);
  // The bound, and what comes between two looks.
  CHECK(crowded.most_bytes < before.most_bytes + Lane::kMaxHeldBytes + 2 * Lane::kMaxHeldBytesOfNode + (256u << 20));
}

}  // namespace tributary::e2e::crowds_test
