// The real DeviceApi on the first device of this machine: against the fake's semantics, under the engine, and with
// another process that opens what is lent. Without a device every case fails and says why.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "common/daemon/log.h"
#include "kernels/cuda_copy.h"
#include "session/trainer_device.h"
#include "tests/fake_device/fake_device_api.h"
#include "tests/gpu/required_library.h"
#include "tests/unit/required.h"
#include "tests/unit/worker/reduce/numbered_reducer.h"
#include "worker/device/cuda_device_api.h"
#include "worker/device/device_blocks.h"
#include "worker/device/device_reducer.h"
#include "worker/reduce/host_reducer.h"

using namespace tributary;
using namespace tributary::testing;

namespace {

constexpr const char* kPushes[] = {"bf16", "fp16", "int8", "onebit", "topk:0.01", "topk:0.03"};

std::shared_ptr<DeviceApi> real_device() {
  static const auto api = make_cuda_device_api();  // starting the driver takes a second
  return required(api);
}

std::vector<float> values_of(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// A stream with device and pinned memory on either api, in the same words.
class Bench {
 public:
  explicit Bench(DeviceApi& api) : api_(api), host_(api), stream_(required(api.create_stream(DeviceIndex(0), "test"))) {
    pinned_ = required(host_.take_pinned(DeviceIndex(0), kPinned, "test"))->data();
  }
  ~Bench() {
    finish();
    for (void* block : blocks_) api_.free(DeviceIndex(0), block);
    api_.destroy_stream(stream_);
  }
  std::byte* device(std::size_t bytes) {
    blocks_.push_back(required(api_.allocate(DeviceIndex(0), bytes, "test")));
    return static_cast<std::byte*>(blocks_.back());
  }
  float* device(const std::vector<float>& values) {
    std::byte* memory = device(values.size() * sizeof(float));
    std::memcpy(pinned_, values.data(), values.size() * sizeof(float));
    required(api_.copy_to_device(stream_, memory, pinned_, values.size() * sizeof(float)));
    finish();
    return reinterpret_cast<float*>(memory);
  }
  std::vector<std::byte> read(const void* memory, std::size_t bytes) {
    required(api_.copy_to_host(stream_, pinned_, memory, bytes));
    finish();
    return {pinned_, pinned_ + bytes};
  }
  void finish() {
    if (auto* fake = dynamic_cast<FakeDeviceApi*>(&api_)) fake->run_all();
    while (!required(api_.idle(stream_))) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  DeviceApi& api() { return api_; }
  StreamId stream() const { return stream_; }

 private:
  static constexpr std::size_t kPinned = 8u << 20;
  DeviceApi& api_;
  DeviceBlocks host_;
  const StreamId stream_;
  std::byte* pinned_ = nullptr;
  std::vector<void*> blocks_;
};

// Everything that an encoding leaves behind, over two rounds.
std::vector<std::vector<std::byte>> encoded(DeviceApi& api, EncodingSpec spec, std::size_t elements,
                                            std::uint32_t inputs) {
  Bench bench(api);
  const auto encoding = make_encoding(spec);
  std::vector<const float*> gradients;
  for (std::uint32_t i = 0; i < inputs; ++i) gradients.push_back(bench.device(values_of(elements, 7 + i)));
  std::byte* frame = bench.device(encoding->bytes(elements));
  std::byte* scratch = bench.device(std::max<std::size_t>(api.encode_scratch_bytes(spec, elements, inputs), 16));
  float* residuals[2] = {bench.device(std::vector<float>(elements)), bench.device(std::vector<float>(elements))};
  std::vector<std::vector<std::byte>> out;
  for (const std::size_t round : {0u, 1u}) {
    DeviceApi::Encode work{
        .encoding = spec, .inputs = gradients, .elements = elements, .frame = frame, .scratch = scratch};
    if (encoding->keeps_residual()) {
      work.residual_before = residuals[round];
      work.residual = residuals[1 - round];
    }
    required(api.encode(bench.stream(), work));
    out.push_back(bench.read(frame, encoding->bytes(elements)));
    out.push_back(bench.read(residuals[1 - round], elements * sizeof(float)));
  }
  return out;
}

struct Frames final : ReduceListener {
  void reduced(LaneChunk& chunk) override {
    frames[chunk.index.value] = {chunk.gradient.frame.begin(), chunk.gradient.frame.end()};
  }
  void delivered(LaneChunk&, Version) override { ++deliveries; }
  void reducer_failed(Error error) override { failure = error.message; }
  std::map<std::uint32_t, std::vector<std::byte>> frames;
  std::size_t deliveries = 0;
  std::string failure;
};

template <class Condition>
bool wait_for(DeviceReducer& reducer, const Frames& lane, Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition() && lane.failure.empty()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    pollfd item{reducer.wake_fd(), POLLIN, 0};
    ::poll(&item, 1, 100);
    reducer.poll();
  }
  CHECK(lane.failure.empty());
  return lane.failure.empty();
}

// `ranks` on the first device, through the engine and its thread: frames must be the host's.
void reduce_on_device(std::uint32_t ranks, EncodingSpec push, EncodingSpec pull, bool always) {
  CAPTURE(ranks);
  CAPTURE(encoding_name(push.id));
  CAPTURE(always);
  const auto api = real_device();
  const ShardSlots one{};
  const auto layout =
      std::make_shared<const Layout>(required(Layout::make({{"w", {(3u << 20) + 100}}}, 256u << 10, {&one, 1})));
  std::vector<ChunkIndex> chunks;
  for (std::uint32_t c = 0; c < layout->chunks(); ++c) chunks.push_back(ChunkIndex(c));

  DevicePlan plan{.layout = layout,
                  .push = make_encoding(push),
                  .pull = make_encoding(pull),
                  .devices = {DeviceIndex(0)},
                  .always_collectives = always};
  plan.position_of_rank.assign(ranks, 0);
  const auto logger = quiet_logger();
  const auto reduction = required(DeviceReduction::create(api, std::move(plan), {}, logger));
  Frames lane, host;
  LaneChunks mine(layout, Round(0)), theirs(layout, Round(0));
  auto reducer = required(DeviceReducer::create(reduction, mine, lane));
  const testing::NumberedReducer by_device{mine, *reducer};

  std::vector<std::vector<float>> gradients;
  std::vector<const float*> pointers;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    gradients.push_back(values_of(layout->flat_elements(), 100 + rank));
    const std::size_t bytes = gradients.back().size() * sizeof(float);
    REQUIRE(kernels::cuda::copy_and_wait(reduction->memory().gradients(rank, 0), gradients.back().data(), bytes) ==
            cudaSuccess);
  }
  for (const auto& gradient : gradients) pointers.push_back(gradient.data());
  std::vector<float> parameters(layout->flat_elements());
  HostReducer on_host(theirs, pointers, parameters.data(), push, pull, host);
  const testing::NumberedReducer reference{theirs, on_host};

  const std::vector<float> start = values_of(layout->flat_elements(), 5);
  for (const ChunkIndex chunk : chunks) {
    const ChunkRange range = layout->chunk(chunk);
    const auto values = std::as_bytes(std::span(start).subspan(range.begin, range.elements));
    by_device.deliver(chunk, Version(0), true, values);
    reference.deliver(chunk, Version(0), true, values);
  }
  REQUIRE(wait_for(*reducer, lane, [&] { return lane.deliveries == chunks.size(); }));

  const auto pulled = make_encoding(pull);
  std::vector<float> estimate = start;
  for (std::uint64_t round = 1; round <= 3; ++round) {
    lane.frames.clear();
    lane.deliveries = 0;
    for (const ChunkIndex chunk : chunks) {
      by_device.reduce(chunk, Round(round), 1, false);
      reference.reduce(chunk, Round(round), 1, false);
    }
    REQUIRE(wait_for(*reducer, lane, [&] { return lane.frames.size() == chunks.size(); }));
    for (const ChunkIndex chunk : chunks) CHECK(lane.frames[chunk.value] == host.frames[chunk.value]);
    const std::vector<float> target = values_of(layout->flat_elements(), static_cast<std::uint32_t>(50 + round));
    for (const ChunkIndex chunk : chunks) {
      const ChunkRange range = layout->chunk(chunk);
      std::vector<std::byte> frame(pulled->bytes(range.elements));
      pulled->encode_update(target.data() + range.begin, range.elements, 0, range.elements,
                            estimate.data() + range.begin, frame.data());
      by_device.release(chunk);
      reference.release(chunk);
      by_device.deliver(chunk, Version(round), false, frame);
      reference.deliver(chunk, Version(round), false, frame);
    }
    REQUIRE(wait_for(*reducer, lane, [&] { return lane.deliveries == chunks.size(); }));
    std::vector<float> got(parameters.size());
    REQUIRE(kernels::cuda::copy_and_wait(got.data(), reduction->memory().parameters(0, 0),
                                         got.size() * sizeof(float)) == cudaSuccess);
    CHECK(std::memcmp(got.data(), parameters.data(), got.size() * sizeof(float)) == 0);
  }
  CHECK(reducer->busy_ns() > 0);
}

}  // namespace

