// `tributary run` with tributary-train as anybody's trainer.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "tests/e2e/tool_call.h"

namespace tributary::e2e::run_test {
namespace {

std::vector<std::string> run(const TempDir& dir, std::vector<std::string> options, std::vector<std::string> command) {
  std::vector<std::string> all = {"run", "--base-dir", dir / "run"};
  all.insert(all.end(), options.begin(), options.end());
  all.push_back("--");
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

std::vector<std::string> two_by_two_options() {
  return {"--servers", "2", "--nodes", "2", "--ranks-per-node", "2"};
}

std::vector<std::string> train(const std::string& job_file) {
  return {bin("tributary-train"), "--job", job_file, "--json", "--quiet"};
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t times = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

// The process that is attached as a rank of a node.
pid_t trainer_of(const TempDir& dir, int node, std::size_t local_rank) {
  pid_t pid = 0;
  REQUIRE(eventually([&] {
    const auto cluster = nlohmann::json::parse(contents(dir / "run/cluster.json"), nullptr, false);
    if (!cluster.is_object()) return false;
    const auto body = http_get(cluster.at("workers").at(node).at("admin"), "/status", milliseconds(2000));
    if (!body) return false;
    const auto jobs = nlohmann::json::parse(*body).at("jobs");
    if (jobs.empty() || jobs.at(0).at("ranks_attached").size() <= local_rank) return false;
    pid = jobs.at(0).at("ranks_attached").at(local_rank).at("pid");
    return true;
  }));
  return pid;
}

TEST_CASE("run trains with a command of one's own to the bits of up, and passes on what rank 0 prints") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "run"});
  const std::string reference = standalone_digest(dir, job_file, 4);
  {
    Call call(dir, run(dir, with(two_by_two_options(), {"--json", "--log-level", "debug"}), train(job_file)));
    REQUIRE(call.wait() == 0);
    CHECK(contains(contents(dir / "run/server-1.toml"), "level = \"debug\""));
    const auto json = nlohmann::json::parse(call.out());
    CHECK(json.at("digest") == reference);
    CHECK(json.at("result").at("rank") == 0);
    CHECK(json.at("rounds") == 40);
    CHECK(json.at("completed") == true);
    CHECK(json.at("stopped") == false);
    CHECK(json.at("restarts") == 0);
    const auto result = json.at("result");
    CHECK(json.at("nodes").size() == 2);
    CHECK(json.at("nodes").at(0).at("bytes_pushed") == result.at("bytes_pushed"));
    CHECK(json.at("nodes").at(0).at("bytes_pulled") == result.at("bytes_pulled"));
    CHECK(json.at("servers").size() == 2);
    CHECK(json.at("servers").at(0).at("max_owned_bytes") > 0);
    CHECK(count(call.error(), "{\"job\"") == 1);  // rank 0's line and no other's
    CHECK(contains(contents(dir / "run/logs/trainer-3.log"), "{\"job\""));
  }
  Call again(dir, run(dir, two_by_two_options(), train(job_file)));
  REQUIRE(again.wait() == 0);
  CHECK(contains(again.out(), "rounds       40, in"));
  CHECK(contains(again.out(), "digest       " + reference));
}

TEST_CASE("run without servers trains an all-reduce job") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "ring", .mode = "allreduce"});
  const auto json = report_of(dir, run(dir, {"--servers", "0", "--nodes", "2", "--json"}, train(job_file)));
  CHECK(json.at("digest") == standalone_digest(dir, job_file, 2));
  CHECK(json.at("rounds") == 40);
  CHECK(json.at("servers").empty());
}

