// Daemons and trainers in any order, and daemons whose configurations do not fit together.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "common/system/file_descriptor.h"
#include "tests/e2e/e2e.h"
#include "tests/unit/required.h"

namespace tributary::e2e::starting_test {
namespace {

// A small cluster whose parts are started one by one.
class Parts {
 public:
  // peer_timeout_ms: after which who is silent is lost.
  explicit Parts(const TempDir& dir, int peer_timeout_ms = 4000)
      : dir_(dir),
        limits_("[limits]\nheartbeat_ms = 100\npeer_timeout_ms = " + std::to_string(peer_timeout_ms) + "\n"),
        coordinator_("ipc://" + (dir / "coordinator")) {}
  struct Part {
    Process process;
    std::string log;
    std::string said() const { return last_lines(log, 30); }
    bool says(const std::string& text) const {
      return eventually([&] { return contains(said(), text); });
    }
    // Returns the output of a part that exits by itself.
    std::string ended_with(int code) {
      const auto status = process.wait(kPatience);
      INFO(said());
      REQUIRE(status);
      CHECK(status->describe() == "exited with status " + std::to_string(code));
      return said();
    }
  };

  Part server(int index, int servers, const std::string& coordinator = {}) {
    const std::string id = "server-" + std::to_string(index);
    std::ofstream(dir_ / (id + ".toml")) << "[server]\nindex = " << index << "\nservers = " << servers
                                         << "\ncoordinator = \"" << (coordinator.empty() ? coordinator_ : coordinator)
                                         << "\"\nbind = \"ipc://" << (dir_ / id) << "\"\nlanes = 1\nadmin = \"\"\n"
                                         << limits_;
    return spawn(id, {bin("tributary-server"), "--config", dir_ / (id + ".toml")});
  }
  Part worker(const std::string& coordinator = {}) {
    std::ofstream(dir_ / "worker.toml") << "[worker]\ncoordinator = \""
                                        << (coordinator.empty() ? coordinator_ : coordinator) << "\"\nsocket = \""
                                        << socket() << "\"\nlanes = 1\nadmin = \"\"\n"
                                        << limits_;
    return spawn("worker", {bin("tributary-worker"), "--config", dir_ / "worker.toml"});
  }
  Part trainer(const std::string& job_file, const std::vector<std::string>& more = {}) {
    return spawn("trainer", job_command({bin("tributary-train"), "--worker", socket(), "--rank", "0", "--world-size",
                                         "1", "--local-rank", "0", "--local-world-size", "1", "--node-rank", "0"},
                                        job_file, {}, more));
  }
  const std::string& coordinator() const { return coordinator_; }
  std::string socket() const { return dir_ / "worker.sock"; }

 private:
  Part spawn(const std::string& name, std::vector<std::string> argv) {
    Part part;
    part.log = dir_ / (name + ".log");
    auto process = required(Process::spawn({.argv = std::move(argv), .log_file = part.log}));
    part.process = std::move(process);
    return part;
  }
  const TempDir& dir_;
  const std::string limits_;
  std::string coordinator_;
};

TEST_CASE("trainer, worker and servers may be started in any order: each says what it waits for") {
  const TempDir dir;
  Parts parts(dir);
  const std::string job_file = write_job(dir, {.name = "order", .rounds = 20});
  auto trainer = parts.trainer(job_file);
  CHECK(trainer.says("waiting for the worker daemon: no worker daemon listens on " + parts.socket()));
  auto worker = parts.worker();
  CHECK(worker.says("waiting for the coordinator at " + parts.coordinator()));
  CHECK(trainer.says("waiting for the coordinator's word, "));
  auto second = parts.server(1, 2);
  CHECK(second.says("waiting for the coordinator at " + parts.coordinator()));
  CHECK_FALSE(contains(worker.said(), "ready {"));
  CHECK_FALSE(contains(second.said(), "ready {"));
  auto first = parts.server(0, 2);
  for (const auto* part : {&first, &second, &worker}) CHECK(part->says("ready {"));
  CHECK(contains(trainer.ended_with(0), "digest"));
}

TEST_CASE("daemons and trainers that name no address meet in their user's run folder, which nobody else may enter") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "unnamed", .rounds = 20});
  ::setenv("XDG_RUNTIME_DIR", dir.path().c_str(), 1);
  std::ofstream(dir / "server.toml") << "[server]\nlanes = 1\nadmin = \"\"\n";
  std::ofstream(dir / "worker.toml") << "[worker]\nlanes = 1\nadmin = \"\"\n";
  const auto spawn = [&](const std::string& name, const std::vector<std::string>& argv) {
    return required(Process::spawn({.argv = argv, .log_file = dir / (name + ".log")}));
  };
  const mode_t before = ::umask(0);
  const Process server = spawn("server", {bin("tributary-server"), "--config", dir / "server.toml"});
  const Process worker = spawn("worker", {bin("tributary-worker"), "--config", dir / "worker.toml"});
  ::umask(before);
  Process trainer = spawn("trainer", job_command({bin("tributary-train"), "--rank", "0", "--world-size", "1",
                                                  "--local-rank", "0", "--local-world-size", "1", "--node-rank", "0"},
                                                 job_file, {}, {}));
  ::unsetenv("XDG_RUNTIME_DIR");
  const auto ended = trainer.wait(kPatience);
  INFO(last_lines(dir / "server.log", 10) << last_lines(dir / "worker.log", 10) << last_lines(dir / "trainer.log", 10));
  REQUIRE(ended);
  CHECK(ended->ok());
  namespace fs = std::filesystem;
  CHECK(fs::status(dir / "tributary").permissions() == fs::perms::owner_all);
  int sockets = 0;
  for (const auto& entry : fs::directory_iterator(dir / "tributary")) {
    sockets += entry.is_socket();
    CHECK_MESSAGE((entry.status().permissions() & (fs::perms::group_all | fs::perms::others_all)) == fs::perms::none,
                  entry.path().string());
  }
  CHECK(sockets == 3);  // the coordinator's, a lane's, the worker's
}

