// `tributary plan` as a user calls it. Its arithmetic is tested in test_plan and test_cost_model.

#include "tests/e2e/tool_call.h"

namespace tributary::e2e::plan_tool_test {
namespace {

struct Plan {
  int code = 0;
  std::string out, error;
};

Plan plan(const TempDir& dir, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "plan");
  Call call(dir, arguments);
  return {.code = call.wait(), .out = call.out(), .error = call.error()};
}

const std::vector<std::string> kLab = {"--nodes", "4", "--bandwidth", "250Mbit/s", "--payload", "16MB"};

std::vector<std::string> lab(std::initializer_list<std::string> more) {
  std::vector<std::string> arguments = kLab;
  arguments.insert(arguments.end(), more);
  return arguments;
}

TEST_CASE("a plan names the layout to use, as text and as JSON") {
  TempDir dir;
  const Plan text = plan(dir, lab({"--servers", "2", "--compute-ms", "200"}));
  CHECK(text.code == 0);
  CHECK(contains(text.out, "Use servers on both"));
  const Plan json = plan(dir, lab({"--servers", "2", "--push", "int8", "--pull", "int8-delta", "--json"}));
  CHECK(nlohmann::json::parse(json.out).at("best") == "mixed");
}

TEST_CASE("bad input of plan is refused, naming the option, the value and the cure") {
  TempDir dir;
  struct Case {
    std::vector<std::string> arguments;
    std::vector<std::string> parts;
  };
  const Case cases[] = {
      {{"--payload", "16MB"}, {"--bandwidth", "--measure"}},
      {{"--bandwidth", "1Gbit/s"}, {"--payload", "--parameters"}},
      {{"--bandwidth", "250", "--payload", "1MB"}, {"--bandwidth", "'250'", "250Mbit/s"}},
      {{"--bandwidth", "1Gbit/s", "--payload", "16 oranges"}, {"--payload", "'16 oranges'", "16MB"}},
      {lab({"--push", "int9"}), {"--push", "int9", "int8"}},
      {lab({"--overlap", "1.5"}), {"--overlap", "1.5"}},
      {lab({"--node-bandwidth", "9=1Gbit/s"}), {"--node-bandwidth", "9=1Gbit/s", "0 to 3"}},
      {{"--measure"}, {"--measure", "--base-dir", "--admin"}},
      {{"--measure", "--base-dir", dir / "none"}, {dir / "none", "cluster.json", "--base-dir"}},
      {{"--measure", "--admin", "127.0.0.1:1"}, {"127.0.0.1:1"}},
  };
  for (const Case& c : cases) {
    const Plan outcome = plan(dir, c.arguments);
    INFO(outcome.error);
    CHECK(outcome.code != 0);
    CHECK(outcome.out.empty());
    for (const std::string& part : c.parts) {
      CAPTURE(part);
      CHECK(contains(outcome.error, part));
    }
  }
}

TEST_CASE("plan --measure takes links, model and hosts from the daemons of a running job") {
  TempDir dir;
  Job job;
  job.rounds = 1'000'000;  // until the cluster stops
  const std::string file = write_job(dir, job);
  ClusterOptions options = spread(dir / "run", {.nodes = 2, .ranks_per_node = 1, .servers = 2});
  const auto cluster = start(options, file);
  std::vector<std::string> arguments = {"--measure", "--json"};
  for (const Daemon& daemon : cluster->servers()) arguments.insert(arguments.end(), {"--admin", daemon.admin});
  for (const Daemon& daemon : cluster->workers()) arguments.insert(arguments.end(), {"--admin", daemon.admin});
  Plan outcome;
  // A model this small has no busy stretch that says much of a link; but the daemons must be understood.
  const bool understood = eventually([&] {
    outcome = plan(dir, arguments);
    return outcome.code == 0 || contains(outcome.error, "has not seen enough");
  });
  INFO(outcome.error);
  REQUIRE(understood);
  if (outcome.code == 0) {
    const auto json = nlohmann::json::parse(outcome.out);
    CHECK(json.at("nodes") == 2);
    CHECK(json.at("measured").at("job") == "e2e");
    CHECK(json.at("bandwidth_bytes_per_s").get<double>() > 0.0);
  }
  cluster->stop();
}

}  // namespace
}  // namespace tributary::e2e::plan_tool_test