TEST_CASE("a trainer is told who and where it is, as torchrun tells it, and where its peers meet") {
  const TempDir dir;
  Call call(dir, run(dir, {"--nodes", "2", "--ranks-per-node", "2"},
                     {"/bin/sh", "-c",
                      "env | sort; [ $RANK = 0 ] || env > " + (dir / "env-") + "$RANK; echo to-the-log >&2"}));
  REQUIRE(call.wait() == 0);
  for (const char* line :
       {"RANK=0", "WORLD_SIZE=4", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=0", "GROUP_WORLD_SIZE=2"}) {
    CHECK_MESSAGE(contains(call.out(), std::string("\n") + line + "\n"), call.out());
    CHECK_MESSAGE(contains(call.out(), std::string("\nTRIBUTARY_") + line + "\n"), call.out());
  }
  for (const char* line :
       {"TRIBUTARY_SOCKET=/", "TRIBUTARY_PROGRESS=/", "OMP_NUM_THREADS=", "MASTER_ADDR=127.0.0.1\n", "MASTER_PORT="}) {
    CHECK_MESSAGE(contains(call.out(), line), call.out());
  }
  const std::string last = contents(dir / "env-3");
  for (const char* line : {"RANK=3\n", "LOCAL_RANK=1\n", "GROUP_RANK=1\n"}) {
    CHECK(contains(last, std::string("\n") + line));
    CHECK(contains(last, std::string("\nTRIBUTARY_") + line));
  }
  CHECK_FALSE(contains(call.out(), "\nto-the-log\n"));  // the heading shows the command
  CHECK(contains(contents(dir / "run/logs/trainer-0.log"), "to-the-log"));
  CHECK(contains(call.out(), "no trainer attached"));
}

TEST_CASE("trainers, a worker and servers that are killed are started again, and the bits are the same") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "kills", .chunk_bytes = 8192, .rounds = 2500});
  const std::string reference = standalone_digest(dir, job_file, 4);
  // Below a shell, which must not leave a rank behind, and says of a signal that it was a status.
  std::vector<std::string> command = {"/bin/sh", "-c", "\"$0\" \"$@\"; exit $?"};
  for (const std::string& word : with(train(job_file), {"--slow-us-per-sample", "100"})) command.push_back(word);
  Call call(dir, run(dir, with(two_by_two_options(), {"--json"}), command));
  const auto moved = [&] {
    const std::uint64_t at = round_of(dir);
    REQUIRE(eventually([&] { return round_of(dir) >= at + 20; }));
  };
  const auto daemons = daemons_of(dir);
  moved();
  ::kill(trainer_of(dir, 1, 1), SIGKILL);
  moved();
  const pid_t shell = [&] {  // rank 0's parent
    std::ifstream stat("/proc/" + std::to_string(trainer_of(dir, 0, 0)) + "/stat");
    std::string pid, name, state, parent;
    stat >> pid >> name >> state >> parent;
    return static_cast<pid_t>(std::stol(parent));
  }();
  REQUIRE(shell > 1);
  ::kill(shell, SIGKILL);
  moved();
  ::kill(daemons[2], SIGKILL);  // worker 0
  moved();
  ::kill(daemons[0], SIGKILL);  // server 0
  ::kill(daemons[1], SIGKILL);
  ::kill(daemons[3], SIGKILL);
  REQUIRE(call.wait() == 0);
  const auto json = nlohmann::json::parse(call.out());
  CHECK(json.at("digest") == reference);
  CHECK(json.at("rounds") == 2500);
  CHECK(json.at("restarts") >= 6);
  CHECK(contains(call.error(), "server 1 was killed by signal 9 (Killed); it is started again"));
  CHECK(contains(call.error(), "trainer of rank 3 exited with status 137; it is started again"));
}

TEST_CASE("Ctrl-C stops run at a round, and the same command goes on to the same bits") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "ctrlc", .chunk_bytes = 8192, .rounds = 3000});
  const std::string reference = standalone_digest(dir, job_file, 4);
  const auto arguments = run(dir, two_by_two_options(), train(job_file));
  {
    Call call(dir, arguments);
    const auto pids = daemons_of(dir);
    REQUIRE(eventually([&] { return round_of(dir) >= 50; }));
    const TempDir other;
    Call status(other, {"status", "--base-dir", dir / "run"});
    CHECK(status.wait() == 0);
    CHECK(contains(status.out(), "ctrlc"));
    call.process().send_signal(SIGINT);
    CHECK(call.wait() == 75);
    CHECK(contains(call.out(), "stopped after round"));
    CHECK(contains(call.out(), "the same command goes on from there"));
    CHECK(all_gone(pids));
    CHECK_FALSE(std::filesystem::exists(dir / "run/cluster.json"));
  }
  Call call(dir, arguments);
  REQUIRE(call.wait() == 0);
  CHECK(contains(call.out(), "digest       " + reference));
  CHECK_FALSE(contains(call.out(), "\"resumed_from\":0,"));
}