TEST_CASE("a trainer waits as long as it is told to") {
  const TempDir dir;
  Parts parts(dir);
  const std::string job_file = write_job(dir, {.name = "late", .rounds = 20});
  {
    auto trainer = parts.trainer(job_file, {"--attach-timeout", "1"});
    CHECK(contains(trainer.ended_with(1), "no worker daemon listens on " + parts.socket()));
  }
  auto worker = parts.worker();
  REQUIRE(worker.says("waiting for the coordinator"));
  ::setenv("TRIBUTARY_ATTACH_TIMEOUT", "2", 1);
  auto told = parts.trainer(job_file);
  CHECK(contains(told.ended_with(1), "job 'late' did not come together within 2000 ms"));
  ::setenv("TRIBUTARY_ATTACH_TIMEOUT", "soon", 1);
  CHECK(contains(parts.trainer(job_file).ended_with(2), "soon"));
  ::unsetenv("TRIBUTARY_ATTACH_TIMEOUT");
  CHECK(contains(parts.trainer(job_file, {"--attach-timeout", "0"}).ended_with(2), "--attach-timeout"));
}

TEST_CASE("a trainer that waits has an answer to the first signal, and stops cleanly") {
  const TempDir dir;
  Parts parts(dir, 60'000);
  const std::string job_file = write_job(dir, {.name = "answers", .rounds = 1'000'000});
  {
    auto trainer = parts.trainer(job_file);
    REQUIRE(trainer.says("waiting for the worker daemon: "));
    trainer.process.send_signal(SIGINT);
    CHECK(contains(trainer.ended_with(75),
                   "rank 0: stopped: told to stop while job 'answers' waited for the worker daemon"));
  }
  auto worker = parts.worker();
  {
    auto trainer = parts.trainer(job_file);
    REQUIRE(trainer.says("waiting for the coordinator's word, "));
    trainer.process.send_signal(SIGINT);
    CHECK(contains(trainer.ended_with(75), "told to stop while job 'answers' waited for the coordinator's word, "));
  }
  auto server = parts.server(0, 1);
  auto trainer = parts.trainer(job_file);
  REQUIRE(trainer.says("starting at round 0"));
  server.process.send_signal(SIGSTOP);  // an open round that does not end
  const std::string answer = "rank 0: SIGINT: stops when the parameters of round ";
  std::this_thread::sleep_for(milliseconds(500));
  trainer.process.send_signal(SIGINT);
  CHECK(trainer.says(answer));
  CHECK(trainer.process.running());
  SUBCASE("a second one ends it") {
    std::this_thread::sleep_for(milliseconds(1100));
    trainer.process.send_signal(SIGINT);
    const auto status = required(trainer.process.wait(kPatience));
    CHECK(status.signal == SIGINT);
    server.process.send_signal(SIGCONT);
  }
  SUBCASE("or the round does") {
    server.process.send_signal(SIGCONT);
    CHECK(contains(trainer.ended_with(75), "rank 0: stopped after round "));
  }
}

TEST_CASE("a service manager hears what a daemon waits for, that it serves, and that it stops") {
  const TempDir dir;
  const std::string path = dir / "notify.sock";
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  const auto told = [&] {
    char text[256] = {};
    const auto heard = [&] { return ::recv(socket.get(), text, sizeof text - 1, MSG_DONTWAIT) > 0; };
    return eventually(heard) ? std::string(text) : std::string();
  };
  ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  Parts parts(dir);
  auto second = parts.server(1, 2);
  CHECK(told() == "STATUS=waiting for the coordinator at " + parts.coordinator() + " (server 0)");
  auto first = parts.server(0, 2);
  ::unsetenv("NOTIFY_SOCKET");
  CHECK(told() == "READY=1\nSTATUS=serving");
  CHECK(told() == "READY=1\nSTATUS=serving");
  ::kill(second.process.pid(), SIGTERM);
  CHECK(told() == "STOPPING=1\nSTATUS=stopping jobs");
}

TEST_CASE("a server with another number of servers than the coordinator's ends with status 2 and both numbers") {
  const TempDir dir;
  Parts parts(dir);
  auto first = parts.server(0, 2);
  REQUIRE(first.says("ready {"));
  auto wrong = parts.server(1, 3);
  const std::string said = wrong.ended_with(2);
  CHECK(contains(said, "configured for a cluster of 3 servers, the coordinator for 2"));
  CHECK_FALSE(contains(said, "ready {"));
  CHECK(first.process.running());
}

TEST_CASE(
    "a lane's address given as the coordinator's ends servers and workers with status 2, and is told as what it is") {
  const TempDir dir;
  Parts parts(dir);
  auto first = parts.server(0, 1);
  REQUIRE(first.says("ready {"));
  const std::string said = first.said();
  const auto begin = said.find("ready {") + 6;
  const auto ready = nlohmann::json::parse(said.substr(begin, said.find('\n', begin) - begin));
  const std::string lane = ready.at("lanes").at(0);
  const std::string reason = " coordinator = \"" + lane + "\" is the address of a server's lane";
  auto server = parts.server(1, 2, lane);
  CHECK(contains(server.ended_with(2), "[server]" + reason));
  auto worker = parts.worker(lane);
  CHECK(contains(worker.ended_with(2), "[worker]" + reason));
}

}  // namespace
}  // namespace tributary::e2e::starting_test
