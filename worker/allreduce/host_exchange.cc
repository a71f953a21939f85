#include "worker/allreduce/host_exchange.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/base/clock.h"
#include "common/daemon/daemon_thread.h"
#include "kernels/tree_sum.h"

namespace tributary {

RingShape RingShape::of(const NodeJobSpec& spec) {
  const bool flat = spec.view->plan->config.allreduce.algorithm == AllreduceAlgorithm::kFlat;
  const std::uint32_t here = flat ? spec.ranks : 1;
  return {here, spec.view->nodes * here};
}

std::uint16_t HostExchange::streams_of(std::uint16_t wanted, std::size_t chunks) {
  const std::uint16_t streams = wanted == 0 ? kDefaultStreams : std::min(wanted, kMaxStreams);
  return static_cast<std::uint16_t>(std::min<std::size_t>(streams, chunks));
}

std::uint64_t HostExchange::staging_bytes(const Layout& layout, std::size_t members, std::uint16_t streams) {
  return streams * members * (std::min(layout.chunk_elements(), layout.flat_elements()) + kTailParts) * sizeof(float);
}

HostExchange::HostExchange(const NodeJob& job, const AllreduceMeans& means, ViewProgress& progress, ReplicaState& state,
                           BucketOutput& output)
    : job_(job),
      means_(means),
      shape_(RingShape::of(job.spec())),
      streams_(streams_of(means.streams, job.layout().chunks())),
      progress_(progress),
      state_(state),
      output_(output),
      ready_(job.layout().chunks(), Ready{job.view().start, {}}) {}

// ---- The conductor's thread, and the lane's ----

Status HostExchange::open(std::shared_ptr<GlooDevice> device, Addresses& mine) {
  if (!device && shape_.size > 1) {
    auto created = GlooDevice::create(means_.config.address);
    if (!created) return tl::unexpected(created.error());
    device = std::move(*created);
  }
  GlooRing::Options options{.size = shape_.size};
  options.timeout = std::chrono::milliseconds(means_.config.collective_timeout_ms);
  const std::uint64_t staging = staging_bytes(job_.layout(), 1, 1) / sizeof(float);
  for (std::uint16_t stream = 0; stream < streams_; ++stream) {
    for (std::uint32_t index = 0; index < shape_.here; ++index) {
      options.rank = job_.spec().node.value * shape_.here + index;
      auto ring = GlooRing::create(device, options);
      if (!ring) return tl::unexpected(ring.error());
      mine.push_back((*ring)->address_for_previous());
      mine.push_back((*ring)->address_for_next());
      members_.push_back(std::make_unique<Member>(stream, index, std::move(*ring), staging));
    }
  }
  return {};
}

void HostExchange::begin_connecting() {
  for (const auto& member : members_) {
    member->thread = start_thread("member", means_.lane.logger(), [this, &m = *member] {
      const Status ran = contained([&]() -> Status { return run_member(m), Status{}; });
      if (!ran) output_.exchange_failed("a member of a ring", ran.error());
    });
  }
}

Status HostExchange::connect(ViewProgress& view) {
  return view.await([this] { return connected_ == members_.size(); });
}

void HostExchange::stop(const std::function<void()>& /*meet*/) {
  for (const auto& member : members_) {
    if (member->thread.joinable()) member->thread.join();
  }
}

void HostExchange::notice(std::uint64_t now_ms) {
  for (const auto& member : members_) {
    const std::uint64_t since = member->since_ms.load(std::memory_order_relaxed);
    if (since == 0 || now_ms < since + kNoticeMs || member->noticed_ms.load(std::memory_order_relaxed) == since) {
      continue;
    }
    member->noticed_ms.store(since, std::memory_order_relaxed);
    means_.lane.logger()->info("job '{}': bucket {} of round {} has waited {} s for other nodes", job_.view().name(),
                               member->chunk.load(std::memory_order_relaxed),
                               member->round.load(std::memory_order_relaxed), (now_ms - since) / 1000);
  }
}

// Aborts all rings, because members may hang in a round that can no longer be complete.
void HostExchange::close(bool /*clean*/) {
  for (const auto& member : members_) member->ring->abort();
}

// ---- A member's thread ----

void HostExchange::run_member(Member& member) {
  if (Status connected = connect_member(member); !connected) {
    return output_.exchange_failed("connecting stream " + std::to_string(member.stream), connected.error());
  }
  {
    const auto lock = progress_.lock();
    ++connected_;
  }
  progress_.notify();
  const auto chunks = static_cast<std::uint32_t>(job_.layout().chunks());
  for (Round round = job_.view().start.next();; round = round.next()) {
    for (std::uint32_t i = member.stream; i < chunks; i += streams_) {
      const ChunkIndex chunk(chunks - 1 - i);
      BucketTail tail;
      const auto is_ready = [&] {
        tail = ready_[chunk.value].tail;
        return ready_[chunk.value].round.value >= round.value;
      };
      if (!progress_.await(is_ready)) return;
      member.chunk.store(chunk.value, std::memory_order_relaxed);
      member.round.store(round.value, std::memory_order_relaxed);
      if (Status done = exchange(member, chunk, round, tail); !done) {
        return output_.exchange_failed(
            "bucket " + std::to_string(chunk.value) + " of round " + std::to_string(round.value), done.error());
      }
    }
  }
}

Status HostExchange::connect_member(Member& member) {
  const auto address = [&](std::uint32_t rank, std::size_t which) -> Result<std::vector<std::byte>> {
    const std::uint32_t node = rank / shape_.here;
    auto all = progress_.addresses_of(node, address_count(node));
    if (!all) return tl::unexpected(all.error());
    const std::size_t at = std::size_t{member.stream} * shape_.here + rank % shape_.here;
    return (*all)[kControlAddresses + 2 * at + which];
  };
  const auto before = address(member.ring->previous(), 1);
  if (!before) return tl::unexpected(before.error());
  const auto after = address(member.ring->next(), 0);
  if (!after) return tl::unexpected(after.error());
  return member.ring->connect(*before, *after);
}

// The local ranks' gradients of one bucket, added in tree order, and behind them the node's tail.
class HostExchange::Bucket final : public RingSource {
 public:
  // tail: the node's, so its first member brings it.
  Bucket(const HostExchange& host, const Member& member, ChunkRange range, const BucketTail& tail)
      : job_(host.job_), elements_(range.elements) {
    const bool flat = host.shape_.here > 1;
    const std::uint32_t first = flat ? member.index : 0;
    const std::uint32_t last = flat ? member.index + 1 : host.job_.spec().ranks;
    for (std::uint32_t rank = first; rank < last; ++rank) {
      gradients_[ranks_++] = host.job_.gradients(rank) + range.begin;
    }
    put_tail(member.index == 0 ? tail : BucketTail{}, tail_.data());
  }

