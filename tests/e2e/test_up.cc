// The tool as a user calls it.
#include <signal.h>

#include <cstdlib>
#include <set>
#include <sstream>

#include "tests/e2e/tool_call.h"

namespace tributary::e2e::up_test {
namespace {

std::vector<std::string> up(const TempDir& dir, const std::string& job_file) {
  return {"up", job_file, "--servers", "2", "--nodes", "2", "--ranks-per-node", "2", "--base-dir", dir / "run"};
}

TEST_CASE("up --json prints one object with the results and nothing else on standard output") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "json"});
  Call call(dir, with(up(dir, job_file), {"--json"}));
  REQUIRE(call.wait() == 0);
  const auto json = nlohmann::json::parse(call.out());
  CHECK(json.at("digest") == standalone_digest(dir, job_file, 4));
  CHECK(json.at("rounds") == 40);
  CHECK(json.at("test_accuracy").get<double>() > 0.5);
  CHECK(json.at("samples_per_s").get<double>() > 0.0);
  CHECK(json.at("step_split").at("compute_ms").get<double>() > 0.0);
  CHECK(json.at("nodes").size() == 2);
  CHECK(json.at("nodes").at(1).at("bytes_pushed").get<std::uint64_t>() > 0);
  CHECK(json.at("nodes").at(1).at("bytes_pulled").get<std::uint64_t>() > 0);
  CHECK(json.at("servers").size() == 2);
  CHECK(json.at("stopped") == false);
  CHECK(json.at("completed") == true);
  CHECK(json.at("resumed_from") == 0);
  CHECK(contains(call.error(), "coordinator"));  // what runs where
  CHECK(contains(call.error(), "logs"));
}

TEST_CASE(
    "Ctrl-C stops cleanly, the same command goes on, ends in the same bits, and then says that the job is complete") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "ctrlc", .chunk_bytes = 8192, .rounds = 3500});
  const std::string reference = standalone_digest(dir, job_file, 4);
  {
    Call call(dir, up(dir, job_file));
    const auto pids = daemons_of(dir);
    REQUIRE(eventually([&] { return round_of(dir) >= 50; }));
    call.process().send_signal(SIGINT);
    CHECK(call.wait() == 75);  // run again
    CHECK(contains(call.out(), "stopped after round"));
    CHECK(contains(call.out(), "was told to stop"));
    CHECK(contains(call.out(), "the same command goes on from there"));
    CHECK(all_gone(pids));
  }
  {
    const auto json = report_of(dir, with(up(dir, job_file), {"--json"}));
    CHECK(json.at("resumed_from").get<std::uint64_t>() >= 50);
    CHECK(json.at("digest") == reference);
  }
  {
    Call call(dir, up(dir, job_file));
    REQUIRE(call.wait() == 0);
    CHECK(contains(call.out(), "already complete"));
    CHECK(contains(call.out(), "--fresh"));
    CHECK(contains(call.out(), reference));
  }
  // Fresh: from the first round again, and what is not of the run stays.
  std::ofstream(dir / "run/mine.txt") << "mine";
  const auto json = report_of(dir, with(up(dir, job_file), {"--json", "--fresh", "--set", "train.max_rounds=30"}));
  CHECK(json.at("resumed_from") == 0);
  CHECK(json.at("rounds") == 30);
  CHECK(contents(dir / "run/mine.txt") == "mine");
}

TEST_CASE("a daemon that dies is reported with the last lines of its log, and nothing is left running") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "dies", .rounds = 1'000'000});
  Call call(dir, up(dir, job_file));
  const auto pids = daemons_of(dir);
  REQUIRE(eventually([&] { return round_of(dir) >= 5; }));
  ::kill(pids[1], SIGKILL);
  CHECK(call.wait() == 1);
  CHECK(contains(call.error(), "server 1"));
  CHECK(contains(call.error(), "killed by signal 9"));
  CHECK(contains(call.error(), "logs/server-1.log"));
  CHECK(contains(call.error(), "ready {"));  // a line of the log
  CHECK(all_gone(pids));
  CHECK_FALSE(std::filesystem::exists(dir / "run/cluster.json"));
}

