// The fake itself: it finds the faults that it claims to find.
#include <doctest/doctest.h>

#include "tests/fake_device/fake_device_api.h"
#include "tests/unit/expect.h"

namespace tributary::fake_device_test {

using namespace testing;

namespace {

struct Fake {
  explicit Fake(std::uint32_t devices = 1, FakeFaults faults = {})
      : api({.devices = devices, .faults = std::move(faults)}) {
    for (std::uint32_t d = 0; d < devices; ++d) {
      streams.push_back(*api.create_stream(DeviceIndex(d), "s"));
      others.push_back(*api.create_stream(DeviceIndex(d), "t"));
      memory.push_back(static_cast<float*>(*api.allocate(DeviceIndex(d), kBytes, "test")));
    }
    REQUIRE(api.pin(DeviceIndex(0), host, "test"));
  }
  bool found(const std::string& part) const {
    for (const std::string& violation : api.violations()) {
      if (contains(violation, part)) return true;
    }
    return false;
  }
  std::vector<CommId> connect() {
    std::vector<DeviceIndex> devices;
    for (std::uint32_t d = 0; d < streams.size(); ++d) devices.push_back(DeviceIndex(d));
    const auto comms = *api.create_comms(devices);
    settle(comms);
    return comms;
  }
  void settle(const std::vector<CommId>& comms) {
    for (const CommId comm : comms) {
      while (!*api.comm_settled(comm)) {
      }
    }
  }
  static constexpr std::size_t kBytes = 4096;
  FakeDeviceApi api;
  std::vector<StreamId> streams, others;
  std::vector<float*> memory;
  std::vector<std::byte> host = std::vector<std::byte>(kBytes);
  std::byte* pinned = host.data();
};

}  // namespace

TEST_CASE("two streams that write and read the same memory need an event between them") {
  for (const bool ordered : {false, true}) {
    Fake fake;
    const EventId event = *fake.api.create_event(DeviceIndex(0), "e");
    REQUIRE(fake.api.copy_to_device(fake.streams[0], fake.memory[0], fake.pinned, 64));
    REQUIRE(fake.api.record(event, fake.streams[0]));
    if (ordered) REQUIRE(fake.api.wait(fake.others[0], event));
    REQUIRE(fake.api.copy_to_host(fake.others[0], fake.pinned + 1024, fake.memory[0], 64));
    fake.api.run_all();
    CHECK(fake.api.violations().empty() == ordered);
  }
}

TEST_CASE("a wait is for the record before it, and does nothing if there is none") {
  Fake fake;
  const EventId event = *fake.api.create_event(DeviceIndex(0), "e");
  REQUIRE(fake.api.wait(fake.others[0], event));
  REQUIRE(fake.api.copy_to_host(fake.others[0], fake.pinned, fake.memory[0], 64));
  REQUIRE(fake.api.copy_to_device(fake.streams[0], fake.memory[0], fake.pinned + 512, 64));
  REQUIRE(fake.api.record(event, fake.streams[0]));
  fake.api.run_all();
  CHECK(*fake.api.idle(fake.others[0]));
  CHECK(fake.found("is not ordered after"));
}

TEST_CASE("the host must wait for a copy before it touches pinned memory, by a callback or by asking") {
  for (const int how : {0, 1, 2}) {
    Fake fake;
    REQUIRE(fake.api.copy_to_host(fake.streams[0], fake.pinned, fake.memory[0], 64));
    bool called = false;
    if (how == 1) {
      REQUIRE(fake.api.call_host(
          fake.streams[0], [](void* flag) { *static_cast<bool*>(flag) = true; }, &called));
    }
    fake.api.run_all();
    CHECK(called == (how == 1));
    if (how == 2) CHECK(*fake.api.idle(fake.streams[0]));
    fake.api.host_access({fake.pinned, 64}, false);
    CHECK(fake.api.violations().empty() == (how != 0));
  }
}

TEST_CASE("memory that work may still touch is not to be freed, and calls in callbacks are found") {
  Fake fake;
  REQUIRE(fake.api.copy_to_host(fake.streams[0], fake.pinned, fake.memory[0], 64));
  fake.api.unpin(fake.host);
  CHECK(fake.found("is freed that"));

  Fake other;
  REQUIRE(other.api.call_host(
      other.streams[0], [](void* api) { (void)static_cast<FakeDeviceApi*>(api)->group_start(); }, &other.api));
  other.api.run_all();
  CHECK(other.found("group_start was called from a host callback"));
}

TEST_CASE("collectives give every rank its part, and order streams of different devices") {
  Fake fake(3);
  const auto comms = fake.connect();
  for (std::size_t d = 0; d < 3; ++d) {
    for (std::size_t i = 0; i < 6; ++i) fake.memory[d][i] = static_cast<float>(10 * d + i);
  }
  REQUIRE(fake.api.group_start());
  for (std::size_t d = 0; d < 3; ++d) {
    REQUIRE(fake.api.reduce_scatter(comms[d], fake.streams[d], fake.memory[d], fake.memory[d] + 100, 2));
  }
  REQUIRE(fake.api.group_end());
  fake.settle(comms);
  REQUIRE(fake.api.group_start());
  for (std::size_t d = 0; d < 3; ++d) {
    fake.memory[d][200 + d] = static_cast<float>(d + 1);
    REQUIRE(fake.api.all_gather(comms[d], fake.streams[d], fake.memory[d] + 200, 1));
  }
  REQUIRE(fake.api.group_end());
  fake.settle(comms);
  fake.api.run_all();
  for (std::size_t d = 0; d < 3; ++d) {
    CHECK(fake.memory[d][100] == 30.0f + 3.0f * static_cast<float>(2 * d));
    CHECK(fake.memory[d][101] == 33.0f + 3.0f * static_cast<float>(2 * d));
    CHECK(fake.memory[d][200] == 1.0f);
    CHECK(fake.memory[d][202] == 3.0f);
  }
  CHECK(fake.api.violations().empty());
}

TEST_CASE("NCCL's rules: groups, the same call and count everywhere, settled before the stream is used") {
  {
    Fake fake(2);
    const auto comms = fake.connect();
    REQUIRE(fake.api.all_gather(comms[0], fake.streams[0], fake.memory[0], 1));
    CHECK(fake.found("outside of a group"));
  }
  {
    Fake fake(2);
    const auto comms = fake.connect();
    REQUIRE(fake.api.group_start());
    REQUIRE(fake.api.all_gather(comms[0], fake.streams[0], fake.memory[0], 1));
    REQUIRE(fake.api.group_end());
    CHECK(fake.found("not every communicator"));
  }
  {
    Fake fake(2);
    const auto comms = fake.connect();
    REQUIRE(fake.api.group_start());
    REQUIRE(fake.api.all_gather(comms[0], fake.streams[0], fake.memory[0], 1));
    REQUIRE(fake.api.reduce_scatter(comms[1], fake.streams[1], fake.memory[1], fake.memory[1] + 9, 2));
    REQUIRE(fake.api.group_end());
    CHECK(fake.found("another collective"));
    CHECK(fake.found("count differs"));
  }
  {
    Fake fake(2);
    const auto comms = fake.connect();
    REQUIRE(fake.api.group_start());
    for (std::size_t d = 0; d < 2; ++d) REQUIRE(fake.api.all_gather(comms[d], fake.streams[d], fake.memory[d], 1));
    REQUIRE(fake.api.group_end());
    REQUIRE(fake.api.copy_to_host(fake.streams[0], fake.pinned, fake.memory[0], 4));
    CHECK(fake.found("before it was settled"));
  }
}

TEST_CASE("a collective that hangs lets go of each device when its own communicator is aborted") {
  FakeFaults faults;
  faults.collective = FakeFaults::Collective::kHangs;
  Fake fake(2, faults);
  const auto comms = fake.connect();
  REQUIRE(fake.api.group_start());
  for (std::size_t d = 0; d < 2; ++d) REQUIRE(fake.api.all_gather(comms[d], fake.streams[d], fake.memory[d], 1));
  REQUIRE(fake.api.group_end());
  fake.settle(comms);
  fake.api.run_all();
  CHECK_FALSE(*fake.api.idle(fake.streams[0]));
  fake.api.abort(comms[0]);
  fake.api.run_all();
  CHECK(*fake.api.idle(fake.streams[0]));
  CHECK_FALSE(*fake.api.idle(fake.streams[1]));
  fake.api.abort(comms[1]);
  fake.api.run_all();
  CHECK(*fake.api.idle(fake.streams[1]));
  CHECK(fake.api.aborted() == 2);
}

TEST_CASE("a communicator with a key settles when all its ranks have joined, and adds up over all of them") {
  Fake fake(2);
  const CommKey key = *fake.api.make_comm_key();
  const CommSeat seats[] = {{DeviceIndex(0), 0}, {DeviceIndex(1), 1}};
  const CommId first = (*fake.api.join_comms(key, 2, {&seats[0], 1}))[0];
  for (int i = 0; i < 100; ++i) CHECK_FALSE(*fake.api.comm_settled(first));
  const CommId second = (*fake.api.join_comms(key, 2, {&seats[1], 1}))[0];
  fake.settle({first, second});
  fake.memory[0][0] = 3.0f;
  fake.memory[1][0] = 4.0f;
  // Each on its own, as two processes do it.
  REQUIRE(fake.api.group_start());
  REQUIRE(fake.api.all_reduce(first, fake.streams[0], fake.memory[0], 8));
  REQUIRE(fake.api.group_end());
  fake.settle({first});
  fake.api.run_all();
  CHECK_FALSE(*fake.api.idle(fake.streams[0]));  // it waits for the other
  CHECK(fake.api.collectives() == 0);
  REQUIRE(fake.api.group_start());
  REQUIRE(fake.api.all_reduce(second, fake.streams[1], fake.memory[1], 8));
  REQUIRE(fake.api.group_end());
  fake.settle({second});
  fake.api.run_all();
  CHECK(fake.memory[0][0] == 7.0f);
  CHECK(fake.memory[1][0] == 7.0f);
  CHECK(fake.api.violations().empty());
  // One gives up: the other's next collective hangs until it does, too.
  fake.api.abort(first);
  REQUIRE(fake.api.all_reduce(second, fake.streams[1], fake.memory[1], 8));
  fake.settle({second});
  fake.api.run_all();
  CHECK_FALSE(*fake.api.idle(fake.streams[1]));
  fake.api.abort(second);
  fake.api.run_all();
  CHECK(*fake.api.idle(fake.streams[1]));
  CHECK(fake.api.live().communicators == 0);
}

TEST_CASE("two ranks of a communicator on one device are found, and so is a size that differs") {
  Fake fake(2);
  const CommSeat seats[] = {{DeviceIndex(0), 0}, {DeviceIndex(0), 1}};
  REQUIRE(fake.api.join_comms(*fake.api.make_comm_key(), 2, seats));
  CHECK(fake.found("two ranks of a communicator on one device"));
  const CommKey key = *fake.api.make_comm_key();
  const CommSeat first{DeviceIndex(0), 0}, second{DeviceIndex(1), 1};
  REQUIRE(fake.api.join_comms(key, 2, {&first, 1}));
  REQUIRE(fake.api.join_comms(key, 3, {&second, 1}));
  CHECK(fake.found("another size"));
  CHECK_FALSE(fake.api.join_comms(CommKey{}, 2, {&first, 1}));
}

}  // namespace tributary::fake_device_test
