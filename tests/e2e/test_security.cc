// A cluster with keys: it trains to the same bits, and whoever has no key, or another's, is told so and changes
// nothing.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/file_descriptor.h"
#include "common/security/data_tokens.h"
#include "common/security/key_folder.h"
#include "common/security/socket_keys.h"
#include "tests/e2e/e2e.h"

namespace tributary::e2e::security_test {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string log_of(const Daemon& daemon) {
  return last_lines(daemon.log_file, 1000);
}

ClusterOptions secure_in(const TempDir& dir) {
  ClusterOptions options = two_by_two(dir);
  options.ranks_per_node = 1;
  options.secure = PayloadSecurity::kEncrypt;
  options.transport = Transport::kTcp;  // so that payloads are encrypted, too
  return options;
}

KeyFolder keys_of(const TempDir& dir) {
  return {dir / "run/keys"};
}

// A daemon beside the cluster, with a [security] of its own.
struct Intruder {
  Intruder(const TempDir& dir, const std::string& name, const std::string& program, const std::string& config)
      : log(dir / (name + ".log")) {
    const std::string file = dir / (name + ".toml");
    std::ofstream(file) << config;
    auto spawned = Process::spawn({.argv = {bin(program), "--config", file}, .log_file = log});
    REQUIRE_MESSAGE(spawned, spawned.error().message);
    process = std::move(*spawned);
  }
  ~Intruder() { process.terminate(milliseconds(0)); }
  bool says(const std::string& words) const {
    return eventually([&] { return has(last_lines(log, 1000), words); });
  }

  std::string log;
  Process process;
};

std::string worker_config(const TempDir& dir, const LocalCluster& cluster, const std::string& name,
                          const std::string& security) {
  return "[worker]\ncoordinator = \"" + cluster.coordinator() + "\"\nname = \"" + name + "\"\nsocket = \"" +
         (dir / (name + ".sock")) +
         "\"\nlanes = 1\nadmin = \"\"\n[limits]\nheartbeat_ms = 100\npeer_timeout_ms = 4000\n" + security;
}

std::string security(const std::string& pair, const KeyFolder& keys, const std::string& coordinator = {}) {
  return "[security]\nkeys = \"" + pair + "\"\ncoordinator_key = \"" +
         (coordinator.empty() ? keys.coordinator() : coordinator) + "\"\n";
}

sockaddr_in address_of(const std::string& endpoint) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

TEST_CASE("with keys a job ends in the same bits, over encrypted sockets and in shared memory") {
  struct {
    Transport transport;
    PayloadSecurity payload;
  } const ways[] = {{Transport::kTcp, PayloadSecurity::kEncrypt},
                    {Transport::kShm, PayloadSecurity::kEncrypt},
                    {Transport::kTcp, PayloadSecurity::kPlain},
                    {Transport::kShm, PayloadSecurity::kPlain}};
  for (const auto& [transport, payload] : ways) {
    const TempDir dir;
    const std::string job_file = write_job(dir, {.name = "keys"});
    ClusterOptions options = secure_in(dir);
    options.ranks_per_node = 2;
    options.transport = transport;
    options.secure = payload;
    const auto cluster = start(options);
    start_trainers(*cluster, job_file);
    finish_training(*cluster);
    CHECK(results(*cluster)[0].at("digest") == standalone_digest(dir, job_file, 4));
    check_transport(*cluster);
    CHECK(cluster->stop().empty());
  }
}

TEST_CASE("killed daemons of a cluster with keys come back, and the job to the same bits") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "killed", .rounds = 3000, .snapshot_every_rounds = 200});
  const std::string reference = standalone_digest(dir, job_file, 2);
  for (const bool server : {true, false}) {
    ClusterOptions options = secure_in(dir);
    options.fresh = true;
    const auto cluster = start(options);
    start_trainers(*cluster, job_file);
    wait_for(*cluster, "max_version", 100);
    survive_kill_of(*cluster, server ? cluster->servers()[1] : cluster->workers()[1], reference);
  }
}

