// Fixtures for tests of the pure cores: layouts, a shard with a pool and a recorder of its messages, payloads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/base/layout.h"
#include "common/config/job_plan.h"
#include "common/math/encoding.h"
#include "common/system/buffer_pool.h"
#include "common/wire/messages.h"
#include "common/wire/payload.h"
#include "kernels/step/optimizer.h"
#include "server/shard/chunk_arrays.h"
#include "server/shard/shard_core.h"
#include "tests/changed_view.h"
#include "tests/unit/expect.h"

namespace tributary::testing {

inline constexpr JobId kJob{77};
inline constexpr ViewId kView{3};
inline constexpr std::uint64_t kChunk = 1024;  // elements; the smallest chunk there is

inline std::shared_ptr<const Layout> layout_of(std::uint64_t elements, std::uint16_t shards = 1,
                                               std::uint16_t lanes = 1) {
  const std::vector<ShardSlots> slots(shards, ShardSlots{lanes, 1.0});
  return std::make_shared<const Layout>(*Layout::make({{"w", {elements}}}, kChunk, slots));
}

// A view of that job with all else as `view` says.
inline std::shared_ptr<const ViewPlan> view_of(JobConfig config, std::shared_ptr<const Layout> layout,
                                               ViewPlan view = {}) {
  view.plan = JobPlan::of(std::move(config));
  view.job = kJob;
  view.view = kView;
  view.layout = std::move(layout);
  return std::make_shared<const ViewPlan>(std::move(view));
}

// A frame of `count` equal values as they travel: each the sum of `weight` samples.
inline std::vector<std::byte> frame_of(std::size_t count, float value, EncodingSpec spec = {},
                                       std::uint64_t weight = 1) {
  const auto encoding = make_encoding(spec);
  const std::vector<float> values(count, value * encoding->push_scale(weight));
  std::vector<float> residual(count);
  std::vector<std::uint32_t> scratch(encoding->scratch_words(count));
  std::vector<std::byte> frame(encoding->bytes(count));
  encoding->encode(values.data(), count, 0, count, residual.data(), frame.data());
  encoding->finish(count, residual.data(), frame.data(), scratch);
  return frame;
}

inline Payload payload_of(std::vector<std::byte> bytes) {
  auto owner = std::make_unique<std::vector<std::byte>>(std::move(bytes));
  const std::span<std::byte> view = *owner;
  return Payload::alone(std::move(owner), view);
}
// In memory that its author keeps.
inline Payload shared_payload_of(std::vector<std::byte> bytes) {
  auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  const std::span<const std::byte> view = *owner;
  return Payload(std::move(owner), view);
}

inline bool all_equal(std::span<const float> values, float expected) {
  return std::ranges::all_of(values, [&](float v) { return v == expected; });
}

// In memory of its own, as a store hands it out.
inline BufferRef array_of(std::span<const float> values) {
  BufferRef array = BufferRef::alone(values.size_bytes());
  std::ranges::copy(values, array.floats().begin());
  return array;
}

// A chunk after `version` rounds.
inline ChunkState state_at(std::uint64_t version, std::span<const float> params,
                           const std::vector<std::span<const float>>& slots = {}) {
  ChunkState state;
  state.version = Version(version);
  state.step = version;
  state.params = array_of(params);
  for (std::size_t s = 0; s < slots.size(); ++s) state.slots[s] = array_of(slots[s]);
  return state;
}

class ShardRecorder final : public ShardOutput {
 public:
  struct Sent {
    PeerId to;
    Answer header;
    BufferRef payload;
  };
  void send(PeerId to, const DataMessage& message, const BufferRef& values) override {
    const bool carries = std::holds_alternative<Answer>(message) || std::holds_alternative<Residual>(message);
    if (values.size() > 0 && !carries) throw std::logic_error("values beside a message that carries none");
    if (const auto* answer = std::get_if<Answer>(&message)) {
      answers.push_back({to, *answer, values});
    } else if (const auto* residual = std::get_if<Residual>(&message)) {
      residuals.push_back({to, *residual, {values.bytes().begin(), values.bytes().end()}});
    } else if (const auto* ack = std::get_if<Ack>(&message)) {
      acks.emplace_back(to, *ack);
    } else if (const auto* resend = std::get_if<Resend>(&message)) {
      resends.emplace_back(to, *resend);
    } else {
      errors.emplace_back(to, std::get<ErrorReply>(message));
    }
  }
  void captured(ChunkSnapshot snapshot) override { snapshots.push_back(std::move(snapshot)); }
  void facts(const RoundFacts& facts) override { rounds.push_back(facts); }

