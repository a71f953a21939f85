// Checks over all daemons: settings that differ, missing daemons, slow links, clocks, jobs.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "common/doctor/check_list.h"
#include "common/doctor/settings.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tools/cli/cluster_checks.h"

namespace tributary::cli::cluster_checks_test {
namespace {

using testing::contains;

using Json = nlohmann::ordered_json;

const Check* find(const std::vector<Check>& checks, const std::string& name) {
  const auto found = std::ranges::find(checks, name, &Check::name);
  return found == checks.end() ? nullptr : &*found;
}

ClusterDiagnosis healthy() {
  ClusterDiagnosis diagnosis;
  diagnosis.servers = 2;
  for (const char* name : {"server 0", "server 1"}) {
    diagnosis.daemons.push_back({.name = name,
                                 .server = true,
                                 .silent_because = {},
                                 .settings = settings_of(ServerConfig{}),
                                 .checks = {},
                                 .rates = {}});
  }
  for (const char* name : {"worker a", "worker b", "worker c"}) {
    diagnosis.daemons.push_back({.name = name,
                                 .server = false,
                                 .silent_because = {},
                                 .settings = settings_of(WorkerConfig{}),
                                 .checks = {},
                                 .rates = {{ShardIndex(0), false, 30e6, 1e-3}, {ShardIndex(1), false, 30e6, 1e-3}}});
  }
  return diagnosis;
}

const Json kStatus = {{"coordinator", {{"jobs", Json::array()}, {"peers", Json::array()}}}};

}  // namespace

TEST_CASE("A healthy cluster has no problem and no note") {
  const std::vector<Check> checks = checks_of_cluster(healthy(), kStatus);
  for (const Check& check : checks) CHECK_MESSAGE(check.level == CheckLevel::kOk, check.name << ": " << check.found);
  CHECK(find(checks, "daemons")->found == "2 of 2 servers, 3 workers");
  CHECK(find(checks, "links")->found == "6 links, alike: 30.00 MB/s each way");
}

TEST_CASE("Settings that some have otherwise are named with who has what, but not those of a machine") {
  ClusterDiagnosis diagnosis = healthy();
  WorkerConfig other;
  other.heartbeat_ms = 2000;
  other.node_reduction = NodeReduction::kHost;
  other.name = "b";
  other.socket = "/run/other.sock";
  other.store_path = "/data/b";
  diagnosis.daemons[3].settings = settings_of(other);
  const std::vector<Check> checks = checks_of_cluster(diagnosis, kStatus);
  const Check* beats = find(checks, "limits.heartbeat_ms");
  REQUIRE(beats);
  CHECK(beats->level == CheckLevel::kNote);
  CHECK(beats->found == "\"1000\" on worker a and worker c; \"2000\" on worker b");
  CHECK(find(checks, "worker.node_reduction"));
  CHECK_FALSE(find(checks, "store.path"));
  CHECK_FALSE(find(checks, "worker.socket"));
  CHECK_FALSE(find(checks, "program"));
  CHECK(count_of(checks, CheckLevel::kNote) == 2);
  diagnosis.daemons[4].settings[0] = {"program", "0.0.9 (build 000000000000)"};
  CHECK(contains(find(checks_of_cluster(diagnosis, kStatus), "program")->advice, "one release"));
}

TEST_CASE("Daemons that are missing or silent, clocks that differ and jobs that stand are problems") {
  ClusterDiagnosis diagnosis = healthy();
  diagnosis.servers = 3;
  diagnosis.daemons[2].silent_because = "it was lost meanwhile";
  const Json status = {
      {"coordinator",
       {{"jobs", Json::array({{{"name", "digits"}, {"phase", "gathering"}, {"waiting_for", "rank 3 (node 1)"}},
                              {{"name", "still"}, {"phase", "running"}, {"why_no_round", "server 1 is not heard"}},
                              {{"name", "full"}, {"phase", "running"}, {"not_saved", "No space left on device"}},
                              {{"name", "other"}, {"phase", "running"}, {"why_no_round", ""}}})},
        {"peers",
         Json::array({{{"kind", "worker"}, {"name", "b"}, {"clock", "3600 s ahead of the coordinator's"}}})}}}};
  const std::vector<Check> checks = checks_of_cluster(diagnosis, status);
  CHECK(contains(find(checks, "daemons")->found, "not there: server 2"));
  CHECK(find(checks, "worker a")->found == "it was lost meanwhile");
  CHECK(contains(find(checks, "clock of worker b")->found, "3600 s ahead"));
  CHECK(find(checks, "job digits")->found == "it waits for rank 3 (node 1)");
  CHECK(contains(find(checks, "job still")->found, "server 1 is not heard"));
  CHECK(contains(find(checks, "job full")->found, "No space left on device"));
  CHECK(count_of(checks, CheckLevel::kProblem) == 6);
  CHECK(find(checks, "job other")->level == CheckLevel::kOk);
}

TEST_CASE("A link with less than half of the middle one's rate is a problem, and named") {
  ClusterDiagnosis diagnosis = healthy();
  diagnosis.daemons[4].rates[0].bytes_per_s = 14e6;
  const std::vector<Check> checks = checks_of_cluster(diagnosis, kStatus);
  const Check* slow = find(checks, "worker c to server 0");
  REQUIRE(slow);
  CHECK(slow->level == CheckLevel::kProblem);
  CHECK(slow->found == "14.00 MB/s each way; the middle one of all links has 30.00 MB/s");
  CHECK_FALSE(find(checks, "links"));
  // Memory is faster than any link: it says nothing of the others.
  diagnosis = healthy();
  for (DaemonDiagnosis& daemon : diagnosis.daemons) {
    for (LinkRate& rate : daemon.rates)
      rate = {rate.shard, rate.shard == ShardIndex(0), rate.shard == ShardIndex(0) ? 1e9 : 30e6, 0.0};
  }
  CHECK(find(checks_of_cluster(diagnosis, kStatus), "links")->found == "3 links, alike: 30.00 MB/s each way");
}

TEST_CASE("What server 0 answers is read, and what is no diagnosis refused") {
  const Json json = {
      {"servers", 2},
      {"daemons",
       Json::array(
           {{{"name", "worker a"},
             {"kind", "worker"},
             {"silent_because", ""},
             {"settings", Json::array({{{"key", "k"}, {"value", "v"}}})},
             {"checks",
              Json::array({{{"section", "s"}, {"name", "n"}, {"level", "note"}, {"found", "f"}, {"advice", "a"}}})},
             {"rates",
              Json::array({{{"server", 1}, {"local", false}, {"bytes_per_s", 5.0}, {"round_trip_s", 0.5}}})}}})}};
  const auto diagnosis = required(diagnosis_of(json));
  CHECK(diagnosis.servers == 2);
  REQUIRE(diagnosis.daemons.size() == 1);
  CHECK_FALSE(diagnosis.daemons[0].server);
  CHECK(diagnosis.daemons[0].checks[0].level == CheckLevel::kNote);
  CHECK(diagnosis.daemons[0].rates[0].shard == ShardIndex(1));
  CHECK_FALSE(diagnosis_of(Json{{"servers", 2}}));
  CHECK_FALSE(diagnosis_of(Json{{"servers", "x"}, {"daemons", 3}}));
}

}  // namespace tributary::cli::cluster_checks_test
