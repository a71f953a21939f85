// All-reduce over devices: values, order, failures. On simulated devices, whose operations run in any order that the
// streams allow.
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/worker/allreduce/allreduce_engine_fixture.h"

namespace tributary::allreduce_engine_test {

using namespace testing;

namespace {

using Fault = FakeFaults::Collective;

struct Shape {
  std::uint32_t nodes, devices;
  const char* algorithm;
  bool always;
};
constexpr Shape kShapes[] = {{1, 1, "flat", false},         {1, 1, "hierarchical", true},  {1, 3, "flat", false},
                             {1, 3, "hierarchical", false}, {2, 1, "hierarchical", false}, {2, 2, "flat", false},
                             {3, 2, "hierarchical", false}, {2, 4, "hierarchical", false}, {2, 4, "flat", true}};

EngineSetup setup_of(const Shape& shape, std::uint64_t seed = 1) {
  EngineSetup setup{.nodes = shape.nodes,
                    .devices = shape.devices,
                    .algorithm = shape.algorithm,
                    .always = shape.always,
                    .seed = seed};
  return setup;
}

// Runs until an engine fails, with time passing if `let_time_pass`. Returns the engine's error.
std::string failure_of(const EngineSetup& setup, bool let_time_pass = false) {
  EngineCluster cluster(setup);
  const bool connected = cluster.connect();
  if (connected) {
    cluster.load();
    for (std::uint64_t round = 1; round <= 2 && !cluster.failed(); ++round) {
      if (!cluster.round(round)) break;
    }
  }
  if (let_time_pass) {
    CHECK_FALSE(cluster.failed());
    cluster.now_ns += 2 * setup.timeout_ms * 1'000'000;
    REQUIRE(cluster.until([&] { return cluster.failed(); }));
  }
  REQUIRE(cluster.failed());
  const std::string words = cluster.failures();
  for (const auto& node : cluster.nodes) CHECK(node->failures.size() <= 1);
  // Nothing more comes of what was under way.
  const auto versions = cluster.nodes[0]->versions;
  for (int i = 0; i < 3000; ++i) cluster.turn();
  if (!cluster.nodes[0]->failures.empty()) CHECK(cluster.nodes[0]->versions == versions);
  cluster.close();
  return words;
}

}  // namespace

TEST_CASE("all shapes end every round with the sums' step on every device, whatever the devices' order") {
  for (const Shape& shape : kShapes) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      CAPTURE(shape.nodes);
      CAPTURE(shape.devices);
      CAPTURE(shape.algorithm);
      CAPTURE(seed);
      EngineSetup setup = setup_of(shape, seed);
      setup.optimizer = seed == 1 ? "adagrad" : seed == 2 ? "sgd" : "adamw";
      EngineCluster cluster(setup);
      REQUIRE_MESSAGE(cluster.connect(), cluster.failures());
      cluster.load();
      CHECK(cluster.same_as_reference());
      for (std::uint64_t round = 1; round <= 4; ++round) {
        REQUIRE_MESSAGE(cluster.round(round, round * 1000), cluster.failures());
        CHECK(cluster.same_as_reference());
      }
      const bool collectives = cluster.nodes[0]->engine->plan().collectives();
      CHECK((cluster.api->collectives() > 0) == collectives);
      cluster.close();
    }
  }
}

TEST_CASE("weights of nodes are added, however large, and a round without any changes nothing") {
  for (const char* algorithm : {"flat", "hierarchical"}) {
    EngineCluster cluster(setup_of({2, 2, algorithm, false}));
    REQUIRE(cluster.connect());
    cluster.load();
    const std::uint64_t weights[][2] = {{3, 5}, {(1ull << 40) - 1, 123'456'789}, {0, 0}, {0, 7}};
    for (std::uint64_t round = 1; round <= 4; ++round) {
      const auto& weight = weights[round - 1];
      cluster.ready(0, weight[0]);
      cluster.ready(1, weight[1]);
      cluster.step_reference(weight[0] + weight[1]);
      REQUIRE(cluster.reached(round));
      CHECK(cluster.same_as_reference());
    }
    cluster.close();
  }
}