TEST_CASE("trainers are told how long they may attach") {
  const TempDir dir;
  Call call(dir, run(dir, {"--attach-timeout", "77"}, {"/bin/sh", "-c", "echo may take $TRIBUTARY_ATTACH_TIMEOUT s"}));
  CHECK(call.wait() == 0);
  CHECK(contains(call.out(), "may take 77 s"));
}

TEST_CASE("Ctrl-C before any trainer has attached ends all at once") {
  const TempDir dir;
  Call call(dir, run(dir, {}, {"/bin/sh", "-c", "echo $$; sleep 1000; echo not reached"}));
  const auto pids = daemons_of(dir);
  REQUIRE(eventually([&] { return contains(call.out(), "logs "); }));
  call.process().send_signal(SIGTERM);
  CHECK(call.wait() == 75);
  CHECK(contains(call.out(), "stopped before training began"));
  CHECK(all_gone(pids));
}

TEST_CASE("a command that fails before any round is shown once, with the end of its log, and nothing is left running") {
  const TempDir dir;
  const std::string starts = dir / "starts";
  Call call(dir, run(dir, two_by_two_options(),
                     {"/bin/sh", "-c", "echo start >> " + starts + "; echo 'NameError: lossfn' >&2; exit 1"}));
  const auto pids = daemons_of(dir);
  CHECK(call.wait() == 1);
  CHECK(count(call.error(), "NameError: lossfn") == 1);
  CHECK(count(call.error(), "exited with status 1; the last lines of") == 1);
  CHECK(contains(call.error(), "no round was complete since this run began"));
  CHECK(count(contents(starts), "start") <= 4);
  CHECK(all_gone(pids));
  const TempDir other;
  Call usage(other, run(other, {}, train(other / "missing.toml")));
  CHECK(usage.wait() == 2);
  CHECK(contains(usage.error(), "missing.toml"));
}

TEST_CASE("--restarts bounds how often, and ranks that were done come back with one that was not") {
  const TempDir dir;
  const std::string starts = dir / "starts-";
  // Rank 1 is killed when rank 0 is done, however slow the machine is.
  const std::string script = "echo x >> " + starts + "$TRIBUTARY_RANK; [ $TRIBUTARY_RANK = 0 ] && exit 0; " +
                             "until [ $(cat " + starts + "0 | wc -l) -ge $(wc -l < " + starts +
                             "1) ]; do sleep 0.05; done; sleep 0.3; " + "[ $(wc -l < " + starts +
                             "1) -gt $1 ] || kill -9 $$";
  {
    Call call(dir, run(dir, {"--ranks-per-node", "2", "--restarts", "2"}, {"/bin/sh", "-c", script, "sh", "2"}));
    CHECK(call.wait() == 0);
    CHECK(count(contents(starts + "0"), "x") == 3);
    CHECK(count(contents(starts + "1"), "x") == 3);
  }
  Call call(dir, run(dir, {"--ranks-per-node", "2", "--restarts", "2"}, {"/bin/sh", "-c", script, "sh", "1000"}));
  CHECK(call.wait() == 1);
  CHECK(contains(call.error(), "was killed by signal 9"));
  CHECK(contains(call.error(), "started again 2 times within 10 rounds (--restarts)"));
}

