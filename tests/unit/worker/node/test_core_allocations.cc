// The round logic allocates nothing per chunk once a job runs: from a node's gradient through its client, the shard's
// sum and step, to the delivered answer. Counted through operator new; the sanitizers have their own, so under them the
// code only runs.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

#include "tests/unit/server/shard/core_fixture.h"
#include "worker/node/client_core.h"
#include "worker/reduce/node_gather.h"

#ifndef TRIBUTARY_SANITIZED
namespace {
thread_local long allocations = 0;

void* counted(std::size_t size) {
  ++allocations;
  if (void* block = std::malloc(size)) return block;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t size) {
  return counted(size);
}
void* operator new[](std::size_t size) {
  return counted(size);
}
void operator delete(void* block) noexcept {
  std::free(block);
}
void operator delete[](void* block) noexcept {
  std::free(block);
}
void operator delete(void* block, std::size_t) noexcept {
  std::free(block);
}
void operator delete[](void* block, std::size_t) noexcept {
  std::free(block);
}
#endif

namespace tributary {

using namespace testing;

namespace {

constexpr std::uint32_t kChunks = 8;
constexpr std::uint32_t kNodes = 2;

long allocations_so_far() {
#ifndef TRIBUTARY_SANITIZED
  return allocations;
#else
  return 0;
#endif
}

// Chunks, of which one is in two groups.
std::shared_ptr<const Layout> two_groups() {
  const std::uint64_t first = kChunk / 2;
  return std::make_shared<const Layout>(
      *Layout::make({{"bias", {first}}, {"w", {kChunks * kChunk - first}, 1}}, kChunk, {{ShardSlots{1, 1.0}}}));
}

// Two clients and a shard, joined by direct calls instead of sockets. Answers are kept until the chunk's next round, as
// if they were still being sent, so that steps are in place and out of place in turn.
class Loop final : public ClientOutput, public ShardOutput {
 public:
  explicit Loop(EncodingId encoding)
      : layout_(two_groups()),
        pool_(kChunk * sizeof(float), kChunks * chunk_arrays(shard_job(encoding)).most()),
        core_(shard_job(encoding), pool_, *this),
        frame_(std::make_shared<const std::vector<std::byte>>(frame_of(kChunk, 0.5f, encoding))),
        initial_(frame_of(kChunk, 1.0f)) {
    for (std::uint32_t node = 0; node < kNodes; ++node) {
      chunks_.push_back(std::make_unique<LaneChunks>(layout_, Round(0)));
      clients_.push_back(
          std::make_unique<ClientCore>(client_job(node, encoding), *chunks_.back(), ClientOptions{}, *this));
      gathers_.push_back(std::make_unique<NodeGather>(*chunks_.back(), 1));
    }
    complete_.reserve(kChunks);
    for (auto& client : clients_) client->start(++now_);
    clients_[0]->initial_values_ready(++now_);
  }