TEST_CASE("a chunk's state at the wanted round is handed out, and all of it at the end") {
  for (const Shape& shape : kShapes) {
    CAPTURE(shape.nodes);
    CAPTURE(shape.devices);
    CAPTURE(shape.algorithm);
    EngineCluster cluster(setup_of(shape));
    REQUIRE(cluster.connect());
    cluster.load();
    cluster.nodes[0]->wanted = Round(2);
    REQUIRE(cluster.round(1));
    REQUIRE(cluster.round(2));
    const auto expected = [&](std::uint32_t c) {
      const ChunkRange range = cluster.layout->chunk(ChunkIndex(c));
      std::vector<float> values(
          cluster.reference_parameters.begin() + static_cast<std::ptrdiff_t>(range.begin),
          cluster.reference_parameters.begin() + static_cast<std::ptrdiff_t>(range.begin + range.elements));
      for (const float* slot : cluster.reference->slots()) {
        values.insert(values.end(), slot + range.begin, slot + range.begin + range.elements);
      }
      values.push_back(static_cast<float>(cluster.reference->steps()[c]));
      return values;
    };
    for (std::uint32_t c = 0; c < cluster.layout->chunks(); ++c) CHECK(cluster.nodes[0]->captured.at(c) == expected(c));
    REQUIRE(cluster.round(3));

    auto& node = *cluster.nodes[0];
    for (auto& one : cluster.nodes) one->engine->abort_collectives();
    REQUIRE(cluster.until([&] { return node.engine->quiet(); }));
    std::ranges::fill(node.host_parameters, 0.0f);
    REQUIRE(node.engine->save(*node.host, [&] { return cluster.api->run_one(), true; }));
    CHECK(node.host_parameters == cluster.reference_parameters);
    for (std::size_t slot = 0; slot < node.host->slots().size(); ++slot) {
      CHECK(std::memcmp(node.host->slots()[slot], cluster.reference->slots()[slot],
                        cluster.layout->flat_elements() * sizeof(float)) == 0);
    }
    CHECK(std::ranges::equal(node.host->steps(), cluster.reference->steps()));
    cluster.close();
  }
}

TEST_CASE("a missing wait for either event is found by some order of the devices") {
  for (const char* event : {"summed", "stepped", "no such event"}) {
    bool found = false;
    for (std::uint64_t seed = 1; seed <= 20 && !found; ++seed) {
      EngineSetup setup = setup_of({2, 2, "hierarchical", false}, seed);
      setup.faults.ignored_event = event;
      EngineCluster cluster(setup);
      // Weights that are read too early can look like anything.
      if (cluster.connect()) {
        cluster.load();
        cluster.nodes[0]->wanted = Round(1);
        cluster.round(1);
      }
      for (const std::string& violation : cluster.api->violations())
        found |= contains(violation, "is not ordered after");
      for (auto& node : cluster.nodes) node->engine->abort_collectives();
      for (auto& node : cluster.nodes) cluster.until([&] { return node->engine->quiet(); });
    }
    CAPTURE(event);
    CHECK(found == (std::string(event) != "no such event"));
  }
}

TEST_CASE("communicators that cannot be made, or never settle, are told with the time and the devices") {
  EngineSetup setup = setup_of({2, 2, "flat", false});
  setup.faults.communicators_fail = "planned: no library";
  {
    EngineCluster cluster(setup);
    CHECK_FALSE(cluster.connect());
    CHECK(cluster.refusal.message == "planned: no library");
    cluster.close();
  }
  setup.faults = {};
  setup.faults.communicators_hang = true;
  std::string words = failure_of(setup, true);
  CHECK(contains(words, "the communicators of 4 ranks (ncclCommInitRankConfig) took longer than 1000 ms"));
  CHECK(contains(words, "device 1 (fake:1, GPU-fake-1, local rank 1)"));
  CHECK(contains(words, "NCCL_SOCKET_IFNAME"));

  // The other node never comes.
  EngineCluster alone(setup_of({2, 1, "hierarchical", false}));
  CHECK_FALSE(alone.connect([](std::uint32_t n) { return n == 0; }));
  CHECK_FALSE(alone.failed());
  alone.now_ns += 2'000'000'000;
  REQUIRE(alone.until([&] { return alone.failed(); }));
  CHECK(contains(alone.failures(), "the communicators of 2 ranks"));
  alone.close();
}