TEST_CASE("ranks that fail because another was killed are started again with it, and meet at another port") {
  const TempDir dir;
  const std::string starts = dir / "starts-";
  // Rank 0 is looked at before rank 1, which was killed. Nobody has trained a round.
  const std::string script = "echo $MASTER_PORT >> " + starts + "$RANK; until [ -s " + starts + "0 ] && [ -s " +
                             starts + "1 ]; do sleep 0.05; done; [ $(wc -l < " + starts +
                             "$RANK) -gt 1 ] && exit 0; [ $RANK = 0 ] && exit 1; kill -9 $$";
  Call call(dir, run(dir, {"--ranks-per-node", "2"}, {"/bin/sh", "-c", script}));
  CHECK_MESSAGE(call.wait() == 0, call.error());
  const std::string ports = contents(starts + "0");
  CHECK(ports == contents(starts + "1"));
  const std::size_t line = ports.find('\n');
  CHECK(ports.substr(0, line) != ports.substr(line + 1, ports.size() - line - 2));
}

TEST_CASE("ranks that end with status 0 without having finished their job are no success") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "left", .rounds = 100'000});
  std::vector<std::string> command = train(job_file);
  const std::vector<std::string> hides = {"/bin/sh", "-c", "\"$@\" & wait $!; exit 0", "sh"};
  command.insert(command.begin(), hides.begin(), hides.end());
  Call call(dir, run(dir, {}, command));
  const pid_t trainer = trainer_of(dir, 0, 0);
  REQUIRE(eventually([&] { return round_of(dir) >= 5; }));
  ::kill(trainer, SIGKILL);
  CHECK(call.wait() == 1);
  CHECK(contains(call.error(), "all ranks ended with status 0, but job 'left' did not finish: node 0 failed: "));
}

TEST_CASE("rounds are shown of trainers that know neither how many there will be nor an accuracy") {
  const TempDir dir;
  const std::string go = dir / "go";
  Call call(dir, run(dir, {}, {"/bin/sh", "-c", "until [ -e " + go + " ]; do sleep 0.02; done"}));
  daemons_of(dir);
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  REQUIRE(fd >= 0);
  sockaddr_un to{.sun_family = AF_UNIX, .sun_path = {}};
  const std::string path = dir / "run/sockets/progress.sock";
  REQUIRE(path.size() < sizeof to.sun_path);
  std::memcpy(to.sun_path, path.c_str(), path.size());
  // A test is shown at once.
  const std::string told = R"({"rank":0,"round":7,"samples":8,"loss_sum":4.0,"test_accuracy":0.25})";
  CHECK(eventually(
      [&] { return ::sendto(fd, told.data(), told.size(), 0, reinterpret_cast<sockaddr*>(&to), sizeof to) > 0; }));
  ::close(fd);
  CHECK(eventually([&] { return contains(call.out(), "round 7  loss 0.5000  "); }));
  CHECK(contains(call.out(), "samples/s  test accuracy 0.2500\n"));
  std::ofstream(go) << "go";
  CHECK(call.wait() == 0);
}

TEST_CASE("wrong usage of run is status 2 and says what is right") {
  const TempDir dir;
  const auto usage = [&](const std::vector<std::string>& arguments) { return usage_error(dir, arguments); };
  CHECK(contains(usage({"run"}), "tributary run -- python train.py"));
  CHECK(contains(usage({"run", "--nodes", "2", "--"}), "no command is given"));
  CHECK(contains(usage({"run", "--no-such-option", "--", "true"}), "unknown option --no-such-option"));
  CHECK(contains(usage({"run", "--transport", "pigeon", "--", "true"}), "pigeon"));
  CHECK(contains(usage(run(dir, {"--nodes", "0"}, {"true"})), "nodes = 0"));
  CHECK(contains(usage(run(dir, {}, {"no-such-program-here"})), "there is no program 'no-such-program-here'"));
  CHECK(contains(usage(run(dir, {}, {dir / "no.sh", "x"})), "no.sh"));
  CHECK_FALSE(std::filesystem::exists(dir / "run/cluster.json"));
  // Without -- the command begins with the first word that is no option's.
  Call call(dir, {"run", "--base-dir", dir / "run", "echo", "--nodes", "-x"});
  CHECK(call.wait() == 0);
  CHECK(contains(call.out(), "\n--nodes -x\n"));
}

}  // namespace
}  // namespace tributary::e2e::run_test