  // As if everything had been sent.
  void clear() {
    answers.clear();
    residuals.clear();
    acks.clear();
    resends.clear();
    errors.clear();
    rounds.clear();
  }

  std::vector<Sent> answers;
  struct SentResidual {
    PeerId to;
    Residual header;
    std::vector<std::byte> values;
  };
  std::vector<SentResidual> residuals;
  std::vector<std::pair<PeerId, Ack>> acks;
  std::vector<std::pair<PeerId, Resend>> resends;
  std::vector<std::pair<PeerId, ErrorReply>> errors;
  std::vector<ChunkSnapshot> snapshots;
  std::vector<RoundFacts> rounds;
};

struct ShardSetup {
  std::uint64_t elements = kChunk;
  std::uint32_t nodes = 1;
  std::string optimizer = "sgd";
  std::vector<std::pair<std::string_view, double>> options;  // values of the optimizer's, but for lr
  double lr = 1.0;
  EncodingSpec push, pull;
  std::size_t pool_blocks = 0;             // 0: as the shard asks for
  std::optional<std::uint64_t> staleness;  // none: synchronous rounds
  std::uint64_t start = 0;
  bool resumes = false;
  bool recovers = false;
  std::optional<GateConfig> gate;
};

inline PeerId peer_of(std::uint32_t node) {
  return PeerId(100 + node);
}

// One shard, one lane, one job: members in the order in which buffers must outlive each other.
class Shard {
 public:
  // initial: the value of all parameters; none: they are not there yet.
  explicit Shard(const ShardSetup& setup = {}, std::optional<float> initial = {})
      : layout(layout_of(setup.elements)), pool(kChunk * sizeof(float), blocks(setup)), core(job(setup), pool, out) {
    if (initial) init(*initial);
  }

  ShardJob job(const ShardSetup& setup) const {
    JobConfig config;
    config.mode = !setup.staleness ? Mode::kSync : *setup.staleness == ShardJob::kUnbounded ? Mode::kAsync : Mode::kSsp;
    config.ssp.staleness = setup.staleness.value_or(0);
    config.optimizer = {kernels::options_of(setup.optimizer, setup.options), setup.optimizer};
    config.optimizer.lr = setup.lr;
    config.push = setup.push;
    config.pull = setup.pull;
    if (setup.gate) config.gate = *setup.gate;
    ShardJob job{
        .view = view_of(config, layout, {.nodes = setup.nodes, .start = Round(setup.start), .resumes = setup.resumes}),
        .recovers = setup.recovers};
    return job;
  }
  std::size_t blocks(const ShardSetup& setup) const {
    if (setup.pool_blocks != 0) return setup.pool_blocks;
    return layout->chunks() * chunk_arrays(job(setup)).most();
  }
  static ChunkKey key(std::uint32_t node, std::uint32_t chunk = 0) {
    return {kJob, kView, NodeRank(node), ChunkIndex(chunk)};
  }
  std::size_t elements(std::uint32_t chunk) const { return layout->chunk(ChunkIndex(chunk)).elements; }

  void init(float value) {
    for (std::uint32_t c = 0; c < layout->chunks(); ++c) init_chunk(c, value);
  }
  void init_chunk(std::uint32_t chunk, float value) {
    core.on_init(peer_of(0), Init{key(0, chunk)}, frame_of(elements(chunk), value));
  }
  void push(std::uint32_t node, std::uint64_t round, float gradient, std::uint32_t chunk = 0,
            std::uint64_t weight = 1) {
    push_from(peer_of(node), node, round, gradient, chunk, weight);
  }
  void push_from(PeerId from, std::uint32_t node, std::uint64_t round, float gradient, std::uint32_t chunk = 0,
                 std::uint64_t weight = 1) {
    core.on_push(from, Push{key(node, chunk), Round(round), weight, core.job().plan().config.push.id},
                 payload_of(frame_of(elements(chunk), gradient, core.job().plan().config.push, weight)));
  }
  std::span<const float> params(std::uint32_t chunk = 0) const { return core.params(ChunkIndex(chunk)); }
  std::uint64_t version(std::uint32_t chunk = 0) const { return core.version(ChunkIndex(chunk)).value; }

  std::shared_ptr<const Layout> layout;
  BufferPool pool;
  ShardRecorder out;
  ShardCore core;
};

}  // namespace tributary::testing
