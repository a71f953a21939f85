// The streams: from ready gradients to new parameters. How a view begins and ends is in allreduce_view.cc.
#include "worker/allreduce/allreduce_job.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/daemon/daemon_thread.h"
#include "kernels/tree_sum.h"

namespace tributary {
namespace {

// What each member of a ring sends for a buffer, and receives.
std::uint64_t ring_bytes(std::uint64_t bytes, std::uint64_t members) {
  return 2 * bytes * (members - 1) / members;
}

}  // namespace

std::uint16_t AllreduceJob::streams_of(const AllreduceOptions& options, std::size_t chunks) {
  const std::uint16_t wanted = options.streams == 0 ? kDefaultStreams : std::min(options.streams, kMaxStreams);
  return static_cast<std::uint16_t>(std::min<std::size_t>(wanted, chunks));
}

std::uint64_t AllreduceJob::staging_bytes(const Layout& layout, std::size_t members, std::uint16_t streams) {
  return streams * members * (std::min(layout.chunk_elements(), layout.flat_elements()) + kTailParts) * sizeof(float);
}

AllreduceJob::AllreduceJob(std::shared_ptr<NodeJob> job, AllreduceLane& lane)
    : job_(std::move(job)),
      view_(job_->view()),
      lane_(lane),
      flat_(is_flat(*view_.plan)),
      streams_(streams_of(lane_.options(), job_->layout().chunks())),
      seen_(job_->layout().tensors().size() * job_->spec().ranks, view_.start.value),
      digests_(job_->layout().chunks(), view_.nodes),
      gather_(view_.layout, job_->layout().chunks_owned_by(ShardIndex(0), LaneIndex(0)), job_->spec().ranks,
              view_.start),
      complete_(job_->layout().chunks(), Complete{view_.start, {}}) {
  newly_.reserve(job_->layout().chunks());
  conductor_ = start_thread("conductor", lane_.logger(), [this] { conduct(); });
}

AllreduceJob::~AllreduceJob() {
  cut();
  conductor_.join();
}

std::string AllreduceJob::place() const {
  return "node " + std::to_string(job_->spec().node.value) + " of " + std::to_string(view_.nodes);
}

void AllreduceJob::fail_job(LaneFailure::Kind kind, Error error) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_ || closing_) return;
    failed_ = true;
  }
  changed_.notify_all();
  lane_.failed(job_, {kind, 0, std::move(error)});
}

// A connection that breaks tells that another node is gone: the coordinator knows more, or will soon.
void AllreduceJob::fail_call(const std::string& what, const Error& error) {
  if (error.code == ErrorCode::kStopped) return;
  const bool gone = error.code == ErrorCode::kUnavailable;
  fail_job(gone ? LaneFailure::Kind::kViewOver : LaneFailure::Kind::kRefused,
           {error.code, place() + ", " + what + ": " + error.message});
}

// ---- The lane's thread ----

// The lock is held while the trainers' words are read: a stream takes it before it makes a version known, so that
// whoever is ready for the next round finds its chunks open.
void AllreduceJob::scan() {
  Status status;
  std::uint32_t culprit = 0;
  {
    const std::lock_guard lock(mutex_);
    if (failed_ || closing_ || !begun_) return;
    const std::vector<std::uint32_t>& tensors = gather_.tensors();
    newly_.clear();
    for (std::uint32_t rank = 0; rank < job_->spec().ranks && status; ++rank) {
      const TensorWord* words = job_->tensor_words(rank);
      std::uint64_t* seen = seen_.data() + rank * tensors.size();
      for (std::size_t i = 0; i < tensors.size() && status; ++i) {
        const TensorWord& word = words[tensors[i]];
        const std::uint64_t round = word.round.load(std::memory_order_acquire);
        if (round == seen[i]) continue;
        seen[i] = round;
        status = gather_.on_tensor(rank, tensors[i], Round(round), word.weight.load(std::memory_order_relaxed), newly_);
        culprit = rank;
      }
    }
    for (const NodeGather::Complete& done : newly_) {
      Complete& complete = complete_[done.chunk.value];
      complete = {done.round, {done.weight, digests_.bring(done.chunk)}};
      if (exchange_) exchange_->ready(done.chunk, complete.tail);
    }
    if (!status) failed_ = true;
  }
  if (!newly_.empty() || !status) changed_.notify_all();
  if (!status) lane_.failed(job_, {LaneFailure::Kind::kTrainer, culprit, status.error()});
}

