// Jobs whose rounds wait for one decision: clipping, loss scales. The bits are the standalone reference's, however the
// job is spread and whichever process dies.
#include <signal.h>

#include "common/wire/redo_plan.h"
#include "tests/e2e/e2e.h"

namespace tributary::e2e::gate_test {
namespace {

inline const char* kClip = "\n[gate]\nclip_norm = 0.7\n";
// Scales that are soon too large for fp16, and then try to grow again.
inline const char* kDynamic =
    "\n[gate]\nclip_norm = 0.7\nloss_scale = \"dynamic\"\ninit_scale = 67108864.0\n"
    "growth_interval = 9\n[encoding]\npush = \"fp16\"\n";

const std::vector<Spread> kSpreads = {
    {1, 4, 1, 1, 0, Transport::kShm},
    {2, 2, 1, 2, 32768, Transport::kTcp},
    {2, 2, 2, 2, 8192, Transport::kShm},
    {4, 1, 3, 1, 4096, Transport::kTcp},
};

const nlohmann::json& only_job(const nlohmann::json& status) {
  REQUIRE(status.at("jobs").size() == 1);
  return status.at("jobs").at(0);
}

// Runs the job in every spread and compares with the reference's digest and gate.
nlohmann::json check_all(const char* optimizer, const std::string& gate) {
  const TempDir dir;
  Job job{.name = "gate", .optimizer = optimizer, .extra = gate};
  const nlohmann::json reference = standalone_result(dir, write_job(dir, job), 4);
  for (const Spread& s : kSpreads) {
    CAPTURE(s.nodes);
    CAPTURE(s.servers);
    CAPTURE(s.chunk_bytes);
    job.chunk_bytes = s.chunk_bytes;
    const auto all = trained(spread(dir / "run", s), write_job(dir, job));
    CHECK(all[0].at("digest") == reference.at("digest"));
    for (const auto& rank : all) CHECK(rank.at("gate") == reference.at("gate"));
  }
  return reference;
}

TEST_CASE("a clipped run ends in the same bits on every topology, with any servers, lanes and chunks, and standalone") {
  const nlohmann::json reference = check_all(kAdamW, kClip);
  CHECK(reference.at("gate").at("rounds") == 40);
  CHECK(reference.at("gate").at("clipped") > 0);
  CHECK(reference.at("gate").at("clipped") < 40);
  CHECK(reference.at("gate").at("skipped") == 0);
}

TEST_CASE("a loss scale that is too large for the wire is halved, rounds are skipped, and training goes on") {
  const TempDir dir;
  const Job job{.name = "scale", .rounds = 60, .extra = kDynamic};
  const std::string file = write_job(dir, job);
  const nlohmann::json reference = standalone_result(dir, file, 4, 2);
  const nlohmann::json& gate = reference.at("gate");
  MESSAGE("gate of the reference: " << gate.dump());
  CHECK(gate.at("skipped") > 3);
  CHECK(gate.at("skipped") < 40);
  CHECK(gate.at("loss_scale") < 67108864.0);
  for (const Spread& s : {Spread{2, 2, 1, 1, 8192, Transport::kShm}, Spread{2, 2, 2, 2, 8192, Transport::kTcp}}) {
    const auto cluster = start(afresh(spread(dir / "run", s)), file);
    const auto all = finished(*cluster);
    CHECK(all[0].at("digest") == reference.at("digest"));
    CHECK(all[0].at("gate") == gate);
    CHECK(cluster->stop().empty());
  }
}

TEST_CASE("a loss scale alone changes no bit of the result") {
  const TempDir dir;
  const std::string plain = standalone_digest(dir, write_job(dir, {.name = "plain"}), 4);
  const Job job{.name = "scaled", .extra = "\n[gate]\nloss_scale = \"1024\"\n"};
  CHECK(standalone_digest(dir, write_job(dir, job), 4) == plain);
  const auto cluster = start(afresh(spread(dir / "run", kSpreads[1])), write_job(dir, job));
  CHECK(finished(*cluster)[0].at("digest") == plain);
  CHECK(cluster->stop().empty());
}

TEST_CASE("status and metrics tell of the gate") {
  const TempDir dir;
  const Job job{.name = "told", .rounds = 2000, .extra = kClip};
  const auto cluster = start(afresh(spread(dir / "run", kSpreads[0])), write_job(dir, job));
  REQUIRE(eventually([&] { return job_number(*cluster, "max_version") >= 50; }));
  const nlohmann::json status = status_of(cluster->servers()[0]);
  const nlohmann::json& gate = only_job(status).at("gate");
  CHECK(gate.at("round").get<std::uint64_t>() >= 40);
  CHECK(gate.at("gradient_norm").get<double>() > 0.0);
  CHECK(gate.at("loss_scale") == 1.0);
  CHECK(gate.at("rounds_skipped") == 0);
  CHECK(contains(answer_of(cluster->servers()[0], "/metrics"), "tributary_server_job_gradient_norm{job=\"told\"}"));
  cluster->stop_now();
}

// Checks that repeated rounds keep their decisions, whichever process dies.
void survives(const char* name, const char* optimizer, const std::string& gate, std::size_t server, bool worker) {
  const TempDir dir;
  const Job job{.name = name,
                .optimizer = optimizer,
                .chunk_bytes = 8192,
                .rounds = 2000,
                .snapshot_every_rounds = 40,
                .extra = gate};
  const std::string file = write_job(dir, job);
  const nlohmann::json reference = standalone_result(dir, file, 4, 2);
  const auto cluster = start(afresh(spread(dir / "run", {2, 2, 2, 2, 8192, Transport::kShm})), file);
  // On a busy machine rounds may be so short that a snapshot is beyond what nodes can push again.
  REQUIRE(eventually([&] {
    const std::uint64_t committed = job_number(*cluster, "committed");
    return committed >= 40 && job_number(*cluster, "max_version") < committed + kRoundsOfSnapshot;
  }));
  survive_kill_of(*cluster, worker ? cluster->workers()[server] : cluster->servers()[server],
                  reference.at("digest").get<std::string>());
  if (worker) return;
  // Rounds came back with their decisions.
  const std::string text = log_of(cluster->coordinator_daemon());
  CHECK(contains(text, "the nodes push again what came after it"));
}

TEST_CASE("a job with a gate survives the loss of a server in the same bits") {
  survives("lose-1", kAdamW, kDynamic, 1, false);
}

TEST_CASE("a job with a gate survives the loss of the coordinator in the same bits") {
  survives("lose-0", kAdamW, kDynamic, 0, false);
}

TEST_CASE("a job with a gate survives the loss of a worker in the same bits") {
  survives("lose-w", kAdamW, kDynamic, 1, true);
}

TEST_CASE("a job with a gate that is stopped goes on with the loss scale that it had") {
  const TempDir dir;
  const std::string file = write_job(dir, {.name = "stop", .chunk_bytes = 8192, .rounds = 2000, .extra = kDynamic});
  const nlohmann::json reference = standalone_result(dir, file, 4, 2);
  ClusterOptions options = afresh(spread(dir / "run", {2, 2, 2, 2, 8192, Transport::kShm}));
  {
    const auto cluster = start(options, file);
    REQUIRE(eventually([&] { return job_number(*cluster, "max_version") >= 100; }));
    CHECK(cluster->stop().empty());
  }
  options.fresh = false;
  const auto cluster = start(options, file);
  const auto all = finished(*cluster);
  CHECK(all[0].at("resumed_from") >= 100);
  CHECK(all[0].at("digest") == reference.at("digest"));
  CHECK(all[0].at("gate").at("loss_scale") == reference.at("gate").at("loss_scale"));
  CHECK(cluster->stop().empty());
}

}  // namespace
}  // namespace tributary::e2e::gate_test
