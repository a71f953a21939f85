// `tributary trace` on real daemons: the file, its sums next to status's, and jobs that cannot be traced.
#include <cmath>
#include <map>
#include <set>

#include "tests/e2e/e2e.h"
#include "tests/unit/required.h"

namespace tributary::e2e::trace_test {
namespace {

constexpr const char* kTool = "tributary";

Outcome traced(const TempDir& dir, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {bin(kTool), "trace", "--base-dir", dir / "run"});
  return run(arguments);
}

nlohmann::json read_json(const std::string& path) {
  std::ifstream in(path);
  const auto json = nlohmann::json::parse(in, nullptr, false);
  REQUIRE(json.is_object());
  return json;
}

}  // namespace

TEST_CASE("a trace of a running job has every rank, lane and chunk, agrees with status, and changes no bit") {
  const TempDir dir;
  const std::string job = write_job(dir, {.chunk_bytes = 4096, .rounds = 1'000'000});
  const auto cluster = start(two_by_two(dir), job);
  wait_for(*cluster, "max_version", 20);
  const Outcome wrong = traced(dir, {"other", "--out", dir / "no.json"});
  CHECK(wrong.status == 1);
  CHECK(contains(wrong.text, "nobody in the cluster has a job 'other'"));
  const Outcome many = traced(dir, {"e2e", "--rounds", "300", "--out", dir / "no.json"});
  CHECK(many.status == 1);
  CHECK(contains(many.text, "a trace can have 1 to"));
  CHECK_FALSE(std::filesystem::exists(dir / "no.json"));

  const std::string path = dir / "trace.json";
  Outcome said;
  // On a busy machine the order may reach a lane after the first round; the tool says so.
  CHECK(eventually([&] {
    said = traced(dir, {"e2e", "--rounds", "20", "--out", path});
    return said.status == 0 && !contains(said.text, "rounds are whole");
  }));
  INFO(said.text);
  CHECK(contains(said.text, "binds this job"));
  const auto json = read_json(path);
  const auto& about = json.at("otherData");
  CHECK(about.at("lost_events") == 0);
  CHECK(about.at("short_because") == "");
  const auto& sums = about.at("sums");
  CHECK(sums.at("whole_rounds") == 20);
  REQUIRE(sums.at("largest_difference_to_status").is_number());
  CHECK(sums.at("largest_difference_to_status").get<double>() <= 0.02);
  REQUIRE(sums.at("nodes").size() == 2);
  for (const auto& node : sums.at("nodes")) CHECK(node.at("status").at("compute_ms").get<double>() > 0.0);

  const nlohmann::json of_job = status_of(cluster->coordinator_daemon()).at("coordinator").at("jobs").at(0);
  const std::size_t chunks = of_job.at("chunks");
  std::set<std::string> processes;
  std::map<std::uint64_t, std::string> flows;
  std::set<std::pair<int, int>> threads;
  for (const auto& e : json.at("traceEvents")) {
    const std::string phase = e.at("ph");
    if (phase == "M" && e.at("name") == "process_name") processes.insert(e.at("args").at("name"));
    if (phase == "X") threads.emplace(e.at("pid"), e.at("tid"));
    if (phase == "s" || phase == "t" || phase == "f") flows[e.at("id")] += phase;
  }
  for (const char* process : {"server 0", "server 1", "worker of node 0", "worker of node 1", "rank 0 (node 0)",
                              "rank 1 (node 0)", "rank 2 (node 1)", "rank 3 (node 1)"}) {
    CHECK_MESSAGE(processes.contains(process), process);
  }
  std::size_t lanes = 4;  // trainers'
  for (const Daemon& server : cluster->servers()) lanes += status_of(server).at("lanes").size();
  for (const Daemon& worker : cluster->workers()) lanes += status_of(worker).at("lanes").get<std::size_t>();
  CHECK(threads.size() == lanes);
  CHECK(flows.size() == 2 * 20 * chunks);
  for (const auto& [id, phases] : flows) CHECK(phases == "sttttf");

  cluster->stop();
  const std::string short_job = write_job(dir, {.name = "short", .chunk_bytes = 4096, .rounds = 400});
  const std::string reference = standalone_digest(dir, short_job, 4);
  const auto again = start(two_by_two(dir), short_job);
  wait_for(*again, "max_version", 5);
  const Outcome later = traced(dir, {"short", "--rounds", "10", "--out", path});
  CHECK_MESSAGE(later.status <= 1, later.text);  // a quick machine may have ended the job by then
  CHECK(finished(*again)[0].at("digest") == reference);
  const Outcome over = traced(dir, {"short", "--out", dir / "no.json"});
  CHECK(over.status != 0);
  CHECK(contains(over.text, "does not run"));
  CHECK(again->stop().empty());
}

TEST_CASE("a job that ends while it is traced: what came is written, with a word why it is short") {
  const TempDir dir;
  const std::string job = write_job(dir, {.chunk_bytes = 4096, .rounds = 1'000'000});
  const auto cluster = start(two_by_two(dir), job);
  wait_for(*cluster, "max_version", 20);
  const std::string log = dir / "long.log";
  auto tracing = required(Process::spawn(
      {.argv = {bin(kTool), "trace", "e2e", "--base-dir", dir / "run", "--rounds", "256", "--out", dir / "long.json"},
       .log_file = log,
       .environment = {}}));
  REQUIRE(eventually([&] { return contains(last_lines(log, 5), "are recorded"); }));
  // There is one at a time. (On a quick machine it may be over by now.)
  const Outcome second = traced(dir, {"e2e", "--rounds", "5", "--out", dir / "no.json"});
  CHECK((second.status == 0 || contains(second.text, "is being recorded")));
  for (Daemon& worker : cluster->workers()) worker.process.send_signal(SIGTERM);
  required(tracing.wait(kPatience));
  INFO(last_lines(log, 20));
  const auto json = read_json(dir / "long.json");
  const auto& about = json.at("otherData");
  const bool whole = about.at("sums").at("whole_rounds") == 256;
  CHECK(whole == about.at("short_because").get<std::string>().empty());
  cluster->stop();
}

}  // namespace tributary::e2e::trace_test