  void round(std::uint64_t r, const StepSettings& settings) {
    for (std::uint32_t node = 0; node < kNodes; ++node) {
      complete_.clear();
      const Status ready = [&] {
        Status status = gathers_[node]->on_tensor(0, 0, Round(r), 32, settings, complete_);
        if (status) status = gathers_[node]->on_tensor(0, 1, Round(r), 32, settings, complete_);
        return status;
      }();
      if (!ready || complete_.size() != kChunks) ++faults;
      for (LaneChunk* chunk : complete_) {
        chunk->gradient.frame = *frame_;
        clients_[node]->gradient_ready(*chunk, ++now_);
      }
    }
    for (auto& client : clients_) client->tick(now_ += 1'000'000'000);
  }
  std::uint64_t versions() const {
    std::uint64_t sum = 0;
    for (const auto& chunks : chunks_) {
      for (const LaneChunk& chunk : *chunks) sum += chunk.flight.version.value;
    }
    return sum;
  }
  const ShardCore& core() const { return core_; }
  int faults = 0;

 private:
  ShardJob shard_job(EncodingId encoding) const {
    ShardJob job = Shard().job({.nodes = kNodes, .optimizer = "adamw", .push = encoding, .pull = encoding});
    return changed(job, [&](ViewPlan& view, JobConfig& config) {
      view.layout = layout_;
      config.groups = {config.optimizer};
    });
  }
  ClientJob client_job(std::uint32_t node, EncodingId encoding) const {
    ClientJob job;
    JobConfig config;
    config.push = config.pull = encoding;
    job.view = view_of(config, layout_);
    job.node = NodeRank(node);
    return job;
  }

  void send(const LaneChunk&, const DataMessage& message, std::span<const std::byte> payload) override {
    if (const auto* push = std::get_if<Push>(&message)) {
      core_.on_push(peer_of(push->key.node.value), *push, Payload(std::shared_ptr(frame_), payload));
    } else if (const auto* init = std::get_if<Init>(&message)) {
      core_.on_init(peer_of(0), *init, payload);
    } else if (const auto* pull = std::get_if<Pull>(&message)) {
      core_.on_pull(peer_of(pull->key.node.value), *pull);
    } else {
      ++faults;
    }
  }
  std::optional<RedoRing::Frame> kept(const LaneChunk&, Round) override { return std::nullopt; }
  std::span<const std::byte> residual(const LaneChunk&) override { return {}; }
  std::span<const std::byte> initial_values(const LaneChunk&) override { return initial_; }
  void residual_restored(LaneChunk&, std::span<const std::byte>) override { ++faults; }
  void answered(LaneChunk& chunk, const Answer&, bool, std::span<const std::byte>) override {
    chunk.gradient.frame = {};
    NodeGather::answered(chunk);
  }
  void refused(const ErrorReply&) override { ++faults; }

  void send(PeerId, const DataMessage& message, const BufferRef& payload) override {
    if (const auto* ack = std::get_if<Ack>(&message)) {
      clients_[ack->key.node.value]->on_ack(*ack, ++now_);
    } else if (const auto* answer = std::get_if<Answer>(&message)) {
      being_sent_[answer->key.chunk.value] = answer->version.value % 2 == 0 ? payload : BufferRef();
      clients_[answer->key.node.value]->on_answer(*answer, payload.bytes(), ++now_);
    } else {
      ++faults;
    }
  }
  void captured(ChunkSnapshot) override { ++faults; }

  std::shared_ptr<const Layout> layout_;
  BufferPool pool_;
  ShardCore core_;
  std::shared_ptr<const std::vector<std::byte>> frame_;
  std::vector<std::byte> initial_;
  std::vector<std::unique_ptr<LaneChunks>> chunks_;  // by node, as the next two
  std::vector<std::unique_ptr<ClientCore>> clients_;
  std::vector<std::unique_ptr<NodeGather>> gathers_;
  std::vector<LaneChunk*> complete_;
  BufferRef being_sent_[kChunks];
  std::uint64_t now_ = 0;
};

}  // namespace

TEST_CASE("the counter counts") {
#ifndef TRIBUTARY_SANITIZED
  const long before = allocations_so_far();
  ::operator delete(::operator new(100));  // a call that is not elided
  CHECK(allocations_so_far() == before + 1);
#endif
}

TEST_CASE("a round of pushes, steps and answers allocates nothing") {
  for (const EncodingId encoding : {EncodingId::kFp32, EncodingId::kBf16}) {
    CAPTURE(encoding);
    Loop loop(encoding);
    // Trainers send settings of a step in every other round.
    const auto settings = [](std::uint64_t round) { return StepSettings{.lr = round % 2 ? 0.5 : -1.0}; };
    std::uint64_t round = 1;
    for (; round <= 4; ++round) loop.round(round, settings(round));  // the pool warms up
    const long before = allocations_so_far();
    for (; round <= 20; ++round) loop.round(round, settings(round));
    CHECK(allocations_so_far() == before);
    CHECK(loop.faults == 0);
    CHECK(loop.versions() == 20u * kChunks * kNodes);
    CHECK(loop.core().stats().steps == 20 * kChunks);
    CHECK(loop.core().stats().out_of_place_steps >= 8 * kChunks);
  }
}

}  // namespace tributary