TEST_CASE("a group that has just ended is asked after again and again, later ones now and then") {
  EngineCluster cluster(setup_of({1, 2, "hierarchical", false}));
  REQUIRE(cluster.connect());
  cluster.load();
  AllreduceEngine& engine = *cluster.nodes[0]->engine;
  CHECK(engine.next_step_ns(cluster.now_ns) == AllreduceEngine::kIdle);
  cluster.api->hold_settling(true);
  for (std::uint32_t c = 0; c < cluster.layout->chunks(); ++c) engine.ready(ChunkIndex(c), {1, 0});
  const std::uint64_t began = cluster.now_ns;
  engine.step(began);
  CHECK(engine.next_step_ns(began) == began);
  CHECK(engine.next_step_ns(began + kSettleSpinNs - 1) == began + kSettleSpinNs - 1);
  const std::uint64_t later = began + kSettleSpinNs;
  CHECK(engine.next_step_ns(later) == later + kSettleStepNs);
  cluster.api->hold_settling(false);
  REQUIRE(cluster.reached(1));
  cluster.close();
}

TEST_CASE("connecting has its time as long as communicators get ready, however many there are") {
  EngineSetup setup = setup_of({2, 2, "hierarchical", false});
  EngineCluster cluster(setup);
  const std::uint64_t step = setup.timeout_ms * 1'000'000 * 9 / 10;
  cluster.api->let_connect(0);
  CHECK_FALSE(cluster.connect());
  const auto connected = [&] {
    return std::ranges::all_of(cluster.nodes, [](const auto& node) { return node->engine->connected(); });
  };
  const auto turns = [&] {
    for (int i = 0; i < 2000 && !cluster.failed(); ++i) cluster.turn();
  };
  SUBCASE("one after another") {
    // Each node makes one communicator within it and two across both. The last two need both nodes to connect.
    for (const std::uint64_t calls : {1, 4, 6}) {
      cluster.now_ns += step;
      CHECK_FALSE(connected());
      cluster.api->let_connect(calls);
      turns();
    }
    REQUIRE_MESSAGE(cluster.until(connected), cluster.failures());
    cluster.load();
    REQUIRE(cluster.round(1));
  }
  SUBCASE("none any more") {
    cluster.api->let_connect(4);
    turns();
    cluster.now_ns += step;
    turns();
    CHECK_FALSE(cluster.failed());
    cluster.now_ns += step;
    turns();
    REQUIRE(cluster.failed());
    CHECK(
        contains(cluster.failures(), "the communicators of 2 ranks (ncclCommInitRankConfig) took longer than 1000 ms"));
  }
  cluster.close();
}

TEST_CASE("what comes late from a device that hung finds what it writes into, though the engine is gone") {
  EngineSetup setup = setup_of({1, 2, "flat", false});
  setup.faults.kernel_hangs = 200;
  EngineCluster cluster(setup);
  REQUIRE(cluster.connect());
  cluster.load();
  for (std::uint64_t round = 1; round <= 20 && cluster.round(round, 1); ++round) {
  }
  auto& node = *cluster.nodes[0];
  node.engine->abort_collectives();
  CHECK_FALSE(cluster.until([&] { return node.engine->quiet(); }, 5000));
  node.engine->abandon();
  node.engine.reset();
  node.devices.reset();
  CHECK(cluster.api->live().blocks != 0);
  cluster.api->let_go();
  cluster.api->run_all();  // host functions of the last groups, among others
  CHECK(cluster.api->violations().empty());
}

TEST_CASE("a first exchange that hangs has a time-out, and names itself") {
  EngineSetup setup = setup_of({2, 2, "hierarchical", false});
  setup.faults.collective = Fault::kHangs;
  setup.faults.at = 0;
  CHECK(contains(failure_of(setup, true), "the first exchange, of zeros, took longer than 1000 ms"));
}

