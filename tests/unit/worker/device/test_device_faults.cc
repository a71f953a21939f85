// Faults: planted bugs that the fake must find, and failures after which the engine must end cleanly.
#include <doctest/doctest.h>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/worker/device/device_fixture.h"

namespace tributary::device_faults_test {

using namespace testing;

namespace {

using Fault = FakeFaults::Collective;

// Rounds with answers, without looking at values; false if the node failed or nothing went on.
bool rounds(DeviceNode& node, std::uint64_t count) {
  std::vector<std::byte> answer(node.layout->chunk_elements() * sizeof(float));
  const auto bytes = [&](ChunkIndex chunk) { return node.layout->chunk(chunk).elements * sizeof(float); };
  for (const ChunkIndex chunk : node.shuffled_chunks()) {
    node.reducer(chunk).deliver(chunk, Version(0), true, std::span(answer).first(bytes(chunk)));
  }
  const auto all_there = [&] { return node.delivered().size() == node.layout->chunks(); };
  const auto over = [&] { return all_there() || node.failed(); };
  if (!node.until(over) || node.failed()) return false;
  for (std::uint64_t round = 1; round <= count; ++round) {
    node.forget();
    for (std::uint32_t rank = 0; rank < node.ranks(); ++rank) node.gradient(rank);
    for (const ChunkIndex chunk : node.shuffled_chunks()) {
      node.reducer(chunk).reduce(chunk, Round(round), 1, false);
      node.turn();
    }
    std::size_t answered = 0;
    const auto& pull = node.reduction->plan().pull;
    const bool went_on = node.until([&] {
      while (answered < node.reduced().size() && !node.failed()) {
        const ChunkIndex chunk = node.reduced()[answered++].chunk;
        node.reducer(chunk).release(chunk);
        node.reducer(chunk).deliver(chunk, Version(round), false,
                                    std::span(answer).first(pull->bytes(node.layout->chunk(chunk).elements)));
      }
      return over();
    });
    if (!went_on || node.failed()) return false;
  }
  return true;
}

DeviceSetup four_devices(std::uint64_t seed) {
  DeviceSetup setup;
  setup.devices = 4;
  setup.ranks_per_device = 2;
  setup.lanes = 2;
  setup.seed = seed;
  setup.elements = 41 * kDeviceChunk + 3;
  setup.push = setup.pull = EncodingSpec(EncodingId::kBf16);
  return setup;
}

// Runs into the failure that the setup plans, and checks what must hold whatever it is. The message.
std::string failure_of(const DeviceSetup& setup, bool let_time_pass = false) {
  DeviceNode node(setup);
  REQUIRE(node.open());
  if (let_time_pass) {
    std::vector<std::byte> answer(node.layout->chunk_elements() * sizeof(float));
    for (const ChunkIndex chunk : node.shuffled_chunks()) {
      node.reducer(chunk).deliver(chunk, Version(0), true,
                                  std::span(answer).first(node.layout->chunk(chunk).elements * sizeof(float)));
    }
    for (int i = 0; i < 20'000; ++i) node.turn();
    CHECK_FALSE(node.failed());  // a second has not passed yet
    node.now_ns += 2 * setup.timeout_ms * 1'000'000;
    for (int i = 0; i < 100; ++i) node.turn();
  } else {
    CHECK_FALSE(rounds(node, 3));
  }
  REQUIRE(node.failed());
  for (int i = 0; i < 2000; ++i) node.turn();
  for (const auto& lane : node.lanes) REQUIRE(lane->failures.size() == 1);
  const std::size_t reduced = node.reduced().size(), delivered = node.delivered().size();
  CHECK(node.api->aborted() == (setup.devices > 1 || setup.always_collectives ? setup.devices : 0));
  // Nothing more comes of what was under way, nor of new orders.
  for (int i = 0; i < 5000; ++i) node.turn();
  CHECK(node.reduced().size() == reduced);
  CHECK(node.delivered().size() == delivered);
  const Error error = node.lanes[0]->failures[0];
  CHECK(error.code == ErrorCode::kDevice);
  node.close();
  return error.message;
}

}  // namespace

TEST_CASE("a missing wait for any of the events is found by some order of the devices") {
  // More groups than staging, so that every slot is used again while the devices are behind.
  const auto found = [](const std::string& label, EncodingSpec pull) {
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
      DeviceSetup setup = four_devices(seed);
      setup.pull = pull;
      setup.faults.ignored_event = label;
      DeviceNode node(setup);
      REQUIRE(node.open());
      rounds(node, 1);
      const auto violations = node.api->violations();
      node.lanes.clear();
      node.reduction.reset();
      for (const std::string& violation : violations) {
        if (contains(violation, "is not ordered after")) return true;
      }
    }
    return false;
  };
  for (const char* event : {"encoded", "sent", "arrived", "decoded"}) {
    CAPTURE(event);
    CHECK(found(event, EncodingSpec(EncodingId::kBf16)));
  }
  CHECK(found("arrived", EncodingSpec()));  // the answer is copied straight to the parameters
  CHECK_FALSE(found("no such event", EncodingSpec(EncodingId::kBf16)));
}

TEST_CASE("a collective whose call fails ends the job with device, rank and operation") {
  for (const std::uint64_t at : {0ull, 1ull, 11ull, 12ull, 20ull}) {
    DeviceSetup setup = four_devices(at + 1);
    setup.faults.collective = Fault::kCallFails;
    setup.faults.at = at;
    setup.faults.position = 2;
    const std::string message = failure_of(setup);
    CAPTURE(message);
    CHECK(contains(message, "fake:2"));
    CHECK((contains(message, "ncclAllGather") || contains(message, "ncclReduceScatter")));
    CHECK(contains(message, "planned failure"));
  }
}

TEST_CASE("a collective that fails asynchronously is never taken for a sum") {
  for (const std::uint64_t at : {3ull, 12ull, 15ull, 25ull}) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      DeviceSetup setup = four_devices(seed);
      setup.faults.collective = Fault::kFailsAsync;
      setup.faults.at = at;
      setup.faults.position = 1;
      const std::string message = failure_of(setup);
      CAPTURE(message);
      CHECK(contains(message, "device 1 (fake:1, GPU-fake-1, local ranks 1, 5)"));
      CHECK(contains(message, "planned asynchronous failure"));
    }
  }
}

