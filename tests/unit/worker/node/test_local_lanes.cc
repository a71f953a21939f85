// Real worker lanes and real server lanes on one machine: payloads in shared memory, or over sockets where that cannot
// be, and the same parameters either way.
#include <doctest/doctest.h>

#include <optional>

#include "common/math/encoding.h"
#include "tests/unit/required.h"
#include "tests/unit/server/lane/lane_fixture.h"
#include "tests/unit/server/lane/local_server.h"

namespace tributary::local_lanes_test {
namespace {

using namespace testing;

std::uint64_t model_bytes(const LaneNode& node) {
  return node.job->layout().flat_elements() * sizeof(float);
}

TEST_CASE("between lanes on one machine no payload byte crosses a socket, with one rank and with several") {
  for (const std::uint32_t ranks : {1u, 3u}) {
    CAPTURE(ranks);
    LocalServer server;
    LaneNode node;
    server.serve(node);
    node.open({server.lane->endpoint()}, ranks);
    node.start();
    for (std::uint64_t round = 1; round <= 20; ++round) {
      for (std::uint32_t rank = 0; rank < ranks; ++rank) node.ready(rank, round, static_cast<float>(ranks));
      REQUIRE(node.reaches(round));
    }
    CHECK(node.job->parameters()[0] == 1.0f - 20.0f * static_cast<float>(ranks));
    CHECK(node.job->parameters()[4 * kLaneChunkElements] == 1.0f - 20.0f * static_cast<float>(ranks));
    CHECK(node.failures.all().empty());
    // Initial values, and then a push and an answer a round.
    const std::uint64_t bytes = (1 + 20 + 21) * model_bytes(node);
    const LaneJobStats& stats = node.job->lane_stats(0);
    CHECK(eventually([&] { return count_of(stats.shared_payload_bytes) == bytes; }));
    CHECK(count_of(stats.socket_payload_bytes) == 0);
    CHECK(count_of(stats.connections) == 1);
    CHECK(count_of(stats.shared_connections) == 1);
    const LaneCounters& counters = server.lane->counters();
    CHECK(eventually([&] { return counters.answers.value() == 21 * node.job->layout().chunks(); }));
    CHECK(counters.shared_payload_bytes.value() == bytes);
    CHECK(counters.socket_payload_bytes.value() == 0);
    // Nobody holds a buffer when the next step comes.
    CHECK(counters.out_of_place_steps.value() == 0);
    CHECK(counters.links.value() == 1.0);
    CHECK(counters.mapped_bytes.value() >= 2.0 * static_cast<double>(model_bytes(node)));
    CHECK(node.memory_comes_back());
    server.lane->stop_job(JobId(5), ViewId(2), false, Round(0), false);
    REQUIRE(server.listener.stopped());
    CHECK(eventually([&] { return counters.links.value() == 0.0; }));
  }
}

TEST_CASE("whoever cannot share memory, or shall not, uses sockets, to the same parameters") {
  struct Way {
    bool local_links;
    std::optional<std::string> name;
  };
  for (const Way& way : {Way{false, {}}, Way{true, ""}, Way{true, "tributary-test-nobody-here"}}) {
    LocalServer server;
    LaneNode node(1, way.local_links);
    server.serve(node, way.name);
    node.open({server.lane->endpoint()}, 2);
    node.start();
    for (std::uint64_t round = 1; round <= 3; ++round) {
      node.ready(0, round, 1.0f);
      node.ready(1, round, 2.0f);
      REQUIRE(node.reaches(round));
    }
    CHECK(node.job->parameters()[0] == 1.0f - 3.0f * 3.0f / 2.0f);
    const LaneJobStats& stats = node.job->lane_stats(0);
    CHECK(eventually([&] { return count_of(stats.socket_payload_bytes) == (1 + 3 + 4) * model_bytes(node); }));
    CHECK(count_of(stats.shared_payload_bytes) == 0);
    CHECK(count_of(stats.shared_connections) == 0);
    CHECK(node.memory_comes_back());
  }
}

TEST_CASE("a server that accepts and never replies costs a delay, not the job") {
  const std::string name = new_link_name(ShardIndex(0), LaneIndex(0));
  const auto silent = required(listen_for_links(name));
  LocalServer server;
  LaneNode node;
  server.serve(node, name);
  node.open({server.lane->endpoint()}, 1);
  node.start();
  node.ready(0, 1, 1.0f);
  REQUIRE(node.reaches(1));
  CHECK(node.job->parameters()[0] == 0.0f);
  CHECK(count_of(node.job->lane_stats(0).shared_connections) == 0);
  CHECK(node.memory_comes_back());
}

TEST_CASE("encodings go through shared memory to the bits they have over a socket, residuals and stops included") {
  for (const auto& [push, pull] : {std::pair{"int8", "int8-delta"}, std::pair{"topk:0.01", "bf16"}}) {
    CAPTURE(push);
    std::vector<float> parameters[2];
    std::vector<std::vector<std::byte>> residuals[2];
    for (const bool shares : {false, true}) {
      LocalServer server;
      LaneNode node(1, shares);
      node.push = *parse_encoding(push);
      node.pull = *parse_encoding(pull);
      server.serve(node);
      node.open({server.lane->endpoint()}, 2);
      node.start();
      for (std::uint64_t round = 1; round <= 9; ++round) {
        if (round == 3) {
          server.lane->snapshot_at(JobId(5), ViewId(2), Round(6));
          const auto started = required(server.listener.snapshot());
          CHECK(started);
        }
        for (std::uint32_t rank = 0; rank < 2; ++rank)
          node.ready(rank, round, 0.001f * static_cast<float>(round + rank));
        REQUIRE(node.reaches(round));
      }
      const std::size_t chunks = node.job->layout().chunks();
      const auto take = [&](Round round) {
        for (std::size_t i = 0; i < chunks; ++i) {
          const auto captured = required(server.listener.captured());
          CHECK(captured.round == round);
          REQUIRE(captured.state.residuals.size() == 1);
          // Long after the node has written its next frames.
          const std::span<const std::byte> values = captured.state.residuals[0].bytes();
          residuals[shares].emplace_back(values.begin(), values.end());
        }
      };
      take(Round(6));
      // The view ends cleanly: the residuals follow.
      server.lane->stop_job(JobId(5), ViewId(2), true, Round(9), false);
      parameters[shares].assign(node.job->parameters(), node.job->parameters() + node.job->layout().flat_elements());
      const LaneJobStats& stats = node.job->lane_stats(0);
      CHECK(eventually([&] { return count_of(shares ? stats.shared_payload_bytes : stats.socket_payload_bytes) > 0; }));
      CHECK(count_of(shares ? stats.socket_payload_bytes : stats.shared_payload_bytes) == 0);
      node.lanes[0]->close(node.job, true);
      take(Round(9));
      const auto stopped = required(server.listener.stopped());
      CHECK(stopped.kept);
      const auto& counters = server.lane->counters();
      CHECK((shares ? counters.socket_payload_bytes : counters.shared_payload_bytes).value() == 0);
      CHECK(eventually([&] { return node.lanes[0]->jobs_held() == 0; }));
    }
    CHECK(std::memcmp(parameters[0].data(), parameters[1].data(), parameters[0].size() * sizeof(float)) == 0);
    CHECK(parameters[0].size() == parameters[1].size());
    CHECK(residuals[0] == residuals[1]);
  }
}

TEST_CASE("a frame of a node that is gone is still summed, and its memory goes with the round") {
  LocalServer server(2);
  LaneNode node;
  server.serve(node);
  node.open({server.lane->endpoint()}, 2);
  node.start();
  const std::size_t chunks = node.job->layout().chunks();
  for (std::uint32_t rank = 0; rank < 2; ++rank) node.ready(rank, 1, 4.0f);
  REQUIRE(eventually([&] { return server.lane->counters().pushes.value() == chunks; }));
  const auto layout = node.job->view().layout;
  CHECK(node.memory_comes_back());

  RawClient other(server.lane->endpoint());
  for (std::uint32_t c = 0; c < chunks; ++c) {
    const ChunkKey key{JobId(5), ViewId(2), NodeRank(1), ChunkIndex(c)};
    other.push(key, 1, std::vector<float>(layout->chunk(ChunkIndex(c)).elements, 16.0f), 2);
    std::vector<float> values;
    REQUIRE(other.expect<Ack>());
    required(other.expect<Answer>(&values));
    CHECK(values.front() == 1.0f - (8.0f + 16.0f) / 4.0f);
    if (c + 1 < chunks) CHECK(values.back() == values.front());  // the last one ends in padding
  }
}

TEST_CASE("a server that goes first leaves the node's memory alone") {
  std::optional<LocalServer> server(std::in_place);
  LaneNode node;
  server->serve(node);
  node.open({server->lane->endpoint()}, 1);
  node.start();
  server.reset();
  node.ready(0, 1, 1.0f);
  CHECK(eventually([&] { return count_of(node.job->lane_stats(0).in_flight_bytes) > 0; }));
  CHECK_FALSE(node.all_at(1));
  CHECK(node.memory_comes_back());
}

// Raw messages whose header says what the test wants.
void send_with_place(RawClient& client, const DataMessage& message, const PayloadPlace& place,
                     std::optional<std::vector<float>> frame = std::nullopt) {
  alignas(8) std::byte scratch[kMaxErrorHeader];
  const auto header = encode_data(message, scratch, place);
  if (frame) {
    client.send_frames({header, as_bytes(*frame)});
  } else {
    client.send_frames({header});
  }
}

TEST_CASE("messages that name memory they do not have are answered with an error, and nobody else notices") {
  LocalServer server;
  LaneNode node;
  server.serve(node);
  node.open({server.lane->endpoint()}, 1);
  node.start();
  RawClient client(server.lane->endpoint());
  const ChunkKey key{JobId(5), ViewId(2), NodeRank(0), ChunkIndex(0)};
  const Push push{key, Round(1), 1};
  constexpr std::uint64_t kBytes = kLaneChunkElements * sizeof(float);
  const auto refused = [&](ErrorCode code, const DataMessage& message, const PayloadPlace& place,
                           std::optional<std::vector<float>> frame = std::nullopt) {
    send_with_place(client, message, place, std::move(frame));
    const auto error = required(client.expect<ErrorReply>());
    CHECK(error.code == code);
  };
  refused(ErrorCode::kInvalidArgument, push, {0, 0, 0, kBytes});  // without a link
  refused(ErrorCode::kInvalidArgument, push, {77, 0, 0, kBytes});
  refused(ErrorCode::kInvalidArgument, push, {1, 9, 0, kBytes});
  refused(ErrorCode::kInvalidArgument, push, {1, 0, ~0ull, kBytes});
  refused(ErrorCode::kInvalidArgument, push, {1, 0, 0, ~0ull});
  refused(ErrorCode::kWrongLength, push, {1, 0, 0, 8});  // inside, but no frame of this chunk
  refused(ErrorCode::kMalformed, push, {1, 0, 0, kBytes}, std::vector<float>(kLaneChunkElements));  // both
  refused(ErrorCode::kMalformed, Pull{key}, {1, 0, 0, kBytes});
  refused(ErrorCode::kInvalidArgument, Init{key}, {77, 0, 0, kBytes});
  ChunkKey stale = key;
  stale.view = ViewId(1);
  refused(ErrorCode::kStaleView, Push{stale, Round(1), 1}, {77, 0, 0, kBytes});
  stale = key;
  stale.job = JobId(6);
  refused(ErrorCode::kUnknownJob, Push{stale, Round(1), 1}, {1, 0, 0, kBytes});

  node.ready(0, 1, 1.0f);
  REQUIRE(node.reaches(1));
  CHECK(node.job->parameters()[0] == 0.0f);
  CHECK(node.failures.all().empty());
  CHECK(node.memory_comes_back());
}

}  // namespace
}  // namespace tributary::local_lanes_test