void AllreduceJob::tick(std::uint64_t now_ms) {
  const std::lock_guard lock(mutex_);
  if (failed_ || closing_) return;
  for (const auto& member : members_) {
    const std::uint64_t since = member->since_ms.load(std::memory_order_relaxed);
    if (since == 0 || now_ms < since + kNoticeMs || member->noticed_ms.load(std::memory_order_relaxed) == since) {
      continue;
    }
    member->noticed_ms.store(since, std::memory_order_relaxed);
    lane_.logger()->info("job '{}': bucket {} of round {} has waited {} s for other nodes", view_.name(),
                         member->chunk.load(std::memory_order_relaxed), member->round.load(std::memory_order_relaxed),
                         (now_ms - since) / 1000);
  }
}

// ---- A member's thread ----

void AllreduceJob::run_member(Member& member) {
  const auto chunks = static_cast<std::uint32_t>(job_->layout().chunks());
  if (Status connected = connect_member(member); !connected) return;
  {
    std::unique_lock lock(mutex_);
    ++connected_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return begun_ || failed_ || closing_; });
  }
  for (Round round = view_.start.next();; round = round.next()) {
    for (std::uint32_t i = member.stream; i < chunks; i += streams_) {
      const ChunkIndex chunk(chunks - 1 - i);
      Complete ready;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return complete_[chunk.value].round.value >= round.value || failed_ || closing_; });
        if (failed_ || closing_) return;
        ready = complete_[chunk.value];
      }
      member.chunk.store(chunk.value, std::memory_order_relaxed);
      member.round.store(round.value, std::memory_order_relaxed);
      if (Status done = exchange(member, chunk, round, ready.tail); !done) {
        return fail_call("bucket " + std::to_string(chunk.value) + " of round " + std::to_string(round.value),
                         done.error());
      }
    }
  }
}

// The local ranks' gradients of one bucket, added in tree order, and behind them the node's tail.
class AllreduceJob::Bucket final : public RingSource {
 public:
  // tail: the node's, so its first member brings it.
  Bucket(const AllreduceJob& job, const Member& member, ChunkRange range, const BucketTail& tail)
      : elements_(range.elements), reduce_ns_(job.job_->header().reduce_ns) {
    const std::uint32_t first = job.flat_ ? member.index : 0;
    const std::uint32_t last = job.flat_ ? member.index + 1 : job.job_->spec().ranks;
    for (std::uint32_t rank = first; rank < last; ++rank) {
      gradients_[ranks_++] = job.job_->gradients(rank) + range.begin;
    }
    put_tail(member.index == 0 ? tail : BucketTail{}, tail_.data());
  }

  void fill(std::size_t first, std::size_t count, float* out) override {
    const std::uint64_t began = steady_ns();
    const std::size_t gradients = first < elements_ ? std::min(count, elements_ - first) : 0;
    sum(first, gradients, out);
    for (std::size_t i = gradients; i < count; ++i) out[i] = tail_[first + i - elements_];
    reduce_ns_.fetch_add(steady_ns() - began, std::memory_order_relaxed);
  }

  void fill_and_add(std::size_t first, std::size_t count, const float* other, float* out) override {
    const std::uint64_t began = steady_ns();
    const std::size_t gradients = first < elements_ ? std::min(count, elements_ - first) : 0;
    for (std::size_t done = 0; done < gradients; done += kBlock) {
      const std::size_t now = std::min(kBlock, gradients - done);
      const float* inputs[] = {gradients_[0] + first + done, other + done};
      if (ranks_ > 1) {
        sum(first + done, now, out + done);
        inputs[0] = out + done;
      }
      kernels::tree_sum(inputs, now, out + done);
    }
    for (std::size_t i = gradients; i < count; ++i) out[i] = tail_[first + i - elements_] + other[i];
    reduce_ns_.fetch_add(steady_ns() - began, std::memory_order_relaxed);
  }

 private:
  static constexpr std::size_t kBlock = 2048;  // floats that stay in the first cache