TEST_CASE("a collective that hangs is aborted after its time, and every device it hangs on is named") {
  DeviceSetup setup = four_devices(3);
  setup.faults.collective = Fault::kHangs;
  setup.faults.at = 2;
  const std::string message = failure_of(setup, true);
  CAPTURE(message);
  CHECK(contains(message, "ncclAllGather of chunks"));
  CHECK(contains(message, "device 0 (fake:0, GPU-fake-0, local ranks 0, 4)"));
  CHECK(contains(message, "device 3 (fake:3"));
  CHECK(contains(message, "took longer than 1000 ms"));
  CHECK(contains(message, "collective_timeout_ms"));
}

TEST_CASE("a reduce-scatter that hangs is told from a gather") {
  DeviceSetup setup = four_devices(4);
  DeviceNode node([&] {
    setup.faults.collective = Fault::kHangs;
    setup.faults.at = 0;
    return setup;
  }());
  REQUIRE(node.open());
  for (std::uint32_t rank = 0; rank < node.ranks(); ++rank) node.gradient(rank);
  for (const ChunkIndex chunk : node.shuffled_chunks()) node.reducer(chunk).reduce(chunk, Round(1), 1, false);
  for (int i = 0; i < 20'000; ++i) node.turn();
  CHECK(node.reduced().empty());
  node.now_ns += 2'000'000'000;
  REQUIRE(node.until([&] { return node.failed(); }));
  const std::string message = node.lanes[1]->failures[0].message;
  CAPTURE(message);
  CHECK(contains(message, "ncclReduceScatter of chunk"));
  node.close();
}

TEST_CASE("an answer whose copy hangs holds back no sum of the node, and is named") {
  DeviceSetup setup = four_devices(12);
  setup.faults.kernel_hangs = 0;
  DeviceNode node(setup);
  REQUIRE(node.open());
  const std::vector<std::byte> answer(node.layout->chunk_elements() * sizeof(float));
  for (std::uint32_t c = 0; c < setup.devices; ++c) {
    node.reducer(ChunkIndex(c)).deliver(ChunkIndex(c), Version(0), true, answer);
  }
  for (int i = 0; i < 2000; ++i) node.turn();  // all that can be done for it
  for (std::uint32_t rank = 0; rank < node.ranks(); ++rank) node.gradient(rank);
  for (const ChunkIndex chunk : node.shuffled_chunks()) {
    if (chunk.value >= setup.devices) node.reducer(chunk).reduce(chunk, Round(1), 1, false);
  }
  CHECK(node.until([&] { return node.reduced().size() == node.layout->chunks() - setup.devices; }));
  CHECK(node.delivered().empty());
  SUBCASE("it goes on") {
    node.api->let_go();
    CHECK(node.until([&] { return node.delivered().size() == setup.devices; }));
    CHECK(node.api->mixed_streams().empty());
  }
  SUBCASE("it does not") {
    node.now_ns += 2'000'000'000;
    REQUIRE(node.until([&] { return node.failed(); }));
    const std::string message = node.lanes[0]->failures[0].message;
    CHECK(contains(message, "the copy to the device of chunks 0 to 3 took longer than 1000 ms"));
    CHECK(contains(message, " on device "));
    node.api->let_go();
  }
  node.close();
}

TEST_CASE("an answer is copied and decoded while a sum is not on its streams yet") {
  for (const EncodingId pull : {EncodingId::kFp32, EncodingId::kBf16}) {
    DeviceSetup setup = four_devices(14);
    setup.pull = EncodingSpec(pull);
    DeviceNode node(setup);
    REQUIRE(node.open());
    for (int i = 0; i < 2000; ++i) node.turn();  // the communicators connect
    node.api->hold_settling(true);
    for (std::uint32_t rank = 0; rank < node.ranks(); ++rank) node.gradient(rank);
    for (std::uint32_t d = 0; d < setup.devices; ++d) {
      node.reducer(ChunkIndex(d)).reduce(ChunkIndex(d), Round(1), 1, false);
    }
    node.step();
    const std::vector<float> ones(node.layout->chunk_elements(), 1.0f);
    std::vector<std::byte> answer(node.reduction->plan().pull->bytes(ones.size()));
    node.reduction->plan().pull->encode(ones.data(), ones.size(), 0, ones.size(), nullptr, answer.data());
    for (std::uint32_t d = 0; d < setup.devices; ++d) {
      const ChunkIndex chunk(setup.devices + d);
      node.reducer(chunk).deliver(chunk, Version(1), false, answer);
    }
    node.step();
    node.api->run_all();
    for (std::uint32_t d = 0; d < setup.devices; ++d) {
      const std::uint64_t begin = node.layout->chunk(ChunkIndex(setup.devices + d)).begin;
      CHECK(same_bits(node.parameters(d).subspan(begin, ones.size()), ones));
    }
    CHECK(node.reduced().empty());
    node.api->hold_settling(false);
    CHECK(node.until([&] { return node.reduced().size() + node.delivered().size() == 2 * setup.devices; }));
    node.close();
  }
}

TEST_CASE("groups of chunks that are ready together are one NCCL group") {
  DeviceNode node(four_devices(13));
  REQUIRE(node.open());
  const std::vector<std::byte> answer(node.layout->chunk_elements() * sizeof(float));
  const auto bytes = [&](ChunkIndex chunk) { return node.layout->chunk(chunk).elements * sizeof(float); };
  const std::size_t groups = node.reduction->plan().groups();
  for (const ChunkIndex chunk : node.shuffled_chunks()) {
    node.reducer(chunk).deliver(chunk, Version(0), true, std::span(answer).first(bytes(chunk)));
  }
  node.step();
  while (node.api->run_one()) {
  }
  CHECK(node.until([&] { return node.delivered().size() == node.layout->chunks(); }));
  const std::size_t delivered = node.api->groups();
  CHECK(delivered < groups);
  for (std::uint32_t rank = 0; rank < node.ranks(); ++rank) node.gradient(rank);
  for (const ChunkIndex chunk : node.shuffled_chunks()) node.reducer(chunk).reduce(chunk, Round(1), 1, false);
  CHECK(node.until([&] { return node.reduced().size() == node.layout->chunks(); }));
  CHECK(node.api->groups() - delivered < groups);  // two at a time have staging memory here
  CHECK(node.api->collectives() == 2 * groups);
  node.close();
}

TEST_CASE("a collective that is late, but within its time, is waited for") {
  DeviceSetup setup = four_devices(5);
  setup.faults.collective = Fault::kLate;
  setup.faults.at = 13;
  setup.faults.turns = 5000;
  DeviceNode node(setup);
  REQUIRE(node.open());
  CHECK(rounds(node, 2));
  CHECK(node.api->aborted() == 0);
  node.close();
}

TEST_CASE("communicators that never connect are given up after their time") {
  DeviceSetup setup = four_devices(6);
  setup.faults.communicators_hang = true;
  const std::string message = failure_of(setup, true);
  CAPTURE(message);
  CHECK(contains(message, "ncclCommInitRankConfig"));
  CHECK(contains(message, "device 2 (fake:2"));
}

TEST_CASE("a copy that fails ends the job, with one device and with several") {
  for (const std::uint32_t devices : {1u, 4u}) {
    for (const std::uint64_t at : {0ull, 7ull, 60ull}) {
      DeviceSetup setup = four_devices(7 + at);
      setup.devices = devices;
      setup.faults.copy_fails = at;
      const std::string message = failure_of(setup);
      CAPTURE(message);
      CHECK(contains(message, "copy_to_"));
      CHECK(contains(message, "planned failure"));
    }
  }
}

TEST_CASE("a residual that is waited for when the devices fail is reported as none") {
  DeviceSetup setup = four_devices(8);
  setup.push = EncodingSpec(EncodingId::kInt8);
  setup.faults.copy_fails = 0;
  DeviceNode node(setup);
  REQUIRE(node.open());
  CHECK(node.reducer(ChunkIndex(0)).residual(ChunkIndex(0)).empty());
  node.lanes[0]->reducer->poll();
  REQUIRE(node.lanes[0]->failures.size() == 1);
  node.close();
}

TEST_CASE("a lane that comes after the failure hears of it, too") {
  DeviceSetup setup = four_devices(9);
  setup.lanes = 1;
  setup.faults.communicators_hang = true;
  DeviceNode node(setup);
  REQUIRE(node.open());
  DeviceNode::Lane late(node);
  LaneChunks none(node.layout, Round(0), 1, 2);  // its chunks have another lane already
  node.step();
  node.now_ns += 5'000'000'000;
  node.step();
  auto reducer = required(DeviceReducer::create(node.reduction, none, late));
  reducer->poll();
  CHECK(late.failures.size() == 1);
  reducer.reset();
  node.close();
}

TEST_CASE("memory that does not suffice refuses the job and leaves nothing behind") {
  DeviceSetup setup = four_devices(10);
  setup.push = EncodingSpec(EncodingId::kInt8);
  std::size_t refused = 0;
  // From too little for anything to enough.
  for (std::size_t bytes = 16u << 10; bytes <= 4u << 20; bytes *= 2) {
    setup.device_bytes = bytes;
    DeviceNode node(setup);
    if (!node.open()) {
      ++refused;
      CHECK(node.refusal.code == ErrorCode::kLimit);
      CHECK(contains(node.refusal.message, "fake:0"));
    }
    node.close();
  }
  CHECK(refused > 2);
  CHECK(refused < 9);
  setup.device_bytes = 1u << 30;
  setup.pinned_bytes = 100'000;
  DeviceNode node(setup);
  CHECK_FALSE(node.open());
  CHECK(contains(node.refusal.message, "pinned memory"));
  node.close();
}

TEST_CASE("without NCCL several devices are refused with its words, one device works") {
  DeviceSetup setup = four_devices(11);
  setup.faults.communicators_fail = "libnccl.so.2 was not found";
  DeviceNode node(setup);
  CHECK_FALSE(node.open());
  CHECK(node.refusal.message == "libnccl.so.2 was not found");
  node.close();
  setup.devices = 1;
  DeviceNode alone(setup);
  REQUIRE(alone.open());
  CHECK(rounds(alone, 1));
  alone.close();
}

}  // namespace tributary::device_faults_test
