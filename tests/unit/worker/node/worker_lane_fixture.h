// A worker's real lanes between a trainer that the test plays and a small server of its own.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "common/daemon/log.h"
#include "common/wire/codec.h"
#include "common/wire/zmq_util.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "worker/node/lane.h"

namespace tributary::testing {

inline constexpr std::uint64_t kLaneChunkElements = 16 << 10;  // 64 KiB: large enough to be lent, not copied, by ZeroMQ

// One lane of a server with plain SGD of learning rate 1, for one node and fp32: answers what real ones answer.
class FakeServerLane {
 public:
  // at_start: run first on the server's thread.
  explicit FakeServerLane(std::function<void()> at_start = [] {}) : socket_(context_, zmq::socket_type::router) {
    set_common_options(socket_, kMaxChunkBytes + 4096, 10'000);
    endpoint_ = *bind_endpoint(socket_, "tcp://127.0.0.1:*");
    thread_ = std::thread([this, at_start = std::move(at_start)] {
      at_start();
      run();
    });
  }
  ~FakeServerLane() {
    stopping_ = true;
    thread_.join();
  }
  const std::string& endpoint() const { return endpoint_; }
  std::atomic<bool> mute{false};     // reads, answers nothing
  std::atomic<bool> refuse{false};   // answers pushes with an error
  std::atomic<bool> garbage{false};  // sends noise before every answer
  std::atomic<float> rate{1.0f};     // of learning
  std::atomic<int> pushes{0};

 private:
  struct Chunk {
    std::vector<float> values;
    Version version;
  };
  void run() {
    while (!stopping_) {
      zmq::message_t received[3];
      auto& [id, header, payload] = received;
      if (receive_frames(socket_, received) == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        continue;
      }
      const auto message = decode_data(bytes_of(header));
      if (!message || mute) continue;
      if (const auto* init = std::get_if<Init>(&*message)) {
        store(chunks_[init->key.chunk.value], payload);
      } else if (const auto* pull = std::get_if<Pull>(&*message)) {
        Chunk& chunk = chunks_[pull->key.chunk.value];
        if (!chunk.values.empty()) answer(id, pull->key, chunk);
      } else if (const auto* push = std::get_if<Push>(&*message)) {
        ++pushes;
        if (refuse) {
          send(id, ErrorReply{push->key, push->round, ErrorCode::kWrongLength, "no such length"}, {});
          continue;
        }
        Chunk& chunk = chunks_[push->key.chunk.value];
        if (push->round.value != chunk.version.value + 1) continue;
        Chunk gradient;
        store(gradient, payload);
        for (std::size_t i = 0; i < chunk.values.size(); ++i) chunk.values[i] -= rate * gradient.values[i];
        chunk.version = chunk.version.next();
        send(id, Ack{push->key, push->round}, {});
        answer(id, push->key, chunk);
      }
    }
  }
  static void store(Chunk& chunk, const zmq::message_t& payload) {
    chunk.values.resize(payload.size() / sizeof(float));
    std::memcpy(chunk.values.data(), payload.data(), payload.size());
  }
  void answer(zmq::message_t& id, const ChunkKey& key, const Chunk& chunk) {
    if (garbage) {
      zmq::message_t to;
      to.copy(id);
      zmq::message_t noise(std::string("noise"));
      send_now(socket_, to, true);
      send_now(socket_, noise, false);
    }
    send(id, Answer{key, chunk.version, EncodingId::kFp32},
         {reinterpret_cast<const std::byte*>(chunk.values.data()), chunk.values.size() * sizeof(float)});
  }
  void send(zmq::message_t& id, const DataMessage& message, std::span<const std::byte> payload) {
    alignas(8) std::byte space[kMaxErrorHeader];
    const auto encoded = encode_data(message, space);
    zmq::message_t to;
    to.copy(id);
    zmq::message_t header(encoded.data(), encoded.size());
    send_now(socket_, to, true);
    send_now(socket_, header, !payload.empty());
    if (payload.empty()) return;
    zmq::message_t body(payload.data(), payload.size());
    send_now(socket_, body, false);
  }

  zmq::context_t context_{1};
  zmq::socket_t socket_;
  std::string endpoint_;
  std::map<std::uint32_t, Chunk> chunks_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

class Failures final : public WorkerLaneListener {
 public:
  void lane_failed(std::shared_ptr<NodeJob>, LaneFailure failure) override {
    const std::lock_guard lock(mutex_);
    failures_.push_back(std::move(failure));
  }
  std::vector<LaneFailure> all() const {
    const std::lock_guard lock(mutex_);
    return failures_;
  }
  // Waits until there are `count`, and returns the last one.
  LaneFailure await(std::size_t count = 1) const {
    REQUIRE(eventually([&] { return all().size() >= count; }));
    REQUIRE(all().size() == count);
    return all().back();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<LaneFailure> failures_;
};

struct LaneNode {
  explicit LaneNode(std::uint16_t lane_count = 1, bool local_links = true) {
    for (std::uint16_t i = 0; i < lane_count; ++i) {
      auto lane =
          required(WorkerLane::start({.index = i, .lanes = lane_count, .local_links = local_links}, failures, logger));
      lanes.push_back(std::move(lane));
    }
  }
  // device_api: the ranks are reduced on its devices, in turns.
  void open(std::vector<std::string> endpoints, std::uint32_t ranks, std::uint64_t elements = 5 * kLaneChunkElements,
            const std::shared_ptr<DeviceApi>& device_api = nullptr) {
    const ShardSlots slots{static_cast<std::uint16_t>(endpoints.size()), 1.0};
    auto layout = required(Layout::make({{"a", {elements - 112}}, {"b", {100}}}, kLaneChunkElements, {&slots, 1}));
    JobConfig config{.name = "job", .push = push, .pull = pull};
    NodeJobSpec spec;
    spec.view = std::make_shared<const ViewPlan>(ViewPlan{.plan = JobPlan::of(config),
                                                          .job = JobId(5),
                                                          .view = ViewId(2),
                                                          .layout = std::make_shared<const Layout>(std::move(layout))});
    spec.ranks = ranks;
    spec.endpoints = {std::move(endpoints)};
    if (adjust) adjust(spec);
    if (device_api) {
      DevicePlan plan;
      plan.layout = spec.view->layout;
      plan.push = spec.view->plan->push;
      plan.pull = spec.view->plan->pull;
      const auto devices = static_cast<std::uint32_t>(device_api->devices().size());
      for (std::uint32_t d = 0; d < devices; ++d) plan.devices.push_back(DeviceIndex(d));
      for (std::uint32_t rank = 0; rank < ranks; ++rank) plan.position_of_rank.push_back(rank % devices);
      auto reduction = required(DeviceReduction::create(device_api, std::move(plan), device_options, logger));
      spec.devices = std::move(reduction);
    }
    job = required(NodeJob::create(std::move(spec), static_cast<std::uint16_t>(lanes.size()), budget));
    for (auto& lane : lanes) lane->open(job);
  }
  void give_values() {
    for (std::uint64_t i = 0; i < job->layout().flat_elements(); ++i) job->parameters()[i] = 1.0f;
    for (auto& lane : lanes) lane->initial_values(job);
  }
  void start() {
    give_values();
    REQUIRE(reaches(0));
  }
  // As a trainer does.
  void ready(std::uint32_t rank, std::uint64_t round, float value) {
    const Layout& layout = job->layout();
    for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
      const auto& devices = job->spec().devices;
      float* gradient = devices ? devices->memory().gradients(rank, 0) : const_cast<float*>(job->gradients(rank));
      gradient += layout.tensor_offset(t);
      std::fill_n(gradient, layout.tensors()[t].elements(), value);
      auto& word = const_cast<TensorWord&>(job->tensor_words(rank)[t]);
      word.weight.store(1, std::memory_order_relaxed);
      job->rank_words(rank).say(t, round);
    }
    for (auto& lane : lanes) {
      const std::uint64_t one = 1;
      REQUIRE(write(lane->doorbell(), &one, sizeof one) == sizeof one);
    }
  }
  bool reaches(std::uint64_t version) const {
    return eventually([&] { return job->chunk_words() && all_at(version); });
  }
  bool all_at(std::uint64_t version) const {
    for (std::size_t c = 0; c < job->layout().chunks(); ++c) {
      if (job->chunk_words()[c].version_plus_one.load(std::memory_order_acquire) != version + 1) return false;
    }
    return true;
  }
  // Closes the job and waits until neither the lanes nor ZeroMQ hold its memory.
  bool memory_comes_back() {
    for (auto& lane : lanes) lane->close(job, false);
    const std::weak_ptr<NodeJob> watched = job;
    job.reset();
    return eventually([&] {
      for (auto& lane : lanes) {
        if (lane->jobs_held() != 0) return false;
      }
      return watched.expired() && budget->used() == 0;
    });
  }

  EncodingSpec push, pull;                   // of the jobs opened from now on
  std::function<void(NodeJobSpec&)> adjust;  // called with each before it begins
  DeviceReductionOptions device_options;
  Logger logger = quiet_logger();
  std::shared_ptr<MemoryBudget> budget = std::make_shared<MemoryBudget>(256u << 20);
  Failures failures;
  std::vector<std::unique_ptr<WorkerLane>> lanes;
  std::shared_ptr<NodeJob> job;
};

}  // namespace tributary::testing
