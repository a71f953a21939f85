// A cluster with keys: it trains to the same bits, and a peer without a key, or with another's, gets an error and
// changes nothing.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <sstream>

#include "common/security/data_tokens.h"
#include "common/security/key_folder.h"
#include "common/security/socket_keys.h"
#include "common/system/file_descriptor.h"
#include "tests/e2e/e2e.h"
#include "tests/unit/other_user.h"
#include "tests/unit/required.h"

namespace tributary::e2e::security_test {
namespace {

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

// A daemon next to the cluster, with a [security] of its own.
struct Intruder {
  Intruder(const TempDir& dir, const std::string& name, const std::string& program, const std::string& config)
      : log(dir / (name + ".log")) {
    const std::string file = dir / (name + ".toml");
    std::ofstream(file) << config;
    process = required(Process::spawn({.argv = {bin(program), "--config", file}, .log_file = log}));
  }
  ~Intruder() { process.terminate(milliseconds(0)); }
  bool says(const std::string& words) const {
    return eventually([&] { return contains(last_lines(log, 1000), words); });
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

// TCP ports that a process listens on, whatever the address.
std::set<int> listening_ports(int pid) {
  std::set<std::string> own;  // numbers of its sockets
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) own.insert(target.substr(8, target.size() - 9));
  }
  std::set<int> ports;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    std::string line;
    std::getline(in, line);  // the head
    while (std::getline(in, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state, skipped, inode;
      words >> slot >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) words >> skipped;
      words >> inode;
      if (state == "0A" && own.contains(inode))
        ports.insert(std::stoi(local.substr(local.rfind(':') + 1), nullptr, 16));
    }
  }
  return ports;
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
    const auto cluster = start(options, job_file);
    CHECK(finished(*cluster)[0].at("digest") == standalone_digest(dir, job_file, 4));
    check_transport(*cluster);
    CHECK(cluster->stop().empty());
  }
}

TEST_CASE("another user of the machine comes to nothing of a cluster without keys, whatever the umask") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "private", .snapshot_every_rounds = 10});
  const mode_t before = ::umask(0);
  auto started = LocalCluster::start(two_by_two(dir));
  ::umask(before);
  REQUIRE_MESSAGE(started, started.error().message);
  LocalCluster& cluster = **started;
  start_trainers(cluster, job_file);
  finish_training(cluster);
  CHECK(results(cluster)[0].at("digest") == standalone_digest(dir, job_file, 4));
  check_transport(cluster);

  std::vector<std::string> paths;
  const auto listens_at = [&](const std::string& endpoint) {
    REQUIRE_MESSAGE(endpoint.starts_with("ipc://" + cluster.base_dir() + "/"), endpoint);
    paths.push_back(endpoint.substr(std::string_view("ipc://").size()));
  };
  listens_at(cluster.coordinator());
  for (const Daemon& server : cluster.servers()) {
    for (const std::string& lane : server.lanes) listens_at(lane);
  }
  for (const Daemon& worker : cluster.workers()) paths.push_back(worker.socket);
  for (auto* daemons : {&cluster.servers(), &cluster.workers()}) {
    for (const Daemon& daemon : *daemons) {
      CAPTURE(daemon.name);
      CHECK(listening_ports(daemon.process.pid()) == std::set<int>{ntohs(address_of(daemon.admin).sin_port)});
    }
  }
  namespace fs = std::filesystem;
  constexpr fs::perms kOthers = fs::perms::group_all | fs::perms::others_all;
  CHECK(fs::status(cluster.base_dir()).permissions() == fs::perms::owner_all);
  int entries = 0;
  for (const auto& entry : fs::recursive_directory_iterator(cluster.base_dir())) {
    ++entries;
    // The name that a run is known by is no secret.
    if (entry.path().filename() == ".tributary-run" || entry.path().extension() == ".toml" ||
        entry.path().filename() == "cluster.json") {
      continue;
    }
    CHECK_MESSAGE((entry.symlink_status().permissions() & kOthers) == fs::perms::none, entry.path().string());
  }
  CHECK(entries > 20);

  if (!testing::can_be_another_user()) return;
  CHECK(testing::as_another_user([&] { return ::access(cluster.base_dir().c_str(), X_OK) != 0; }));
  // The sockets refuse him themselves, too.
  for (const std::string& folder : {dir.path(), cluster.base_dir(), cluster.socket_dir()}) {
    REQUIRE(::chmod(folder.c_str(), 0755) == 0);
  }
  for (const std::string& path : paths) {
    const auto connects = [&path] {
      sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
      std::ranges::copy(path, address.sun_path);
      for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
        const FileDescriptor socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
        const int rc = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
        if (rc == 0 || errno != EACCES) return true;
      }
      return false;
    };
    CHECK_MESSAGE(connects(), path);
    CHECK_FALSE_MESSAGE(testing::as_another_user(connects), path);
  }
}

