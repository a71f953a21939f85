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

// Two clients and a shard, joined by direct calls instead of sockets. Answers are kept until the chunk's next round, as
// if they were still being sent, so that steps are in place and out of place in turn.
class Loop final : public ClientOutput, public ShardOutput {
 public:
  explicit Loop(EncodingId encoding)
      : layout_(layout_of(kChunks * kChunk)),
        pool_(kChunk * sizeof(float), kChunks * chunk_arrays(shard_job(encoding)).most()),
        core_(shard_job(encoding), pool_, *this),
        frame_(std::make_shared<const std::vector<std::byte>>(frame_of(kChunk, 0.5f, encoding))),
        initial_(frame_of(kChunk, 1.0f)) {
    for (std::uint32_t node = 0; node < kNodes; ++node) {
      clients_.push_back(std::make_unique<ClientCore>(client_job(node, encoding), 1, ClientOptions{}, *this));
      gathers_.push_back(std::make_unique<NodeGather>(layout_, chunks(), 1, Round(0)));
    }
    complete_.reserve(kChunks);
    for (auto& client : clients_) client->start(++now_);
    clients_[0]->initial_values_ready(++now_);
  }

  void round(std::uint64_t r) {
    for (std::uint32_t node = 0; node < kNodes; ++node) {
      complete_.clear();
      const Status ready = gathers_[node]->on_tensor(0, 0, Round(r), 32, {}, complete_);
      if (!ready || complete_.size() != kChunks) ++faults;
      for (const NodeGather::Complete& c : complete_)
        clients_[node]->gradient_ready(c.chunk, c.round, c.weight, ++now_);
    }
    for (auto& client : clients_) client->tick(now_ += 1'000'000'000);
  }
  std::uint64_t versions() const {
    std::uint64_t sum = 0;
    for (const auto& client : clients_) {
      for (std::uint32_t c = 0; c < kChunks; ++c) sum += client->version(ChunkIndex(c)).value;
    }
    return sum;
  }
  const ShardCore& core() const { return core_; }
  int faults = 0;

 private:
  std::vector<ChunkIndex> chunks() const {
    std::vector<ChunkIndex> all;
    for (std::uint32_t c = 0; c < kChunks; ++c) all.push_back(ChunkIndex(c));
    return all;
  }
  ShardJob shard_job(EncodingId encoding) const {
    ShardJob job = Shard().job({.nodes = kNodes, .optimizer = "adamw", .push = encoding, .pull = encoding});
    return changed(job, [&](ViewPlan& view, JobConfig&) { view.layout = layout_; });
  }
  ClientJob client_job(std::uint32_t node, EncodingId encoding) const {
    ClientJob job;
    JobConfig config;
    config.push = config.pull = encoding;
    job.view = view_of(config, layout_);
    job.node = NodeRank(node);
    job.chunks = chunks();
    job.connections.assign(kChunks, ConnectionIndex(0));
    return job;
  }

  void send_push(ConnectionIndex, Push push) override {
    core_.on_push(peer_of(push.key.node.value), push, Payload(std::shared_ptr(frame_), *frame_));
  }
  void send_init(ConnectionIndex, const Init& init) override { core_.on_init(peer_of(0), init, initial_); }
  void send_pull(ConnectionIndex, const Pull& pull) override { core_.on_pull(peer_of(pull.key.node.value), pull); }
  void send_query(ConnectionIndex, const Query&) override { ++faults; }
  void residual_restored(ChunkIndex, std::span<const std::byte>) override { ++faults; }
  void answered(const Answer& answer, bool, std::span<const std::byte>) override {
    gathers_[answer.key.node.value]->answered(answer.key.chunk);
  }
  void refused(const ErrorReply&) override { ++faults; }

  void answer(PeerId, const Answer& header, const BufferRef& payload) override {
    if (header.version.value % 2 == 0) {
      being_sent_[header.key.chunk.value] = payload;
    } else {
      being_sent_[header.key.chunk.value].reset();
    }
    clients_[header.key.node.value]->on_answer(ConnectionIndex(0), header, payload.bytes(), ++now_);
  }
  void residual(PeerId, const Residual&, const BufferRef&) override { ++faults; }
  void ack(PeerId, const Ack& header) override {
    clients_[header.key.node.value]->on_ack(ConnectionIndex(0), header, ++now_);
  }
  void resend(PeerId, const Resend&) override { ++faults; }
  void error(PeerId, const ErrorReply&) override { ++faults; }
  void captured(ChunkSnapshot) override { ++faults; }

  std::shared_ptr<const Layout> layout_;
  BufferPool pool_;
  ShardCore core_;
  std::shared_ptr<const std::vector<std::byte>> frame_;
  std::vector<std::byte> initial_;
  std::vector<std::unique_ptr<ClientCore>> clients_;
  std::vector<std::unique_ptr<NodeGather>> gathers_;
  std::vector<NodeGather::Complete> complete_;
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
    Loop loop(encoding);
    std::uint64_t round = 1;
    for (; round <= 4; ++round) loop.round(round);  // the pool warms up
    const long before = allocations_so_far();
    for (; round <= 20; ++round) loop.round(round);
    CHECK(allocations_so_far() == before);
    CHECK(loop.faults == 0);
    CHECK(loop.versions() == 20u * kChunks * kNodes);
    CHECK(loop.core().stats().steps == 20 * kChunks);
    CHECK(loop.core().stats().out_of_place_steps >= 8 * kChunks);
  }
}

}  // namespace tributary