TEST_CASE("whoever has no key, or not this one, is refused with a line on both sides, and the job goes on") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "guarded", .rounds = 100'000});
  const auto cluster = start(secure_in(dir));
  const KeyFolder keys = keys_of(dir), others{dir / "others"};
  start_trainers(*cluster, job_file);
  wait_for(*cluster, "max_version", 5);

  const Intruder keyless(dir, "keyless", "tributary-worker", worker_config(dir, *cluster, "keyless", ""));
  CHECK(keyless.says("it wants keys, and this daemon has none"));

  REQUIRE(make_key_folder(others, Role::kServer));
  REQUIRE(add_key(others, "stranger", Role::kWorker));
  const Intruder stranger(
      dir, "stranger", "tributary-worker",
      worker_config(dir, *cluster, "stranger", security(others.pair("stranger"), others, keys.coordinator())));
  CHECK(stranger.says("does not let this daemon's key in"));
  CHECK(eventually([&] {
    return has(log_of(cluster->servers()[0]), "refused a peer at 127.0.0.1 that connects to the coordinator: its key ");
  }));

  const Intruder misled(
      dir, "misled", "tributary-worker",
      worker_config(dir, *cluster, "misled", security(keys.pair("node-1"), keys, others.coordinator())));
  CHECK(misled.says("does not show the key that [security] coordinator_key names"));

  // A worker's key used as a server's: the file can be made to say so, but not what the coordinator has.
  KeyPair disguised = read_key_pair(keys.pair("node-1")).value();
  disguised.identity.role = Role::kServer;
  REQUIRE(write_key_pair(dir / "disguised.key", disguised));
  const Intruder impostor(dir, "impostor", "tributary-server",
                          "[server]\nindex = 1\nservers = 2\ncoordinator = \"" + cluster->coordinator() +
                              "\"\nlanes = 1\nadmin = \"\"\n" + security(dir / "disguised.key", keys));
  CHECK(impostor.says("the key of worker 'node-1' may not send this message"));

  // Nor does a worker speak as another one.
  REQUIRE(add_key(keys, "node-2", Role::kWorker));
  const Intruder renamed(dir, "renamed", "tributary-worker",
                         worker_config(dir, *cluster, "node-1", security(keys.pair("node-2"), keys)));
  CHECK(renamed.says("worker 'node-1' shows the key of worker 'node-2'"));

  // Handshakes that never end.
  std::vector<FileDescriptor> open;
  std::vector<std::string> endpoints = {cluster->coordinator()};
  for (const Daemon& server : cluster->servers())
    endpoints.insert(endpoints.end(), server.lanes.begin(), server.lanes.end());
  for (int i = 0; i < 200; ++i) {
    const sockaddr_in address = address_of(endpoints[static_cast<std::size_t>(i) % endpoints.size()]);
    open.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    CHECK(::connect(open.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }

  const std::uint64_t now = job_number(*cluster, "max_version");
  wait_for(*cluster, "max_version", now + 20);
  CHECK(job_number(*cluster, "view") == 1);
  for (const FileDescriptor& fd : open) {  // they are cut
    char byte = 0;
    CHECK(eventually([&] { return ::recv(fd.get(), &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET; },
                     milliseconds(20'000)));
    if (&fd == &open[4]) break;
  }
}

// Whoever listens on the network sees the tokens of plain payloads.
TEST_CASE("a token that somebody has seen is good for nothing, and neither is one of another key") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "seen", .chunk_bytes = 4096, .rounds = 100'000});
  ClusterOptions options = secure_in(dir);
  options.secure = PayloadSecurity::kPlain;
  const auto cluster = start(options);
  start_trainers(*cluster, job_file);
  wait_for(*cluster, "max_version", 5);
  const KeyPair node = read_key_pair(keys_of(dir).pair("node-1")).value();
  const KeyPair server = read_key_pair(keys_of(dir).pair("server-1")).value();
  const Daemon& daemon = cluster->servers()[1];
  const nlohmann::json job = status_of(cluster->coordinator_daemon()).at("coordinator").at("jobs").at(0);
  DataToken token{JobId(std::stoull(job.at("id").get<std::string>())), ViewId(job.at("view")), NodeRank(1),
                  ShardIndex(1), LaneIndex(0)};

  const auto refused = [&](const std::string& proof, const std::string& words) {
    zmq::context_t context(1);
    zmq::socket_t socket(context, zmq::socket_type::dealer);
    socket.set(zmq::sockopt::linger, 0);
    connect_with_token(socket, token_name(token), proof);
    socket.connect(daemon.lanes.at(0));
    return eventually([&] { return has(log_of(daemon), words); });
  };
  CHECK(refused(token_proof(token, node, server.identity.key).value(),
                "its token is one of node 1 that was used already"));
  token.use = 2;
  CHECK(refused(token_proof(token, server, node.identity.key).value().replace(0, 1, "x"),
                "its token is not one of node 1"));
  token.view = ViewId(token.view.value + 1);
  CHECK(refused(token_proof(token, node, server.identity.key).value(), "its token is of no view that is open here"));

  const std::uint64_t now = job_number(*cluster, "max_version");
  wait_for(*cluster, "max_version", now + 20);
  CHECK(job_number(*cluster, "view") == 1);
}

TEST_CASE("a key that is revoked in the middle of a job ends its view, and the job goes on when it is back") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "revoked", .rounds = 4000, .snapshot_every_rounds = 200});
  const auto cluster = start(secure_in(dir));
  const std::string pub = keys_of(dir).authorized() + "/node-1.pub";
  start_trainers(*cluster, job_file);
  wait_for(*cluster, "max_version", 20);
  std::filesystem::rename(pub, dir / "node-1.pub");
  CHECK(eventually([&] { return has(log_of(cluster->servers()[0]), "the key of worker 'node-1' was revoked"); }));
  CHECK(eventually([&] { return has(log_of(cluster->workers()[1]), "was revoked"); }));
  // Its trainer attaches again, and is told.
  Trainer& shut_out = cluster->trainers()[1];
  REQUIRE(eventually([&] { return shut_out.process.poll().has_value(); }));
  CHECK(has(last_lines(shut_out.log_file, 15), "is no longer authorized"));
  CHECK(eventually([&] {
    return status_of(cluster->coordinator_daemon()).at("coordinator").at("jobs").at(0).at("phase") == "gathering";
  }));
  // A new process of it does not get in either.
  cluster->workers()[1].process.terminate(milliseconds(0));
  const Intruder again(dir, "again", "tributary-worker",
                       worker_config(dir, *cluster, "node-1", security(keys_of(dir).pair("node-1"), keys_of(dir))));
  CHECK(again.says("does not let this daemon's key in"));
  const std::uint64_t stopped_at = job_number(*cluster, "max_version");
  std::this_thread::sleep_for(milliseconds(500));
  CHECK(job_number(*cluster, "max_version") == stopped_at);

  std::filesystem::rename(dir / "node-1.pub", pub);
  REQUIRE(cluster->restart(cluster->workers()[1]));
  REQUIRE(cluster->restart_trainer(1));
  finish_training(*cluster);
  CHECK(results(*cluster)[0].at("digest") == standalone_digest(dir, job_file, 2));
  CHECK(cluster->stop().empty());
}

TEST_CASE("--check-config says whether a daemon would start, and touches nothing") {
  const TempDir dir;
  const auto check = [&](const std::string& program, const std::string& config) {
    const std::string file = dir / "checked.toml", log = dir / "checked.log";
    std::filesystem::remove(log);
    std::ofstream(file) << config;
    auto spawned = Process::spawn({.argv = {bin(program), "--config", file, "--check-config"}, .log_file = log});
    REQUIRE_MESSAGE(spawned, spawned.error().message);
    const auto status = spawned->wait(kPatience);
    REQUIRE(status);
    return std::to_string(status->code) + ":" + last_lines(log, 10);
  };
  CHECK(has(check("tributary-server", "[server]\nindex = 0\n[store]\npath = \"" + (dir / "store") + "\"\n"),
            "0:  " + (dir / "checked.toml") + " is sound"));
  CHECK_FALSE(std::filesystem::exists(dir / "store"));
  CHECK(has(check("tributary-server", "[server]\nbind = \"tcp://0.0.0.0:*\"\n"), "2:  [server] bind"));
  CHECK(has(check("tributary-worker", "[worker]\nadmin = \"10.0.0.1:80\"\n"), "2:  [worker] admin"));
  CHECK(has(check("tributary-worker", "[security]\nkeys = \"/none\"\n"), "2:  cannot open the key file /none"));
  CHECK(has(check("tributary-worker", "[worker]\nnmae = \"x\"\n"), "did you mean 'name'"));
}

TEST_CASE("a daemon that other machines reach does not start without keys, and the error names three cures") {
  const TempDir dir;
  const auto port = free_port();
  REQUIRE(port);
  const Intruder open(dir, "open", "tributary-server",
                      "[server]\ncoordinator = \"tcp://127.0.0.1:" + std::to_string(*port) +
                          "\"\nbind = \"tcp://0.0.0.0:*\"\nadmin = \"\"\n");
  for (const char* cure : {"[server] bind = \"tcp://0.0.0.0:*\" is not on this machine alone", "tributary keys init",
                           "tcp://127.0.0.1:*", "insecure = true"}) {
    CHECK_MESSAGE(open.says(cure), cure);
  }
}

}  // namespace tributary::e2e::security_test