TEST_CASE("sums, encodings and decodings on the device are the fake's, bit by bit") {
  const auto real = real_device();
  for (const std::size_t elements : {16u, 1008u, 4096u, 70'000u / 16 * 16, 1u << 18}) {
    CAPTURE(elements);
    for (const char* name : kPushes) {
      CAPTURE(name);
      for (const std::uint32_t inputs : {1u, 3u, 9u}) {
        FakeDeviceApi fake({.devices = 1});
        CHECK(encoded(*real, *parse_encoding(name), elements, inputs) ==
              encoded(fake, *parse_encoding(name), elements, inputs));
        CHECK(fake.violations().empty());
      }
    }
    const auto applied = [&](DeviceApi& api, EncodingSpec spec) {
      const auto encoding = make_encoding(spec);
      std::vector<float> estimate = values_of(elements, 3);
      const std::vector<float> target = values_of(elements, 4);
      Bench bench(api);
      float* parameters = bench.device(estimate);
      std::vector<std::byte> frame(encoding->bytes(elements));
      encoding->encode_update(target.data(), elements, 0, elements, estimate.data(), frame.data());
      frame.resize((frame.size() + 3) / 4 * 4);
      std::vector<float> words(frame.size() / 4);
      std::memcpy(words.data(), frame.data(), frame.size());
      required(
          api.apply(bench.stream(), spec, reinterpret_cast<std::byte*>(bench.device(words)), elements, parameters));
      return bench.read(parameters, elements * sizeof(float));
    };
    for (const EncodingId id : {EncodingId::kBf16, EncodingId::kFp16, EncodingId::kInt8Delta}) {
      FakeDeviceApi fake({.devices = 1});
      CHECK(applied(*real, id) == applied(fake, id));
    }
  }
}

TEST_CASE("events order streams, and a host callback runs after what is before it") {
  const auto api = real_device();
  Bench first(*api), second(*api);
  const EventId event = required(api->create_event(DeviceIndex(0), "test"));
  const std::size_t bytes = 4u << 20;
  std::byte* memory = first.device(bytes);
  DeviceBlocks host(*api);
  std::byte* pinned = required(host.take_pinned(DeviceIndex(0), 2 * bytes, "test"))->data();
  std::memset(pinned, 0x5a, bytes);
  std::atomic<bool> called{false};
  required(api->copy_to_device(first.stream(), memory, pinned, bytes));
  required(api->record(event, first.stream()));
  required(api->wait(second.stream(), event));
  required(api->copy_to_host(second.stream(), pinned + bytes, memory, bytes));
  required(api->call_host(
      second.stream(), [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); }, &called));
  second.finish();
  CHECK(called.load());
  CHECK(required(api->reached(event)));
  CHECK(std::memcmp(pinned, pinned + bytes, bytes) == 0);
  api->destroy_event(event);
}