TEST_CASE("a hanging collective of a node alone has a time-out, one over nodes waits for their trainers") {
  EngineSetup setup = setup_of({1, 3, "flat", false});
  setup.faults.collective = Fault::kHangs;
  setup.faults.at = 9;
  CHECK(contains(failure_of(setup, true), "of round 1 took longer than 1000 ms"));

  EngineCluster cluster(setup_of({2, 2, "hierarchical", false}));
  REQUIRE(cluster.connect());
  cluster.load();
  cluster.ready(0, 1);
  for (int i = 0; i < 20'000; ++i) cluster.turn();
  cluster.now_ns += 3'600'000'000'000;
  for (int i = 0; i < 20'000; ++i) cluster.turn();
  CHECK_FALSE(cluster.failed());
  const auto waits = required(cluster.nodes[0]->engine->oldest());
  CHECK(waits.round == Round(1));
  CHECK(waits.chunk == cluster.nodes[0]->engine->plan().chunk_of(cluster.nodes[0]->engine->plan().groups() - 1, 0));
  CHECK_FALSE(cluster.nodes[1]->engine->oldest());
  cluster.ready(1, 1);
  cluster.step_reference(2);
  REQUIRE(cluster.reached(1));
  CHECK(cluster.same_as_reference());
  cluster.close();
}

TEST_CASE("a call that fails, and an error that comes later, end the job with the device's name") {
  for (const Shape& shape : {Shape{2, 2, "flat", false}, Shape{2, 2, "hierarchical", false}}) {
    for (const std::uint64_t at : {0u, 1u, 6u}) {
      CAPTURE(shape.algorithm);
      CAPTURE(at);
      EngineSetup setup = setup_of(shape);
      setup.faults.at = at;
      setup.faults.position = 1;
      setup.faults.collective = Fault::kCallFails;
      CHECK(contains(failure_of(setup), "planned failure"));
      setup.faults.collective = Fault::kFailsAsync;
      const std::string words = failure_of(setup);
      CHECK(contains(words, "all-reduce over GPUs failed: device"));
      CHECK(contains(words, "NCCL reports"));
      CHECK(contains(words, "planned asynchronous failure"));
    }
  }
}

TEST_CASE("a fault on a device is found and named, whether NCCL reports an error of its own or nothing") {
  for (const bool nccl_reports : {false, true}) {
    for (const Shape& shape :
         {Shape{2, 1, "hierarchical", false}, Shape{2, 2, "flat", false}, Shape{1, 2, "flat", false}}) {
      EngineSetup setup = setup_of(shape);
      setup.timeout_ms = 1'000'000;
      setup.faults.kernel_faults = 300;  // in the rounds
      setup.faults.collectives_report_faults = nccl_reports;
      EngineCluster cluster(setup);
      REQUIRE(cluster.connect());
      cluster.load();
      for (std::uint64_t round = 1; round <= 20 && cluster.round(round, 1); ++round) {
      }
      REQUIRE(cluster.until([&] { return cluster.now_ns += 1'000'000, cluster.failed(); }));
      CHECK(contains(cluster.failures(), "fake:"));  // whose it is
      CHECK(contains(cluster.failures(), "an illegal memory access was encountered"));
      CHECK(contains(cluster.api->lost(), "an illegal memory access was encountered"));
      for (const auto& node : cluster.nodes) {
        for (const Error& error : node->failures) CHECK(error.code == ErrorCode::kUnavailable);
      }
      cluster.close();
    }
  }
}

TEST_CASE("a copy that fails ends the job, too") {
  for (const std::uint64_t at : {0u, 40u}) {
    EngineSetup setup = setup_of({2, 1, "flat", false});
    setup.faults.copy_fails = at;
    EngineCluster cluster(setup);
    bool good = cluster.connect();
    if (good) {
      bool loaded = true;
      for (auto& node : cluster.nodes) {
        loaded &= node->engine->load(*node->host, [&] { return cluster.api->run_one(), true; }).has_value();
      }
      good = loaded && cluster.round(1) && cluster.round(2);
    }
    CHECK_FALSE(good);
    cluster.close();
  }
}

TEST_CASE("collectives that are late are waited for") {
  EngineSetup setup = setup_of({2, 2, "hierarchical", false});
  setup.faults.collective = Fault::kLate;
  setup.faults.at = 3;
  setup.faults.turns = 5000;
  EngineCluster cluster(setup);
  REQUIRE(cluster.connect());
  cluster.load();
  for (std::uint64_t round = 1; round <= 2; ++round) REQUIRE(cluster.round(round));
  CHECK(cluster.same_as_reference());
  cluster.close();
}

}  // namespace tributary::allreduce_engine_test