  void fill(std::size_t first, std::size_t count, float* out) override {
    const std::uint64_t began = steady_ns();
    const std::size_t gradients = first < elements_ ? std::min(count, elements_ - first) : 0;
    sum(first, gradients, out);
    for (std::size_t i = gradients; i < count; ++i) out[i] = tail_[first + i - elements_];
    job_.add_reduce_ns(steady_ns() - began);
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
    job_.add_reduce_ns(steady_ns() - began);
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

  const NodeJob& job_;
  std::array<const float*, kernels::kMaxSumInputs> gradients_;
  std::size_t ranks_ = 0;
  const std::uint64_t elements_;
  std::array<float, kTailParts> tail_;
};

Status HostExchange::exchange(Member& member, ChunkIndex chunk, Round round, const BucketTail& tail) {
  const ChunkRange range = job_.layout().chunk(chunk);
  Bucket bucket(*this, member, range, tail);
  member.since_ms.store(steady_ms(), std::memory_order_relaxed);
  Status summed = member.ring->allreduce(member.staging.data(), range.elements + kTailParts, bucket);
  member.since_ms.store(0, std::memory_order_relaxed);
  if (!summed) return summed;
  // Every member has the same sum: one of them is enough.
  return member.index == 0 ? finish_bucket(member, chunk, round, tail.digest) : Status();
}

Status HostExchange::finish_bucket(Member& member, ChunkIndex chunk, Round round, std::uint64_t digest) {
  const ChunkRange range = job_.layout().chunk(chunk);
  const float* tail = member.staging.data() + range.elements;
  if (!same_digest(digest, job_.view().nodes, tail)) return tl::unexpected(output_.replicas_differ(round));
  state_.step(chunk, member.staging.data(), take_weight(tail), output_.settings(chunk));
  if (output_.wants(chunk, round)) {
    std::vector<const float*> slots;
    for (const float* slot : state_.slots()) slots.push_back(slot + range.begin);
    output_.capture(chunk, round, state_.parameters() + range.begin, slots, state_.steps()[chunk.value]);
  }
  output_.stepped(chunk, round);
  return {};
}

}  // namespace tributary