TEST_CASE("memory that there is not is refused in words, and the device works on") {
  const auto api = real_device();
  const auto refused = api->allocate(DeviceIndex(0), std::size_t{1} << 50, "far too much");
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == ErrorCode::kLimit);
  CHECK(refused.error().message.find("far too much") != std::string::npos);
  Bench bench(*api);
  CHECK(bench.read(bench.device(values_of(64, 1)), 256).size() == 256);
}

TEST_CASE("one, two and four ranks on one device are reduced to the host's bits, with every encoding") {
  for (const std::uint32_t ranks : {1u, 2u, 4u}) {
    reduce_on_device(ranks, {}, {}, false);
    for (const char* push : kPushes) reduce_on_device(ranks, *parse_encoding(push), EncodingId::kInt8Delta, false);
  }
}

TEST_CASE("nccl = always runs the collectives of one device") {
  const auto version = real_device()->collectives_version();
  if (!version) return skip_without("nccl", version.error());  // one device works without it
  MESSAGE(*version);
  for (const std::uint32_t ranks : {1u, 4u}) {
    reduce_on_device(ranks, {}, EncodingId::kBf16, true);
    reduce_on_device(ranks, EncodingId::kInt8, {}, true);
  }
}

TEST_CASE("another process opens lent memory, reads it and writes it") {
  const auto api = real_device();
  Bench bench(*api);
  const std::vector<float> before = values_of(1000, 9);
  float* memory = bench.device(before);
  const IpcHandle handle = required(api->export_memory(DeviceIndex(0), memory));
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  FILE* child = ::popen(("'" + self + "' --no-skip --test-case='the other process*'").c_str(), "w");
  REQUIRE(child);
  for (const std::byte byte : handle.bytes) std::fprintf(child, "%u ", std::to_integer<unsigned>(byte));
  CHECK(::pclose(child) == 0);
  const auto bytes = bench.read(memory, before.size() * sizeof(float));
  std::vector<float> after(before.size());
  std::memcpy(after.data(), bytes.data(), bytes.size());
  for (std::size_t i = 0; i < after.size(); ++i) REQUIRE(after[i] == 2.0f * before[i]);
}

// Started by the case above, with the handle on its standard input.
TEST_CASE("the other process" * doctest::skip()) {
  IpcHandle handle;
  for (std::byte& byte : handle.bytes) {
    unsigned value = 0;
    std::cin >> value;
    REQUIRE(std::cin.good());
    byte = static_cast<std::byte>(value);
  }
  const auto opener = required(make_cuda_trainer_device(0));
  auto* memory = static_cast<float*>(required(opener->open(handle.bytes)));
  std::vector<float> values(1000);
  const std::size_t bytes = values.size() * sizeof(float);
  REQUIRE(kernels::cuda::copy_and_wait(values.data(), memory, bytes) == cudaSuccess);
  CHECK(values == values_of(1000, 9));
  for (float& value : values) value *= 2.0f;
  REQUIRE(kernels::cuda::copy_and_wait(memory, values.data(), bytes) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  opener->close(memory);
}
