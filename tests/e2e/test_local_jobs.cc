// Jobs of mode "local_sgd": the same bits on every topology and after stops and losses, and a part of the bytes.
#include <signal.h>

#include "tests/e2e/e2e.h"

namespace tributary::e2e::local_jobs_test {
namespace {

// The data set has 8 batches an epoch: rounds of 3, 3 and 2 local steps.
Job local_job(const std::string& name, bool keep_state, const std::string& steps = "3") {
  Job job{.name = name, .mode = "local_sgd", .optimizer = kOuterMomentum, .rounds = 24};
  job.extra = "\n[local]\nsteps = " + steps +
              "\noptimizer = \"adamw\"\nlr = 0.003\nkeep_state = " + (keep_state ? "true" : "false") + "\n";
  return job;
}

TEST_CASE("local steps end in the same bits on every topology, with any servers, lanes and chunks, and standalone") {
  const std::vector<Spread> spreads = {{1, 4, 1, 1, 0, Transport::kTcp},
                                       {2, 2, 2, 2, 8192, Transport::kShm},
                                       {2, 2, 1, 2, 4096, Transport::kTcp},
                                       {4, 1, 3, 1, 4096, Transport::kTcp}};
  for (const bool keep : {true, false}) {
    CAPTURE(keep);
    const TempDir dir;
    Job job = local_job("bits", keep);
    const std::string reference = standalone_digest(dir, write_job(dir, job), 4);
    for (const Spread& s : spreads) {
      CAPTURE(s.nodes);
      CAPTURE(s.servers);
      job.chunk_bytes = s.chunk_bytes;
      const auto all = trained(spread(dir / "run", s), write_job(dir, job));
      CHECK(all[0].at("digest") == reference);
      CHECK(all[0].at("rounds") == job.rounds);
      CHECK(all[0].at("samples") == 24 / 3 * 512);
    }
  }
}

TEST_CASE("encodings are what they are in other modes: the same bits with daemons as standalone on as many nodes") {
  const TempDir dir;
  for (const auto& [push, pull] :
       {std::pair{"int8", "bf16"}, std::pair{"topk:0.05", "fp32"}, std::pair{"onebit", "int8-delta"}}) {
    CAPTURE(push);
    Job job = local_job("encoded", true);
    job.extra += std::string("\n[encoding]\npush = \"") + push + "\"\npull = \"" + pull + "\"\n";
    const std::string job_file = write_job(dir, job);
    CHECK(trained(spread(dir / "run", {.servers = 1}), job_file)[0].at("digest") ==
          standalone_digest(dir, job_file, 4, 2));
  }
}

TEST_CASE("a round has as many bytes as without local steps, and as many times the samples as it has steps") {
  const TempDir dir;
  struct Carried {
    std::uint64_t bytes, samples;
  };
  const auto carried = [&](Job job, std::uint64_t rounds) {
    job.rounds = rounds;
    const auto all = trained(spread(dir / "run", {.ranks_per_node = 1, .servers = 1}), write_job(dir, job));
    return Carried{all[0].at("bytes_pushed").get<std::uint64_t>() + all[0].at("bytes_pulled").get<std::uint64_t>(),
                   all[0].at("samples").get<std::uint64_t>()};
  };
  // The costs of eight rounds, without the traffic before the first one.
  const auto of_rounds = [&](const Job& job) {
    const Carried few = carried(job, 8), many = carried(job, 16);
    return Carried{many.bytes - few.bytes, many.samples - few.samples};
  };
  Job plain;
  plain.name = "all";
  const Carried sync = of_rounds(plain), local = of_rounds(local_job("few", true, "8"));  // an epoch is a round
  CHECK(sync.samples == 8 * 64);
  CHECK(local.samples == 8 * 512);
  CHECK(sync.bytes > 0);
  CHECK(local.bytes == sync.bytes);
}

constexpr std::uint64_t kLongRounds = 1500;  // long enough to be disturbed in the middle

Job long_job(const std::string& name, bool keep_state = false) {
  Job job = local_job(name, keep_state);
  job.chunk_bytes = 8192;
  job.rounds = kLongRounds;
  return job;
}

TEST_CASE("with inner state that begins anew, SIGTERM to every daemon and the same again ends in undisturbed bits") {
  const TempDir dir;
  const std::string job_file = write_job(dir, long_job("stop"));
  stop_and_resume(two_by_two(dir), job_file, kLongRounds, standalone_digest(dir, job_file, 4));
}

TEST_CASE("with inner state that begins anew, kill -9 of a server, a worker or a trainer ends in undisturbed bits") {
  const TempDir dir;
  Job job = long_job("kill");
  job.snapshot_every_rounds = 40;
  const std::string job_file = write_job(dir, job);
  const std::string reference = standalone_digest(dir, job_file, 4);
  for (const std::string victim : {"server", "worker", "trainer"}) {
    CAPTURE(victim);
    const auto cluster = start(afresh(two_by_two(dir)), job_file);
    REQUIRE(eventually([&] { return job_number(*cluster, "committed") >= 40; }));
    if (victim != "trainer") {
      survive_kill_of(*cluster, victim == "server" ? cluster->servers()[1] : cluster->workers()[1], reference);
      continue;
    }
    cluster->trainers()[3].process.terminate(milliseconds(0));
    restart_trainer(*cluster, 3);
    CHECK(finished(*cluster)[0].at("digest") == reference);
    CHECK(cluster->stop().empty());
  }
}

TEST_CASE("inner state that is kept outlives daemons: kill -9 of a server or a worker ends in undisturbed bits") {
  const TempDir dir;
  Job job = long_job("kept", true);
  job.snapshot_every_rounds = 40;
  const std::string job_file = write_job(dir, job);
  const std::string reference = standalone_digest(dir, job_file, 4);
  for (const std::string victim : {"server", "worker"}) {
    CAPTURE(victim);
    const auto cluster = start(afresh(two_by_two(dir)), job_file);
    // In the slow half: snapshots follow rounds that are longer than a disk's step.
    REQUIRE(eventually([&] { return job_number(*cluster, "committed") >= kLongRounds / 2 + 40; }));
    survive_kill_of(*cluster, victim == "server" ? cluster->servers()[1] : cluster->workers()[1], reference);
    for (const Trainer& trainer : cluster->trainers()) {
      CHECK_FALSE(contains(last_lines(trainer.log_file, 1000, trainer.log_from), "begins anew"));
    }
  }
}

}  // namespace
}  // namespace tributary::e2e::local_jobs_test
