// Jobs whose chunks are spread by the links of the daemons' hosts. All daemons run on this machine, but report
// different hosts.
#include <cstdlib>

#include "tests/e2e/e2e.h"

namespace tributary::e2e::placed_jobs_test {
namespace {

using Json = nlohmann::json;

Json only_job(LocalCluster& cluster) {
  return status_of(cluster.servers()[0]).at("coordinator").at("jobs").at(0);
}

TEST_CASE("a job that leaves one server without chunks trains, is kept, and goes on, to the reference's bits") {
  const TempDir dir;
  Job job{.name = "placed", .chunk_bytes = 8192, .rounds = 3500, .snapshot_every_rounds = 40};
  // Unequal encodings: servers next to the workers do it all in 0.75 M/B, a machine of its own would only lengthen
  // that.
  job.extra = "\n[encoding]\npush = \"bf16\"\n";
  const std::string job_file = write_job(dir, job);
  const std::string reference = standalone_digest(dir, job_file, 4, 2);

  ClusterOptions options = spread(dir / "run", {.servers = 3});
  options.server_hosts = {"server machine", "a", "b"};
  options.worker_hosts = {"a", "b"};
  std::uint64_t stopped_at = 0;
  Json shares;
  {
    const auto cluster = start(options, job_file);
    REQUIRE(eventually([&] { return job_number(*cluster, "committed") >= 40; }));
    const Json placement = only_job(*cluster).at("placement");
    CHECK(placement.at("basis") == "links");
    shares = placement.at("servers");
    REQUIRE(shares.size() == 3);
    CHECK(shares[0].at("chunks") == 0);
    CHECK(shares[0].at("bytes") == 0);
    CHECK(shares[0].at("colocated") == false);
    CHECK(shares[1].at("colocated") == true);
    CHECK(shares[1].at("chunks").get<int>() > 0);
    CHECK(std::abs(shares[1].at("chunks").get<int>() - shares[2].at("chunks").get<int>()) <= 1);
    CHECK(placement.at("predicted").at("optimal_factor").get<double>() == doctest::Approx(0.75));
    CHECK(placement.at("predicted").at("ring_factor").get<double>() == doctest::Approx(1.0));
    // The round that the coordinator tells is that of the servers that have one.
    CHECK(job_number(*cluster, "min_version") > 0);

    const Json idle = status_of(cluster->servers()[0]);
    CHECK(idle.at("jobs").at(0).at("chunks") == 0);
    CHECK(idle.at("memory").at("state_bytes") == 0);

    const Outcome table = run({bin("tributary"), "status", "--base-dir", options.base_dir});
    INFO(table.text);
    CHECK(table.status == 0);
    for (const char* words : {"on its own", "beside a worker", "1.000 M/B", "BOTTLENECK",
                              "the link of the host of server 1 and worker node-0"}) {
      CHECK_MESSAGE(contains(table.text, words), words);
    }

    CHECK(cluster->stop().empty());
    REQUIRE(cluster->wait_for_trainers(kPatience));
    stopped_at = results(*cluster)[0].at("rounds");
    CHECK(stopped_at < job.rounds);
  }
  // All on one machine from now on: the shards stay where their state is.
  options.server_hosts.clear();
  options.worker_hosts.clear();
  const auto cluster = start(options, job_file);
  const auto all = finished(*cluster);
  CHECK(all[0].at("resumed_from") == stopped_at);
  CHECK(all[0].at("digest") == reference);
  const Json placement = only_job(*cluster).at("placement");
  CHECK(placement.at("basis") == "one host");
  CHECK(placement.at("predicted").is_null());
  for (std::size_t s = 0; s < 3; ++s) CHECK(placement.at("servers").at(s).at("chunks") == shares[s].at("chunks"));
  CHECK(cluster->stop().empty());
}

}  // namespace
}  // namespace tributary::e2e::placed_jobs_test
