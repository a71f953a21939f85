#include <doctest/doctest.h>

#include <string>

#include "bench/lab/compare_words.h"
#include "bench/lab/lab_prediction.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tools/lab/hosted_ranks.h"

namespace tributary::bench::compare_test {
namespace {

using Json = nlohmann::ordered_json;

// Two hosts of 80 Mbit/s (10 MB/s) that sent and received these megabytes in 10 rounds.
Json result_with(double sent_mb, double received_mb, double machine_busy, int drops = 0) {
  const auto host = [](const char* name, double sent, double received) {
    return Json{{"name", name},
                {"up_mbit", 80.0},
                {"down_mbit", 80.0},
                {"wire_bytes_sent", sent * 1e6},
                {"wire_bytes_received", received * 1e6}};
  };
  return {{"rounds", 10},
          {"hosts", Json::array({host("a", 1.0, 1.0), host("b", sent_mb, received_mb)})},
          {"machine_busy", machine_busy},
          {"drops", drops}};
}

bool has(const std::string& text, const std::string& part) {
  INFO(text);
  return testing::contains(text, part);
}

TEST_CASE("the busiest link is found, with its way and its use") {
  const Limits sending = limits_of(result_with(95.0, 20.0, 0.3), 1.0);
  CHECK(sending.busiest_host == "b");
  CHECK(sending.sending);
  CHECK(sending.link_use == doctest::Approx(0.95));
  const Limits receiving = limits_of(result_with(20.0, 50.0, 0.3, 30), 1.0);
  CHECK_FALSE(receiving.sending);
  CHECK(receiving.link_use == doctest::Approx(0.5));
  CHECK(receiving.drops_per_round == doctest::Approx(3.0));
}

TEST_CASE("a full link binds an exchange, then full processors, else waiting") {
  CHECK(has(what_binds_exchange(limits_of(result_with(95.0, 20.0, 0.3), 1.0)),
            "The network binds: the link of b while sending (95 % of its rate)."));
  CHECK(has(what_binds_exchange(limits_of(result_with(95.0, 20.0, 0.97), 1.0)), "almost as full (97 %)"));
  CHECK(has(what_binds_exchange(limits_of(result_with(50.0, 20.0, 0.97), 1.0)), "The processors of this machine bind"));
  CHECK(has(what_binds_exchange(limits_of(result_with(50.0, 20.0, 0.3), 1.0)), "waiting binds"));
  CHECK(has(what_binds_exchange(limits_of(result_with(50.0, 20.0, 0.3, 100), 1.0)), "10 packets a round were dropped"));
}

TEST_CASE("a step is bound by what takes most of it") {
  const Limits limits = limits_of(result_with(95.0, 20.0, 0.3), 1.0);
  CHECK(has(what_binds_step(80.0, 0.0, 20.0, limits), "Computing binds"));
  CHECK(has(what_binds_step(10.0, 0.0, 90.0, limits), "The exchange binds."));
  CHECK(has(what_binds_step(10.0, 0.0, 90.0, limits), "The network binds"));
  CHECK(has(what_binds_step(50.0, 0.0, 50.0, limits), "in turn"));
}

lab::LabConfig lab_of(int workers, int both, int servers) {
  lab::LabConfig config;
  config.rate_mbit = 80.0;
  const auto add = [&](int count, bool worker, bool server) {
    for (int i = 0; i < count; ++i)
      config.hosts.push_back({.name = "h" + std::to_string(config.hosts.size()),
                              .worker = worker,
                              .server = server,
                              .up_mbit = 80.0,
                              .down_mbit = 80.0});
  };
  add(workers, true, false);
  add(both, true, true);
  add(servers, false, true);
  return config;
}

double factor(const lab::LabConfig& config, const JobConfig& job) {
  constexpr double kModelBytes = 64e6;  // large chunks: their headers take next to nothing of the link
  const auto prediction = required(predict(lab_scenario(config, job, kModelBytes, 1.0)));
  return prediction.network_s * 10e6 / kModelBytes;
}

TEST_CASE("a lab's layouts are predicted by their closed forms") {
  JobConfig job;
  CHECK(factor(lab_of(4, 0, 4), job) == doctest::Approx(1.0).epsilon(0.01));
  CHECK(factor(lab_of(0, 4, 2), job) == doctest::Approx(1.2).epsilon(0.01));
  CHECK(factor(lab_of(0, 4, 0), job) == doctest::Approx(1.5).epsilon(0.01));
  CHECK(factor(lab_of(2, 2, 0), job) == doctest::Approx(2.0).epsilon(0.01));  // servers beside two of four workers
  job.push = job.pull = EncodingId::kBf16;
  CHECK(factor(lab_of(4, 0, 4), job) == doctest::Approx(0.5).epsilon(0.01));
  job = {};
  job.mode = Mode::kAllreduce;
  CHECK(factor(lab_of(4, 0, 4), job) == doctest::Approx(1.5).epsilon(0.01));
  CHECK(factor(lab_of(8, 0, 8), job) == doctest::Approx(1.75).epsilon(0.01));
}

TEST_CASE("a job with local steps is predicted with as many") {
  JobConfig job;
  CHECK(lab_scenario(lab_of(4, 0, 4), job, 1e6, 1.0).local_steps == 1);
  job.mode = Mode::kLocalSgd;
  job.local.steps = 50;
  CHECK(lab_scenario(lab_of(4, 0, 4), job, 1e6, 1.0).local_steps == 50);
  CHECK(factor(lab_of(4, 0, 4), job) == doctest::Approx(1.0).epsilon(0.01));
}

TEST_CASE("Gloo's ring has one rank a host, whatever the lab's trainers") {
  lab::LabConfig config = lab_of(4, 0, 4);
  for (lab::LabHost& host : config.hosts) host.ranks = 2;
  const Scenario s = gloo_scenario(config, 1e6, 1.0);
  CHECK(s.nodes == 4);
  CHECK(s.ranks_per_node == 1);
  CHECK(s.mode == ExchangeMode::kFlatRing);
}

TEST_CASE("the share of payload is what came through of what the rates allow") {
  const lab::LabConfig config = lab_of(2, 0, 0);
  CHECK(payload_share(config, {}) == doctest::Approx(lab::kPayloadShare));
  CHECK(payload_share(config, {{.mbit = 90.0, .expected_mbit = 100.0}}) == doctest::Approx(0.9 * lab::kPayloadShare));
}

TEST_CASE("busy time is all but idle and waiting") {
  CHECK(lab::busy_seconds("cpu  100 1 50 9999 888 3 46 7 0 0\ncpu0 1 2 3\n", 100) == doctest::Approx(2.0));
  CHECK(lab::busy_seconds("", 100) == 0.0);
  CHECK(lab::busy_seconds("nonsense 1 2 3", 100) == 0.0);
}

}  // namespace
}  // namespace tributary::bench::compare_test