TEST_CASE(
    "when the tool itself is killed its daemons stop, and the next start in the same folder waits for that and "
    "resumes") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "orphans", .chunk_bytes = 8192, .rounds = 3500});
  const std::string reference = standalone_digest(dir, job_file, 4);
  std::vector<pid_t> pids;
  {
    Call call(dir, up(dir, job_file));
    pids = daemons_of(dir);
    REQUIRE(eventually([&] { return round_of(dir) >= 50; }));
    call.process().terminate(milliseconds(0));
  }
  std::filesystem::remove(dir / "run/cluster.json");
  Call call(dir, with(up(dir, job_file), {"--json"}));
  REQUIRE(call.wait() == 0);
  CHECK(all_gone(pids));
  const auto json = nlohmann::json::parse(call.out());
  CHECK(json.at("digest") == reference);
  std::ifstream log(dir / "run/logs/server-0.log");
  INFO("server 0's log: ", std::string(std::istreambuf_iterator<char>(log), {}));  // shown if it did not keep its round
  CHECK(json.at("resumed_from").get<std::uint64_t>() > 0);
}

TEST_CASE(
    "up with other settings, or fewer servers, than those of the kept run is refused with what to do, and keeps the "
    "run") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "kept", .chunk_bytes = 8192, .rounds = 3500});
  {
    Call call(dir, up(dir, job_file));
    const auto pids = daemons_of(dir);
    REQUIRE(eventually([&] { return round_of(dir) >= 50; }));
    call.process().send_signal(SIGINT);
    call.wait();
    CHECK(all_gone(pids));
  }
  const auto refused = [&](const std::vector<std::string>& arguments) {
    Call call(dir, arguments);
    CHECK(call.wait() != 0);
    CHECK_FALSE(contains(call.error(), "the same command goes on"));
    CHECK(contains(call.error(), "what was kept is as it was"));
    for (const char* cure : {"--fresh", "--base-dir", "job.name"}) {
      CAPTURE(cure);
      CHECK_MESSAGE(contains(call.error(), cure), call.error());
    }
    return call.error();
  };
  CHECK(contains(refused(with(up(dir, job_file), {"--set", "optimizer.lr=0.1"})), "optimizer.lr"));
  std::vector<std::string> fewer = up(dir, job_file);
  *(std::ranges::find(fewer, "--servers") + 1) = "1";
  CHECK(contains(refused(fewer), "tributary checkpoint save"));
  Call call(dir, with(up(dir, job_file), {"--json"}));
  REQUIRE(call.wait() == 0);
  CHECK(nlohmann::json::parse(call.out()).at("resumed_from").get<std::uint64_t>() >= 50);
}

TEST_CASE("status prints jobs, servers and workers of a running cluster, and says when there is none") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "status", .rounds = 1'000'000});
  {
    Call call(dir, up(dir, job_file));
    daemons_of(dir);
    REQUIRE(eventually([&] { return round_of(dir) >= 5; }));
    const TempDir other;
    Call table(other, {"status", "--base-dir", dir / "run"});
    CHECK(table.wait() == 0);
    CHECK(contains(table.out(), "JOB"));
    CHECK(contains(table.out(), "status"));
    CHECK(contains(table.out(), "running"));
    CHECK(contains(table.out(), "0 of 2"));
    CHECK(contains(table.out(), "1 of 2"));
    CHECK(contains(table.out(), "node-1"));
    const TempDir third;
    Call json(third, {"status", "--base-dir", dir / "run", "--json"});
    CHECK(json.wait() == 0);
    const auto daemons = nlohmann::json::parse(json.out()).at("daemons");
    REQUIRE(daemons.size() == 4);
    CHECK(daemons.at(0).at("status").at("kind") == "server");
    CHECK(daemons.at(3).at("status").at("kind") == "worker");
    const TempDir fourth;
    Call top(fourth, {"top", "--base-dir", dir / "run", "--times", "2"});
    CHECK(top.wait() == 0);
    // Two looks: only the second one knows how many rounds there are in a second.
    const std::string looks = top.out();
    const auto rate_after = [&](std::size_t from) {
      const std::size_t row = looks.find("\nstatus", looks.find("ROUNDS/S", from));
      REQUIRE(row != std::string::npos);
      std::istringstream cells(looks.substr(row, looks.find('\n', row + 1) - row));
      std::string name, phase, view, of, joined, nodes, ranks, round, rate;
      cells >> name >> phase >> view >> joined >> of >> nodes >> ranks >> round >> rate;
      return std::pair(rate, row);
    };
    const auto [first, row] = rate_after(0);
    CHECK(first == "-");
    CHECK(std::atof(rate_after(row).first.c_str()) > 0.0);
    CHECK_FALSE(contains(looks, "\033"));  // no terminal
    call.process().send_signal(SIGTERM);
    CHECK(call.wait() == 75);
  }
  const TempDir other;
  Call none(other, {"status", "--base-dir", dir / "run"});
  CHECK(none.wait() == 1);
  CHECK(contains(none.error(), "no cluster is running in"));
  Call nobody(other, {"status", "--admin", "127.0.0.1:1"});
  CHECK(nobody.wait() == 1);
  CHECK(contains(nobody.error(), "127.0.0.1:1"));
  CHECK(contains(usage_error(other, {"top"}), "whom to ask?"));
}

