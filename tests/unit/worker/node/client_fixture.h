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
  void send_push(ConnectionIndex connection, Push push) override { pushes.emplace_back(connection, push); }
  void send_init(ConnectionIndex connection, const Init& init) override { inits.emplace_back(connection, init); }
  void send_pull(ConnectionIndex connection, const Pull& pull) override { pulls.emplace_back(connection, pull); }
  void send_query(ConnectionIndex connection, const Query& query) override { queries.emplace_back(connection, query); }
  // Another one each time, as if somebody wrote into the region.
  Checksum128::Value have_earlier(ChunkIndex chunk) override { return {++asked_for_earlier, chunk.value}; }
  void answered(const Answer& answer, bool whole, std::span<const std::byte>) override {
    delivered.push_back(answer);
    whole_.push_back(whole);
  }
  void residual_restored(ChunkIndex chunk, std::span<const std::byte> values) override {
    restored.emplace_back(chunk, values.size());
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
  explicit Client(const ClientSetup& setup = {}) : core(job(setup), setup.connections, options(setup), out) {}

  static ClientJob job(const ClientSetup& setup) {
    ClientJob job;
    JobConfig config;
    config.push = setup.push;
    config.pull = setup.pull;
    job.view = view_of(config, layout_of(setup.chunks * kChunk), {.start = Round(setup.start), .resumes = !setup.init});
    job.node = NodeRank(setup.node);
    for (std::uint32_t c = 0; c < setup.chunks; ++c) {
      job.chunks.push_back(ChunkIndex(c));
      job.connections.push_back(ConnectionIndex(static_cast<std::uint16_t>(c % setup.connections)));
    }
    job.may_have_earlier = setup.may_have_earlier;
    for (const std::uint64_t version : setup.redo_after) job.redo_after.emplace_back(version);
    return job;
  }
  static ClientOptions options(const ClientSetup& setup) {
    ClientOptions options;
    options.window_cap_bytes = setup.window;
    options.over_link = setup.over_link;
    return options;
  }
  ChunkKey key(std::uint32_t chunk) const { return {kJob, kView, NodeRank(0), ChunkIndex(chunk)}; }
  void answer(std::uint32_t chunk, std::uint64_t version, std::size_t bytes = kBytes) {
    const std::vector<std::byte> payload(bytes);
    core.on_answer(ConnectionIndex(0), Answer{key(chunk), Version(version), EncodingId::kFp32}, payload, now);
  }
  void same(std::uint32_t chunk, std::uint64_t version, std::size_t bytes = 0) {
    const std::vector<std::byte> payload(bytes);
    Answer answer{key(chunk), Version(version), EncodingId::kFp32};
    answer.same = true;
    core.on_answer(ConnectionIndex(0), answer, payload, now);
  }
  void ack(std::uint32_t chunk, std::uint64_t round) {
    core.on_ack(ConnectionIndex(0), Ack{key(chunk), Round(round)}, now);
  }
  void applied(std::uint32_t chunk, std::uint64_t round) {
    core.on_ack(ConnectionIndex(0), Ack{key(chunk), Round(round), false, true}, now);
  }
  void resend(std::uint32_t chunk, std::uint64_t round) {
    core.on_resend(ConnectionIndex(0), Resend{key(chunk), Round(round)}, now);
  }
  void ready(std::uint32_t chunk, std::uint64_t round) { core.gradient_ready(ChunkIndex(chunk), Round(round), 1, now); }
  // All chunks have their first parameters; nothing is recorded of how they came.
  void begin(std::uint32_t chunks, std::uint64_t start = 0) {
    core.start(now);
    for (std::uint32_t c = 0; c < chunks; ++c) answer(c, start);
    REQUIRE(core.started());
    out.clear();
  }
  void pass(std::uint64_t ns) {
    now += ns;
    core.tick(now);
  }

  std::uint64_t now = 1000 * kMs;
  ClientRecorder out;
  ClientCore core;
};

}  // namespace tributary::testing
