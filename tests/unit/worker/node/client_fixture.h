// One worker lane's client with its messages recorded.
#pragma once

#include <doctest/doctest.h>

#include <optional>
#include <utility>
#include <vector>

#include "tests/unit/server/shard/core_fixture.h"
#include "worker/node/client_core.h"

namespace tributary::testing {

inline constexpr std::uint64_t kBytes = kChunk * sizeof(float);
inline constexpr std::uint64_t kMs = 1'000'000;

class ClientRecorder final : public ClientOutput {
 public:
  void send(const LaneChunk& chunk, const DataMessage& message, std::span<const std::byte>) override {
    const ConnectionIndex to = chunk.connection;
    if (const auto* push = std::get_if<Push>(&message)) pushes.emplace_back(to, *push);
    if (const auto* init = std::get_if<Init>(&message)) inits.emplace_back(to, *init);
    if (const auto* pull = std::get_if<Pull>(&message)) pulls.emplace_back(to, *pull);
    if (const auto* query = std::get_if<Query>(&message)) queries.emplace_back(to, *query);
  }
  std::optional<RedoRing::Frame> kept(const LaneChunk&, Round) override { return RedoRing::Frame{}; }
  std::span<const std::byte> residual(const LaneChunk&) override { return {}; }
  std::span<const std::byte> initial_values(const LaneChunk&) override { return {}; }
  // Another one each time, as if somebody wrote into the region.
  Checksum128::Value have_earlier(const LaneChunk& chunk) override { return {++asked_for_earlier, chunk.index.value}; }
  void answered(LaneChunk&, const Answer& answer, bool whole, std::span<const std::byte>) override {
    delivered.push_back(answer);
    whole_.push_back(whole);
  }
  void residual_restored(LaneChunk& chunk, std::span<const std::byte> values) override {
    restored.emplace_back(chunk.index, values.size());
  }
  void refused(const ErrorReply& error) override { refusals.push_back(error); }
  void clear() { *this = ClientRecorder(); }
  std::vector<std::uint32_t> pushed_chunks() const {
    std::vector<std::uint32_t> chunks;
    for (const auto& [connection, push] : pushes) chunks.push_back(push.key.chunk.value);
    return chunks;
  }

  std::vector<std::pair<ConnectionIndex, Push>> pushes;
  std::vector<std::pair<ConnectionIndex, Init>> inits;
  std::vector<std::pair<ConnectionIndex, Pull>> pulls;
  std::vector<std::pair<ConnectionIndex, Query>> queries;
  std::vector<Answer> delivered;
  std::vector<bool> whole_;  // by delivery
  std::vector<std::pair<ChunkIndex, std::size_t>> restored;
  std::vector<ErrorReply> refusals;
  std::uint64_t asked_for_earlier = 0;
};

struct ClientSetup {
  std::uint32_t chunks = 1;
  std::uint16_t connections = 1;  // chunk c uses connection c % connections
  std::uint32_t node = 0;
  bool init = false;
  std::uint64_t start = 0;
  std::vector<std::uint64_t> redo_after;  // by chunk; empty: nothing
  EncodingSpec push, pull;
  std::uint64_t window = 16u << 20;
  bool over_link = false;  // the window adapts: that is test_window's
  bool may_have_earlier = false;
};

struct Client {
  explicit Client(const ClientSetup& setup = {})
      : chunks(layout_of(setup.chunks * kChunk, setup.connections), Round(setup.start)),
        core(job(setup), chunks, options(setup), out) {}

  static ClientJob job(const ClientSetup& setup) {
    ClientJob job;
    JobConfig config{.push = setup.push, .pull = setup.pull};
    job.view = view_of(config, layout_of(setup.chunks * kChunk, setup.connections),
                       {.start = Round(setup.start), .resumes = !setup.init});
    job.node = NodeRank(setup.node);
    job.may_have_earlier = setup.may_have_earlier;
    for (const std::uint64_t version : setup.redo_after) job.redo_after.emplace_back(version);
    return job;
  }
  static ClientOptions options(const ClientSetup& setup) {
    ClientOptions options{.window_cap_bytes = setup.window, .over_link = setup.over_link};
    return options;
  }
  ChunkKey key(std::uint32_t chunk) const { return {kJob, kView, NodeRank(0), ChunkIndex(chunk)}; }
  void answer(std::uint32_t chunk, std::uint64_t version, std::size_t bytes = kBytes) {
    const std::vector<std::byte> payload(bytes);
    core.on_answer(Answer{key(chunk), Version(version), EncodingId::kFp32}, payload, now);
  }
  void same(std::uint32_t chunk, std::uint64_t version, std::size_t bytes = 0) {
    const std::vector<std::byte> payload(bytes);
    Answer answer{key(chunk), Version(version), EncodingId::kFp32};
    answer.same = true;
    core.on_answer(answer, payload, now);
  }
  void ack(std::uint32_t chunk, std::uint64_t round) { core.on_ack(Ack{key(chunk), Round(round)}, now); }
  void applied(std::uint32_t chunk, std::uint64_t round) {
    core.on_ack(Ack{key(chunk), Round(round), false, true}, now);
  }
  void resend(std::uint32_t chunk, std::uint64_t round) { core.on_resend(Resend{key(chunk), Round(round)}, now); }
  void ready(std::uint32_t chunk, std::uint64_t round, bool last = false) {
    chunks[chunk].gradient.round = Round(round);
    chunks[chunk].gradient.weight = 1;
    core.gradient_ready(chunks[chunk], now, last);
  }
  const LaneChunk::Flight& flight(std::uint32_t chunk) { return chunks[chunk].flight; }
  // All chunks have their first parameters; nothing is recorded of how they came.
  void begin(std::uint32_t count, std::uint64_t start = 0) {
    core.start(now);
    for (std::uint32_t c = 0; c < count; ++c) answer(c, start);
    REQUIRE(core.started());
    out.clear();
  }
  void pass(std::uint64_t ns) {
    now += ns;
    core.tick(now);
  }

  std::uint64_t now = 1000 * kMs;
  ClientRecorder out;
  LaneChunks chunks;
  ClientCore core;
};

}  // namespace tributary::testing