  void sum(std::size_t first, std::size_t count, float* out) {
    if (count == 0) return;
    if (ranks_ == 1) {
      std::memcpy(out, gradients_[0] + first, count * sizeof(float));
      return;
    }
    std::array<const float*, kernels::kMaxSumInputs> inputs;
    for (std::size_t rank = 0; rank < ranks_; ++rank) inputs[rank] = gradients_[rank] + first;
    kernels::tree_sum({inputs.data(), ranks_}, count, out);
  }

  std::array<const float*, kernels::kMaxSumInputs> gradients_;
  std::size_t ranks_ = 0;
  const std::uint64_t elements_;
  std::array<float, kTailParts> tail_;
  std::atomic<std::uint64_t>& reduce_ns_;
};

Status AllreduceJob::exchange(Member& member, ChunkIndex chunk, Round round, const BucketTail& tail) {
  const ChunkRange range = job_->layout().chunk(chunk);
  Bucket bucket(*this, member, range, tail);
  member.since_ms.store(steady_ms(), std::memory_order_relaxed);
  Status summed = member.ring->allreduce(member.staging.data(), range.elements + kTailParts, bucket);
  member.since_ms.store(0, std::memory_order_relaxed);
  if (!summed) return summed;
  // Every member has the same sum: one of them is enough.
  return member.index == 0 ? finish_bucket(member, chunk, round, tail.digest) : Status();
}

Status AllreduceJob::finish_bucket(Member& member, ChunkIndex chunk, Round round, std::uint64_t digest) {
  const ChunkRange range = job_->layout().chunk(chunk);
  const float* tail = member.staging.data() + range.elements;
  if (!same_digest(digest, view_.nodes, tail)) return tl::unexpected(digests_.difference(round));
  state_->step(chunk, member.staging.data(), take_weight(tail));
  if (wants(chunk, round)) {
    std::vector<const float*> slots;
    for (const float* slot : state_->slots()) slots.push_back(slot + range.begin);
    keep(chunk, round, state_->parameters() + range.begin, slots, state_->steps()[chunk.value]);
  }
  publish_bucket(chunk, round);
  return {};
}

void AllreduceJob::publish_bucket(ChunkIndex chunk, Round round) {
  const ChunkRange range = job_->layout().chunk(chunk);
  constexpr auto kRelaxed = std::memory_order_relaxed;
  // What crosses this node's link: rings over ranks have one member here whose neighbour is elsewhere.
  const std::uint64_t wire =
      view_.nodes == 1 ? 0 : ring_bytes((range.elements + kTailParts) * sizeof(float), ring_size());
  NodeHeader& header = job_->header();
  header.bytes_pushed.fetch_add(wire, kRelaxed);
  header.bytes_pulled.fetch_add(wire, kRelaxed);
  {
    const std::lock_guard lock(mutex_);
    gather_.answered(chunk);
    LaneJobStats& counts = job_->lane_stats(0);
    counts.pushes.add();
    counts.answers.add();
    counts.bytes_pushed.add(wire);
    counts.bytes_pulled.add(wire);
    counts.reduce_ns.set(header.reduce_ns.load(kRelaxed));
  }
  job_->chunk_words()[chunk.value].version_plus_one.store(round.value + 1, std::memory_order_release);
  job_->announce();
}

// ---- What is kept of a chunk; the device exchange's thread, or a stream's ----

bool AllreduceJob::wants(ChunkIndex chunk, Round round) {
  const bool saved = checkpointer_ && checkpointer_->reaches(round);
  return saved || digests_.due(chunk, round);
}

void AllreduceJob::keep(ChunkIndex chunk, Round round, const float* parameters, std::span<const float* const> state,
                        std::uint64_t step) {
  if (checkpointer_ && checkpointer_->reaches(round)) checkpointer_->keep(chunk, parameters, state, step);
  if (digests_.due(chunk, round)) {
    digests_.take(chunk, {parameters, job_->layout().chunk(chunk).elements}, state, step);
  }
}

void AllreduceJob::stepped(ChunkIndex chunk, Round round) {
  publish_bucket(chunk, round);
}

void AllreduceJob::engine_failed(const Error& error) {
  fail_call("summing", error);
}

}  // namespace tributary
