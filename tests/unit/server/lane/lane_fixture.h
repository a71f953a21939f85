// Fixtures for tests of the server's shells: a lane with its listener, a job on it, and a client that speaks raw
// ZeroMQ.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "common/wire/codec.h"
#include "server/lane/lane.h"
#include "tests/changed_view.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/worker/node/lane_listener.h"

namespace tributary::testing {

inline std::span<const std::byte> as_bytes(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}

struct Reply {
  DataMessage message;
  std::vector<std::byte> payload;
  std::vector<float> floats() const {
    std::vector<float> values(payload.size() / sizeof(float));
    std::memcpy(values.data(), payload.data(), values.size() * sizeof(float));
    return values;
  }
};

class RawClient {
 public:
  explicit RawClient(const std::string& endpoint) : context_(1), socket_(context_, zmq::socket_type::dealer) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::rcvtimeo, 10'000);
    socket_.connect(endpoint);
  }
  void send_frames(const std::vector<std::span<const std::byte>>& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      socket_.send(zmq::const_buffer(frames[i].data(), frames[i].size()),
                   i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }
  void send(const DataMessage& message, std::optional<std::span<const std::byte>> payload = {}) {
    alignas(8) std::byte scratch[kMaxErrorHeader];
    const std::span<const std::byte> header = encode_data(message, scratch);
    payload ? send_frames({header, *payload}) : send_frames({header});
  }
  void push(const ChunkKey& key, std::uint64_t round, const std::vector<float>& gradient, std::uint64_t weight = 1) {
    send(Push{key, Round(round), weight, EncodingId::kFp32}, as_bytes(gradient));
  }
  // Empty after the time-out.
  std::optional<Reply> receive(int timeout_ms = 10'000) {
    socket_.set(zmq::sockopt::rcvtimeo, timeout_ms);
    zmq::message_t header, payload;
    if (!socket_.recv(header)) return {};
    if (header.more()) (void)socket_.recv(payload);
    auto message = required(decode_data({static_cast<const std::byte*>(header.data()), header.size()}));
    Reply reply{message, {}};
    reply.payload.resize(payload.size());
    if (payload.size() != 0) std::memcpy(reply.payload.data(), payload.data(), payload.size());
    return reply;
  }
  template <class M>
  std::optional<M> expect(std::vector<float>* payload = nullptr) {
    std::optional<Reply> reply = receive();
    if (!reply || !std::holds_alternative<M>(reply->message)) return {};
    if (payload) *payload = reply->floats();
    return std::get<M>(reply->message);
  }
  zmq::socket_t& socket() { return socket_; }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

inline constexpr std::uint64_t kChunkElements = 1024;

// `chunks` chunks on one lane of one server, plain SGD with lr 0.5:
// with gradients that are multiples of 2 every step is exact.
inline ShardJob small_job(std::uint32_t nodes, std::uint64_t chunks, JobId job = JobId(7)) {
  const ShardSlots slots[] = {{1, 1.0}};
  auto layout = required(Layout::make({{"w", {chunks * kChunkElements}}}, kChunkElements, slots));
  JobConfig config;
  config.optimizer.lr = 0.5;
  ShardJob result;
  result.view = std::make_shared<const ViewPlan>(ViewPlan{.plan = JobPlan::of(config),
                                                          .job = job,
                                                          .view = ViewId(1),
                                                          .nodes = nodes,
                                                          .layout = std::make_shared<const Layout>(layout)});
  return result;
}

inline ChunkKey key_of(std::uint32_t chunk, std::uint32_t node = 0, JobId job = JobId(7)) {
  return {job, ViewId(1), NodeRank(node), ChunkIndex(chunk)};
}

inline std::vector<float> filled(float value) {
  return std::vector<float>(kChunkElements, value);
}

inline std::string temporary_ipc(const char* name) {
  return "ipc:///tmp/tributary-test-" + std::to_string(::getpid()) + "-" + name;
}

}  // namespace tributary::testing
