// Jobs with encodings on the wire: the same bits as one process with the same nodes, also after stops and losses; fewer
// bytes, as many as documented; and the accuracy of fp32.
#include <signal.h>

#include <cmath>

#include "common/math/encoding.h"
#include "tests/e2e/e2e.h"

namespace tributary::e2e::encodings_test {
namespace {

struct Pair {
  const char* push;
  const char* pull;
};
constexpr Pair kPairs[] = {{"int8", "int8-delta"},
                           {"topk:0.05", "fp32"},
                           {"topk:0.02", "bf16"},
                           {"onebit", "int8-delta"},
                           {"bf16", "int8-delta"}};

Job job_with(const Pair& pair, std::string name) {
  Job job{.name = std::move(name), .chunk_bytes = 8192};
  job.extra = std::string("\n[encoding]\npush = \"") + pair.push + "\"\npull = \"" + pair.pull + "\"\n";
  return job;
}

ClusterOptions two_nodes(const TempDir& dir, Transport transport = Spread().transport) {
  return spread(dir / "run", {.lanes = 2, .transport = transport});
}

TEST_CASE("every encoding ends in the bits of one process, with the documented bytes on the wire") {
  const TempDir dir;
  std::vector<std::pair<Pair, Transport>> runs = {{kPairs[0], Transport::kTcp}, {kPairs[1], Transport::kTcp}};
  for (const Pair& pair : kPairs) runs.emplace_back(pair, Transport::kShm);
  for (const auto& [pair, transport] : runs) {
    CAPTURE(pair.push);
    CAPTURE(pair.pull);
    CAPTURE(transport_name(transport));
    const Job job = job_with(pair, "bits");
    const std::string job_file = write_job(dir, job);
    const auto all = trained(two_nodes(dir, transport), job_file);
    CHECK(all[0].at("digest") == standalone_digest(dir, job_file, 4, 2));
    CHECK(all[0].at("rounds") == job.rounds);
  }
}

TEST_CASE(
    "a stop in the middle keeps what compression still owes, and the job ends in the bits of an undisturbed run") {
  for (const Pair& pair : {kPairs[0], kPairs[3]}) {
    CAPTURE(pair.push);
    const TempDir dir;
    Job job = job_with(pair, std::string("stop-") + pair.push);
    job.rounds = 2500;
    const std::string job_file = write_job(dir, job);
    const std::string reference = standalone_digest(dir, job_file, 4, 2);
    std::uint64_t stopped_at = 0;
    {
      const auto cluster = start(two_nodes(dir), job_file);
      REQUIRE(eventually([&] { return job_number(*cluster, "max_version") >= 100; }));
      for (Daemon& d : cluster->workers()) d.process.send_signal(SIGTERM);
      REQUIRE(cluster->wait_for_trainers(kPatience));
      const auto all = results(*cluster);
      CHECK(all[0].at("stopped") == true);
      stopped_at = all[0].at("rounds");
      CHECK(stopped_at < job.rounds);
      for (Daemon& d : cluster->workers()) REQUIRE(d.process.wait(kPatience));
      CHECK(cluster->stop().empty());
    }
    const auto cluster = start(two_nodes(dir), job_file);
    const auto all = finished(*cluster);
    CHECK(all[0].at("resumed_from") == stopped_at);
    CHECK(all[0].at("digest") == reference);
    check_transport(*cluster);  // the residuals that came back, too
    CHECK(cluster->stop().empty());
  }
}

TEST_CASE(
    "after kill -9 of a worker, or of a server, its node's residuals are there, and the job ends in the same bits") {
  const TempDir dir;
  Job job = job_with({"topk:0.05", "int8-delta"}, "lost");
  job.rounds = 2500;
  job.snapshot_every_rounds = 50;
  const std::string job_file = write_job(dir, job);
  const std::string reference = standalone_digest(dir, job_file, 4, 2);
  for (const Transport transport : {Transport::kShm, Transport::kTcp}) {
    const auto cluster = start(afresh(two_nodes(dir, transport)), job_file);
    REQUIRE(eventually([&] { return job_number(*cluster, "committed") >= 50; }));
    const bool worker = transport == Transport::kShm;
    survive_kill_of(*cluster, worker ? cluster->workers()[1] : cluster->servers()[1], reference);
    if (!worker) continue;  // whether a server's snapshots could follow is the disk's affair
    const std::string text = log_of(cluster->coordinator_daemon());
    CHECK(contains(text, ", as the servers have it"));
  }
}

}  // namespace
}  // namespace tributary::e2e::encodings_test
