#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tools/cli/plan/plan.h"
#include "tools/cli/plan/plan_measure.h"

namespace tributary::plan_test {

using testing::contains;

namespace {

using namespace cli;
using doctest::Approx;
using Json = nlohmann::json;

Scenario lab() {
  Scenario s{.nodes = 4,
             .servers = 4,
             .network = {.bandwidth = 31.25e6, .latency_s = 50e-6},
             .payload_bytes = 16e6,
             .compute_s = 0.2};
  return s;
}

Plan planned(const Scenario& s) {
  return required(make_plan(s));
}

std::string all_advice(const Plan& plan) {
  std::string text;
  for (const std::string& sentence : plan.advice) text += sentence + "\n";
  return text;
}

// ---- Plans ----

TEST_CASE("a plan lists the layouts that the machines allow") {
  Scenario s = lab();
  CHECK(planned(s).layouts.size() == 4);
  s.servers = 0;
  CHECK(modes_for(s) == std::vector{ExchangeMode::kFlatRing, ExchangeMode::kServersColocated});
  s.ranks_per_node = 4;
  CHECK(modes_for(s)[1] == ExchangeMode::kHierarchicalRing);
}

TEST_CASE("a plan recommends the fastest layout, and of equal ones the simplest") {
  Scenario s = lab();
  Plan plan = planned(s);
  CHECK(plan.layouts[plan.best].mode == ExchangeMode::kServersDedicated);  // mixed leaves the workers' shares empty
  CHECK(contains(all_advice(plan), "times as fast as all-reduce (flat ring)"));
  CHECK(contains(all_advice(plan), "every host's link, both ways"));
  CHECK(contains(all_advice(plan), "bf16 both ways"));
  s.servers = 2;
  plan = planned(s);
  CHECK(plan.layouts[plan.best].mode == ExchangeMode::kServersMixed);
  CHECK(contains(all_advice(plan), "one more server host"));
  s.nodes = 2;
  plan = planned(s);
  CHECK(plan.layouts[plan.best].mode == ExchangeMode::kServersColocated);  // two workers: nothing beats it
}

TEST_CASE("a plan whose compute hides the exchange says that the network hardly matters") {
  Scenario s = lab();
  s.compute_s = 20.0;
  s.overlap = 0.6;
  CHECK(contains(all_advice(planned(s)), "hardly matters"));
}

TEST_CASE("a plan says when strongly unequal encodings leave the server machines idle") {
  Scenario s = lab();
  s.wire = wire_ratio(EncodingId::kOneBit, EncodingId::kFp32);
  const Plan plan = planned(s);
  CHECK(plan.layouts[plan.best].mode == ExchangeMode::kServersColocated);
  CHECK(plan.layouts[plan.best].network_factor == Approx(0.773).epsilon(0.01));
  CHECK(contains(all_advice(plan), "idle"));
}

TEST_CASE("the ratios of encodings are those of their frames") {
  CHECK(wire_ratio(EncodingId::kFp32, EncodingId::kBf16).push == 1.0);
  CHECK(wire_ratio(EncodingId::kFp32, EncodingId::kBf16).pull == 0.5);
  CHECK(wire_ratio(EncodingId::kInt8, EncodingId::kInt8Delta).push == Approx(1 / 3.94).epsilon(1e-3));
  CHECK(wire_ratio(EncodingId::kOneBit, EncodingId::kFp32).push == Approx(1 / 31.75).epsilon(1e-3));
}

TEST_CASE("a plan as text and as JSON has every layout") {
  const Plan plan = planned(lab());
  const std::string text = plan_text(plan);
  const Json json = Json::parse(plan_json(plan).dump());
  REQUIRE(json.at("layouts").size() == plan.layouts.size());
  for (const Prediction& p : plan.layouts) CHECK(contains(text, mode_in_words(p.mode)));
  CHECK(json.at("best") == "dedicated");
  CHECK(json.at("layouts")[0].at("layout") == "flat-ring");
  CHECK(json.at("layouts")[0].at("worker_host").at("out_bytes") == Approx(24e6));
  CHECK(json.at("layouts")[1].at("server_shares") == Json::array({0.25, 0.25, 0.25, 0.25}));
  Scenario s = lab();
  s.compute_s = 0.0;
  CHECK(plan_json(planned(s)).at("layouts")[0].at("efficiency").is_null());
}

TEST_CASE("what the model refuses, a plan refuses") {
  Scenario s = lab();
  s.payload_bytes = 0.0;
  REQUIRE(!make_plan(s));
  CHECK(contains(make_plan(s).error().message, "payload is 0"));
}

// ---- Measured links ----

Json worker(const char* name, double out, double in, const char* job = "j") {
  return {{"kind", "worker"},
          {"name", name},
          {"jobs",
           {{{"name", job},
             {"local_world_size", 2},
             {"parameters", 1'000'000},
             {"chunks", 64},
             {"link", {{"out_bytes_per_s", out}, {"in_bytes_per_s", in}, {"round_trip_s", 0.01}}}}}}};
}

Json server(Json placement = nullptr) {
  Json job = {{"name", "j"}};
  if (!placement.is_null()) job["placement"] = std::move(placement);
  return {{"kind", "server"}, {"coordinator", {{"jobs", {job}}}}};
}

TEST_CASE("links of running daemons become a scenario of payload rates") {
  const auto m = required(measured_links({server(), worker("a", 29e6, 30e6), worker("b", 30e6, 28e6)}, ""));
  Scenario s;
  use_measured(m, s);
  CHECK(s.nodes == 2);
  CHECK(s.ranks_per_node == 2);
  CHECK(s.servers == 1);
  CHECK(s.payload_bytes == 4e6);
  CHECK(s.network.bandwidth == 30e6);
  CHECK(s.node_bandwidths.empty());  // alike
  CHECK(s.goodput == 1.0);
  CHECK(s.network.latency_s == Approx((0.01 - 62500 / 30e6) / 2).epsilon(1e-9));
  CHECK(contains(measured_text(m), "30.00 MB/s"));
  CHECK(measured_json(m).at("links").size() == 2);
}

TEST_CASE("a slower link and the coordinator's placement are taken over") {
  const Json placement = {
      {"wire_ratio", {{"push", 0.25}, {"pull", 0.5}}},
      {"servers",
       {{{"host", 0}, {"colocated", true}}, {{"host", 3}, {"colocated", false}}, {{"host", 3}, {"colocated", false}}}}};
  const auto m =
      measured_links({server(placement), server(), server(), worker("a", 30e6, 1), worker("b", 1, 9e6)}, "j");
  REQUIRE(m);
  Scenario s;
  use_measured(*m, s);
  CHECK(s.servers == 1);
  CHECK(s.wire.push == 0.25);
  CHECK(s.wire.pull == 0.5);
  CHECK(s.node_bandwidths == std::vector<double>{30e6, 9e6});
}

TEST_CASE("without a job, with several, or before an exchange there is nothing to measure") {
  const auto message = [](const std::vector<Json>& statuses, const char* job) {
    const auto m = measured_links(statuses, job);
    REQUIRE(!m);
    return m.error().message;
  };
  CHECK(contains(message({server()}, ""), "no job is running"));
  CHECK(contains(message({worker("a", 1, 1), worker("b", 1, 1, "k")}, ""), "j, k"));
  CHECK(contains(message({worker("a", 1, 1)}, "x"), "--job x does not run"));
  CHECK(contains(message({worker("a", 0, 0)}, ""), "worker a has not seen"));
  CHECK(contains(message({Json::array(), Json({{"kind", 3}})}, ""), "no job is running"));
}

}  // namespace

}  // namespace tributary::plan_test