TEST_CASE("a base folder of another user's is refused, and links in one's own are not written through") {
  const TempDir dir;
  const std::string victim = dir / "victim";
  std::ofstream(victim) << "mine";
  const auto plant = [&](const std::string& name) {
    std::filesystem::create_directory(dir / "run");
    std::filesystem::create_symlink(victim, dir / ("run/" + name));
  };
  const auto untouched = [&] {
    std::ifstream in(victim);
    std::string text;
    return std::getline(in, text) && text == "mine";
  };
  for (const char* name : {"server-0.toml.new", "cluster.json.new"}) {
    std::ofstream(dir / "marker") << "";
    plant(name);
    std::filesystem::copy(dir / "marker", dir / "run/.tributary-run");
    CHECK(start(options_in(dir / "run"))->stop().empty());
    CHECK(untouched());
    std::filesystem::remove_all(dir / "run");
  }
  // The folder of the logs is this run's, and no link.
  std::filesystem::create_directory(dir / "run");
  std::ofstream(dir / "run/.tributary-run") << "";
  std::filesystem::create_directory_symlink(dir.path(), dir / "run/logs");
  CHECK_FALSE(LocalCluster::start(options_in(dir / "run")));
  CHECK(untouched());
  if (!testing::can_be_another_user()) return;
  std::filesystem::remove(dir / "run/logs");
  REQUIRE(::chown((dir / "run").c_str(), testing::kOtherUser, testing::kOtherUser) == 0);
  const auto refused = failure_of(LocalCluster::start(options_in(dir / "run")));
  CHECK(contains(refused.message, "belongs to user 65534"));
}

TEST_CASE("killed daemons of a cluster with keys come back, and the job to the same bits") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "killed", .rounds = 3000, .snapshot_every_rounds = 200});
  const std::string reference = standalone_digest(dir, job_file, 2);
  for (const bool server : {true, false}) {
    ClusterOptions options = secure_in(dir);
    options.fresh = true;
    const auto cluster = start(options, job_file);
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

  const Intruder keyless(dir, "keyless", "tributary-worker",
                         worker_config(dir, *cluster, "keyless", "[security]\ninsecure = true\n"));
  CHECK(keyless.says("it wants keys, and this daemon has none"));

  REQUIRE(make_key_folder(others, Role::kServer));
  REQUIRE(add_key(others, "stranger", Role::kWorker));
  const Intruder stranger(
      dir, "stranger", "tributary-worker",
      worker_config(dir, *cluster, "stranger", security(others.pair("stranger"), others, keys.coordinator())));
  CHECK(stranger.says("does not let this daemon's key in"));
  CHECK(eventually([&] {
    return contains(log_of(cluster->servers()[0]),
                    "refused a peer at 127.0.0.1 that connects to the coordinator: its key ");
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
    open.push_back(connect_to(endpoints[static_cast<std::size_t>(i) % endpoints.size()]));
    CHECK(open.back().get() >= 0);
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

// An eavesdropper on the network sees the tokens of plain payloads.
TEST_CASE("a token that somebody has seen is good for nothing, and neither is one of another key") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "seen", .chunk_bytes = 4096, .rounds = 100'000});
  ClusterOptions options = secure_in(dir);
  options.secure = PayloadSecurity::kPlain;
  const auto cluster = start(options, job_file);
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
    return eventually([&] { return contains(log_of(daemon), words); });
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
  const std::string job_file = write_job(dir, {.name = "revoked", .rounds = 2500, .snapshot_every_rounds = 200});
  const auto cluster = start(secure_in(dir));
  const std::string pub = keys_of(dir).authorized() + "/node-1.pub";
  start_trainers(*cluster, job_file);
  wait_for(*cluster, "max_version", 20);
  std::filesystem::rename(pub, dir / "node-1.pub");
  CHECK(eventually([&] { return contains(log_of(cluster->servers()[0]), "the key of worker 'node-1' was revoked"); }));
  CHECK(eventually([&] { return contains(log_of(cluster->workers()[1]), "was revoked"); }));
  // Its trainer attaches again, and gets the reason.
  Trainer& shut_out = cluster->trainers()[1];
  REQUIRE(eventually([&] { return shut_out.process.poll().has_value(); }));
  CHECK(contains(last_lines(shut_out.log_file, 15), "is no longer authorized"));
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
  CHECK(finished(*cluster)[0].at("digest") == standalone_digest(dir, job_file, 2));
  CHECK(cluster->stop().empty());
}

TEST_CASE("--check-config says whether a daemon would start, and touches nothing") {
  const TempDir dir;
  const auto check = [&](const std::string& program, const std::string& config) {
    const std::string file = dir / "checked.toml";
    std::ofstream(file) << config;
    const Outcome checked = run({bin(program), "--config", file, "--check-config"});
    return std::to_string(checked.status) + ":  " + checked.text;
  };
  CHECK(contains(check("tributary-server", "[server]\nindex = 0\n[store]\npath = \"" + (dir / "store") + "\"\n"),
                 "0:  " + (dir / "checked.toml") + " is sound"));
  CHECK_FALSE(std::filesystem::exists(dir / "store"));
  CHECK(contains(check("tributary-server", "[server]\nbind = \"tcp://0.0.0.0:*\"\n"), "2:  [server] bind"));
  CHECK(contains(check("tributary-worker", "[worker]\nadmin = \"10.0.0.1:80\"\n"), "2:  [worker] admin"));
  CHECK(contains(check("tributary-worker", "[security]\nkeys = \"/none\"\n"), "2:  cannot open the key file /none"));
  CHECK(contains(check("tributary-worker", "[worker]\nnmae = \"x\"\n"), "did you mean 'name'"));
}

}  // namespace tributary::e2e::security_test