TEST_CASE("wrong usage is status 2 everywhere, and a mistyped command is told the one that is meant") {
  const TempDir dir;
  const auto usage = [&](const std::vector<std::string>& arguments) { return usage_error(dir, arguments); };
  CHECK(contains(usage({"stauts"}), "did you mean 'tributary status'?"));
  CHECK(contains(usage({"bench", "pushpul"}), "did you mean 'tributary bench pushpull'?"));
  CHECK(contains(usage({"down", "--help"}), "did you mean 'tributary lab down'?"));
  CHECK(contains(usage({"nothing-like-it"}),
                 "'tributary nothing-like-it' is no command; 'tributary --help' lists them all"));
  CHECK(contains(usage({}), "subcommand is required"));
  CHECK(contains(usage({"up"}), "job is required"));
  CHECK(contains(usage({"up", "a.toml", "--no-such-option"}), "--no-such-option"));
  CHECK(contains(usage({"up", "a.toml", "--transport", "pigeon"}), "pigeon"));
  CHECK(contains(usage({"up", dir / "missing.toml"}), "missing.toml"));
  Call help(dir, {"up", "--help"});
  CHECK(help.wait() == 0);
  CHECK(contains(help.out(), "75"));
}

TEST_CASE("up returns what its trainers said") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "no-data"});
  const std::string missing = dir / "nowhere";
  Call call(dir, with(up(dir, job_file), {"--set", "train.data_dir=\"" + missing + "\""}));
  CHECK(call.wait() == 2);
  CHECK(contains(call.error(), missing));
}

TEST_CASE("bench pushpull measures, beside a ceiling, and checks that all nodes have the same parameters") {
  for (const std::string transport : {"tcp", "ipc"}) {
    const TempDir dir;
    const auto json = report_of(dir, {"bench", "pushpull", "--servers", "2", "--nodes", "2", "--ranks-per-node", "2",
                                      "--model-bytes", "8MiB", "--transport", transport, "--seconds", "0.5", "--json"});
    for (const char* field : {"gb_per_s_each_way", "cpu_seconds_per_gb", "ceiling_gb_per_s", "ratio_to_ceiling",
                              "rounds_per_s", "chunk_bytes", "lanes"}) {
      CAPTURE(field);
      CHECK(json.at(field).get<double>() > 0.0);
    }
    CHECK(json.at("window").at("bytes").get<double>() >= json.at("chunk_bytes").get<double>());
    CHECK(json.at("memory").at("formula_bytes").at(0).get<double>() > 8.0 * 1024 * 1024);
    CHECK(json.at("digest").get<std::string>().size() == 32);
  }
}

TEST_CASE("bench pushpull --durability measures what is kept, and refuses where nothing would be") {
  const auto durability = [](const std::string& redo_mb) {
    return std::vector<std::string>{"bench", "pushpull",    "--durability", "--servers", "2", "--model-bytes",
                                    "4MiB",  "--transport", "shm",          "--seconds", "4", "--slices",
                                    "2",     "--redo-mb",   redo_mb,        "--json"};
  };
  {
    const TempDir dir;
    Call call(dir, durability("32"));  // 8 rounds
    CHECK(call.wait() == 1);
    CHECK(contains(call.error(), "fewer than 16 rounds fit --redo-mb 32; give --redo-mb 64, or --model-bytes 2097152"));
  }
  const TempDir dir;
  const auto json = report_of(dir, durability("64"));
  CHECK(json.at("off").at("kept_rounds") == 0);
  CHECK(json.at("redo").at("kept_rounds") == 16);
  CHECK(json.at("redo").at("newest_snapshot") > 0);
  CHECK(json.at("redo").at("copied_bytes") == 0);
  CHECK(json.at("copies").at("snapshots") > 0);
  CHECK(json.at("copies").at("copied_bytes") >= json.at("copies").at("snapshot_bytes"));
}

}  // namespace
}  // namespace tributary::e2e::up_test
