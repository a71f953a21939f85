// Checks of a configuration against its machine, and of the reachability of endpoints.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/clock.h"
#include "common/base/version.h"
#include "common/doctor/check_list.h"
#include "common/doctor/daemon_checks.h"
#include "common/doctor/disk_rate.h"
#include "common/doctor/reach.h"
#include "common/system/file_descriptor.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/temp_dir.h"

namespace tributary::daemon_checks_test {
namespace {

using testing::contains;

using testing::TempDir;

const Check& check_of(const std::vector<Check>& checks, const std::string& name) {
  const auto found = std::ranges::find(checks, name, &Check::name);
  REQUIRE_MESSAGE(found != checks.end(), "no line is called " << name);
  CHECK(found->advice.empty() == (found->level == CheckLevel::kOk));
  return *found;
}

// A listener on 127.0.0.1 that accepts no connection.
class Listener {
 public:
  explicit Listener(int backlog) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(fd_.get(), backlog) == 0);
    REQUIRE(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    endpoint = "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  std::string endpoint;

 private:
  FileDescriptor fd_;
};

const std::atomic<bool> kNever{false};

Around here() {
  Around around{kNever, {}, "this", {}, {}};
  around.interfaces = {{.name = "lo", .addresses = {"127.0.0.1"}, .loopback = true, .mbit_per_s = {}, .mtu = 65536},
                       {.name = "eth0", .addresses = {"10.9.8.7"}, .loopback = false, .mbit_per_s = {}, .mtu = 1500}};
  return around;
}

ClusterFacts cluster_of(const std::string& endpoint, const std::string& host) {
  ClusterFacts cluster{.servers = 1,
                       .version = kVersion,
                       .clock_ms = wall_ms(),
                       .lanes = {{ShardIndex(0), host, {endpoint}, {}, false}}};
  return cluster;
}

}  // namespace

TEST_CASE("Endpoints are reached, refused, dropped, or nowhere") {
  const Listener open(5), full(0);
  // Its queue takes one connection; the next gets no reply, as behind a firewall that drops.
  const auto first = reach({full.endpoint}, kNever);
  const auto second = reach(
      {full.endpoint, open.endpoint, "tcp://127.0.0.1:1", "ipc:///nowhere/socket", "tcp://no-such-host.invalid:7070"},
      kNever);
  CHECK(first[0].why_not.empty());
  CHECK(contains(second[0].why_not, "nothing has answered for 3 s"));
  CHECK(contains(second[0].cure, "firewall"));
  CHECK(second[1].why_not.empty());
  CHECK(second[1].from == "127.0.0.1");
  CHECK(second[2].why_not == "nobody listens there");
  CHECK(second[3].why_not == "nobody listens there");
  CHECK(contains(second[4].why_not, "the name no-such-host.invalid is not known here"));
  CHECK_FALSE(speaks_zmtp(open.endpoint));  // nobody says anything there
  CHECK_FALSE(speaks_zmtp("tcp://127.0.0.1:1"));
}

TEST_CASE("A worker's doctor tries every lane, and knows a loopback that is somebody else's") {
  const Listener lane(5);
  Around around = here();
  around.cluster = cluster_of(lane.endpoint, "this");
  CHECK(check_of(checks_of(WorkerConfig{}, around), "to server 0").level == CheckLevel::kOk);
  around.cluster = cluster_of("tcp://127.0.0.1:1", "this");
  CHECK(contains(check_of(checks_of(WorkerConfig{}, around), "to server 0").found, "nobody listens there"));
  around.cluster = cluster_of(lane.endpoint, "another");
  const std::vector<Check> elsewhere = checks_of(WorkerConfig{}, around);
  CHECK(check_of(elsewhere, "to server 0").level == CheckLevel::kProblem);
  CHECK(contains(check_of(elsewhere, "to server 0").advice, "[server] bind (or advertise)"));
}

TEST_CASE("Addresses that are not this machine's, or taken, are named with those that it has") {
  const Listener taken(5);
  ServerConfig config;
  config.security.insecure = true;
  config.bind = "tcp://10.0.0.1:7100";
  config.coordinators = {taken.endpoint};
  const std::vector<Check> checks = checks_of(config, here());
  CHECK(check_of(checks, "[server] bind").level == CheckLevel::kProblem);
  CHECK(contains(check_of(checks, "[server] bind").found, "no address of this machine, which has 10.9.8.7 (eth0)"));
  CHECK(contains(check_of(checks, "[server] coordinator").found, "in use"));
  config.advertise = "10.0.0.1";
  CHECK(check_of(checks_of(config, here()), "[server] advertise").level == CheckLevel::kNote);
  config.advertise = "10.9.8.7";
  CHECK(check_of(checks_of(config, here()), "[server] advertise").level == CheckLevel::kOk);
  // Among lanes on consecutive ports, the check names the one whose port is taken.
  const std::string port = taken.endpoint.substr(taken.endpoint.rfind(':') + 1);
  ServerConfig lanes = config;
  lanes.lanes = 3;
  lanes.bind = "tcp://127.0.0.1:" + std::to_string(std::stoi(port) - 2);
  std::size_t in_use = 0;
  for (const Check& check : checks_of(lanes, here()))
    in_use += check.name == "[server] bind" && contains(check.found, "127.0.0.1:" + port + " is in use");
  CHECK(in_use == 1);
  // One that runs does not find its own ports taken.
  Around running = here();
  running.running = true;
  const std::vector<Check> of_running = checks_of(config, running);
  CHECK(std::ranges::find(of_running, "[server] coordinator", &Check::name) == of_running.end());
}

TEST_CASE("Lanes at the loopback, or everywhere without a name, are of no use to workers elsewhere") {
  ServerConfig config{.index = 1, .coordinators = {"tcp://10.9.8.1:7070"}};
  for (const std::string bind : {"tcp://127.0.0.1:*", "tcp://0.0.0.0:*", "ipc:///nowhere/lanes", ""}) {
    config.bind = bind;
    config.security.insecure = true;
    CHECK(check_of(checks_of(config, here()), "lanes").level == CheckLevel::kProblem);
  }
  config.coordinators = {"tcp://127.0.0.1:7070"};
  CHECK(check_of(checks_of(config, here()), "lanes").level == CheckLevel::kOk);
}

TEST_CASE("Keys, folders, time-outs and paths") {
  const TempDir dir;
  ServerConfig config;
  Around around = here();
  config.bind = "tcp://0.0.0.0:*";
  CHECK(contains(check_of(checks_of(config, around), "keys").advice, "insecure = true"));  // protected mode
  config = {};
  CHECK(check_of(checks_of(config, around), "[store] path").level == CheckLevel::kNote);
  config.store_path = dir.path() + "/store";
  config.checkpoint_roots = {dir.path() + "/made/when/needed/"};
  std::vector<Check> checks = checks_of(config, around);
  CHECK(check_of(checks, "[store] path").level != CheckLevel::kProblem);
  CHECK(check_of(checks, "[store] checkpoint_roots").level != CheckLevel::kProblem);
  std::ofstream(dir / "file") << "x";
  config.checkpoint_roots = {dir / "file"};
  CHECK(contains(check_of(checks_of(config, around), "[store] checkpoint_roots").found, "is no folder"));
  config.checkpoint_roots = {"/proc/nowhere"};
  CHECK(contains(check_of(checks_of(config, around), "[store] checkpoint_roots").found, "/proc cannot be written to") ==
        (::geteuid() != 0));
  config.peer_timeout_ms = 2000;
  around.paths = {dir.path(), dir.path() + "/data"};
  checks = checks_of(config, around);
  CHECK(check_of(checks, "time-outs").level == CheckLevel::kNote);
  CHECK(check_of(checks, "path").level == CheckLevel::kOk);
  CHECK(checks.back().found == dir.path() + "/data: No such file or directory");
  CHECK(checks.back().level == CheckLevel::kProblem);
  around.cluster = cluster_of("tcp://127.0.0.1:1", "this");
  around.cluster->servers = 3;
  CHECK(contains(check_of(checks_of(config, around), "servers").found, "1; the coordinator waits for 3"));
}

TEST_CASE("A coordinator of another release, with another clock, or without all servers is told apart") {
  ClusterFacts cluster = cluster_of("tcp://10.0.0.1:7100", "h");
  const std::uint64_t now = cluster.clock_ms;
  CHECK_FALSE(has_problem(checks_of_coordinator(cluster, now)));
  CHECK(contains(check_of(checks_of_coordinator(cluster, now - 3'600'000), "clock").found, "3600 s behind"));
  cluster.version = "0.0.9";
  CHECK(check_of(checks_of_coordinator(cluster, now), "version").level == CheckLevel::kNote);
  cluster.servers = 3;
  CHECK(contains(check_of(checks_of_coordinator(cluster, now), "daemons").advice, "start server 1, 2"));
}

TEST_CASE("A disk's rate is measured without leaving a file, and a folder that cannot be written is an error") {
  const TempDir dir;
  const auto rate = required(disk_rate(dir.path()));
  CHECK(rate > 0.0);
  CHECK(std::filesystem::is_empty(dir.path()));
  CHECK_FALSE(disk_rate(dir.path() + "/none"));
}

}  // namespace tributary::daemon_checks_test
