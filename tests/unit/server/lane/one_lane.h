// A lane by itself, for its tests, which play its clients and its control thread.
#pragma once

#include <doctest/doctest.h>

#include "tests/unit/required.h"
#include "tests/unit/server/lane/lane_fixture.h"

namespace tributary::testing {

struct OneLane {
  explicit OneLane(const std::string& bind = "tcp://127.0.0.1:*", const Logger& logger = quiet_logger(),
                   std::uint64_t idle_memory_ms = 60'000) {
    Result<std::unique_ptr<Lane>> started =
        Lane::start({{.idle_memory_ms = idle_memory_ms}, bind, ""}, listener, logger);
    REQUIRE_MESSAGE(started, (started ? "" : started.error().message));
    lane = std::move(*started);
  }
  void open(std::uint32_t nodes, std::uint64_t chunks, JobId job = JobId(7)) {
    gauges = std::make_shared<LaneJobGauges>();
    lane->open(small_job(nodes, chunks, job), gauges);
    lane->opened(job, ViewId(1), false);
    required(required(listener.opened()));
  }
  Listener listener;  // outlives the lane
  std::unique_ptr<Lane> lane;
  std::shared_ptr<LaneJobGauges> gauges;  // of the job opened last
};

// Initialises every chunk with `value` and receives the answers to its pulls.
inline void initialise(RawClient& client, std::uint32_t chunks, float value) {
  for (std::uint32_t c = 0; c < chunks; ++c) {
    client.send(Init{key_of(c)}, as_bytes(filled(value)));
    client.send(Pull{key_of(c)});
  }
  for (std::uint32_t c = 0; c < chunks; ++c) {
    std::vector<float> values;
    const auto answer = required(client.expect<Answer>(&values));
    CHECK(answer.version == Version(0));
    CHECK(values == filled(value));
  }
}

// A lane with a job of one node, whose chunks are initialised, and that node.
template <std::uint32_t kChunks>
struct Initialised {
  Initialised() { initialise(client, kChunks, 10.0f); }
  static const std::string& opened(OneLane& server) {
    server.open(1, kChunks);
    return server.lane->endpoint();
  }
  OneLane server;
  RawClient client{opened(server)};
};

// Makes one round of chunk 0 by a client that is alone in its job.
inline void one_round(RawClient& client, std::uint64_t round, float expected) {
  client.push(key_of(0), round, filled(2.0f));
  std::vector<float> values;
  const auto answer = required(client.expect<Answer>(&values));
  CHECK(answer.version == Version(round));
  CHECK(values == filled(expected));
}

inline ErrorReply expect_error(RawClient& client) {
  return required(client.expect<ErrorReply>());
}

}  // namespace tributary::testing
