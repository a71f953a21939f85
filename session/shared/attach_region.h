// The shared memory between a worker daemon and its trainers: writers of each part, and when to read it. POSIX shared
// memory, created by the worker, unlinked at once and passed as file descriptors, so that the kernel reclaims it when
// the last process goes.
//
// Node region (one per job and node; trainers map it read-write,
// but only rank 0 of a fresh job writes parameters, once):
//     NodeHeader | ChunkWord[chunks] | pad to 4096 | parameters: float[flat_elements]
// Gradient region (one per local rank; written by the trainer, read by the worker):
//     RankHeader | TensorWord[tensors] | ReadyBlock[ready_blocks(tensors)] | pad to 4096 | gradients: float[flat_elements]
// RankHeader ends with what the trainer records while the job is traced.
// Gradients are not in it if the ranks are reduced on devices (then the node region's parameters are only the initial
// ones), or if the node's only rank writes them into the redo ring (worker/reduce/redo_ring.h).
//
// Memory order. Trainer: writes a tensor's gradient, TensorWord.weight, its settings (relaxed), then TensorWord.round
// (release), then counts it in its ReadyBlock and in RankHeader::ready (release), then the eventfds of the lanes that
// own chunks of it. Worker: looks at the tensors of blocks that have counted since (acquire): reads round (acquire),
// then weight and gradient. A count shows only where to look. Worker: writes a chunk's parameters, then
// ChunkWord.version_plus_one (release), then progress (futex word) and wakes waiters if there are any.
//
// When a tensor may be overwritten: ready(t) for round r promises that the gradient of t is final AND that the trainer
// reads the parameters of t no more until wait(t). The answer to a chunk needs the pushes of all ranks for all tensors
// that overlap the chunk, so parameters can change only after every local rank has called ready for them. The gradient
// of t belongs to the worker from ready(t) until wait(t) returns.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/layout.h"
#include "common/math/gate_word.h"
#include "common/math/step_settings.h"
#include "session/shared/trace_window.h"

namespace tributary {

inline constexpr std::uint64_t kNodeRegionMagic = 0x6e6f646554524942ull;
inline constexpr std::uint64_t kRankRegionMagic = 0x72616e6b54524944ull;
inline constexpr std::size_t kRegionAlign = 4096;

enum class RegionState : std::uint32_t {
  kRunning = 0,
  kStopRequested = 1,  // finish the round, then detach with LeaveKind::kStopped
  kStopped = 2,        // the view has ended cleanly (AttachStopped says why); rounds still open are void
  kRestart = 3,        // the view is over because a member was lost; attach again
  kFailed = 4,         // the worker refused something or died; see the socket
};

// Gate words of the newest rounds. A word is written again so many rounds later, which needs this node's gradients of
// the rounds between. The lane writes a word before it publishes any of the round's parameters; a trainer reads the
// word after it has waited for any of them.
inline constexpr std::size_t kGateWords = 4;

struct NodeHeader {
  std::uint64_t magic = kNodeRegionMagic;
  std::uint64_t flat_elements = 0;
  std::uint64_t chunks = 0;
  std::atomic<std::uint32_t> state{0};     // RegionState
  std::atomic<std::uint32_t> progress{0};  // futex: grows with every published chunk and state change
  std::atomic<std::uint32_t> waiters{0};   // trainers asleep on progress
  // Totals since the attach, for the trainers' time split (relaxed, each written by one lane through fetch_add).
  std::atomic<std::uint64_t> reduce_ns{0};
  std::atomic<std::uint64_t> bytes_pushed{0};
  std::atomic<std::uint64_t> bytes_pulled{0};
  // Modes ssp and async, over all answers: by how many clocks the slowest node was behind the reader.
  std::atomic<std::uint64_t> pulls{0};
  std::atomic<std::uint64_t> staleness_sum{0};
  std::atomic<std::uint64_t> staleness_max{0};
  // The job's last round. All trainers write the same, before they are ready for that round. 0: not known.
  std::atomic<std::uint64_t> last_round{0};
  // Written by the worker: the round of the next snapshot, for which ranks give their kept state. 0: none is named.
  std::atomic<std::uint64_t> snapshot_round{0};
  GateWord gate[kGateWords];  // by round % kGateWords; jobs with a gate

  // Something was published, or the state has changed: wakes the trainers that sleep.
  void announce();
  // Sleeps while progress is `seen`, at most `timeout`. May wake without a reason: the caller looks at its condition
  // again. Returns false only when the time ran out.
  bool sleep(std::uint32_t seen, std::chrono::nanoseconds timeout);
};
struct ChunkWord {
  std::atomic<std::uint64_t> version_plus_one{0};  // 0: no parameters yet

  // The worker, with the parameters written: they are of this version.
  void publish(Version version) { version_plus_one.store(version.value + 1, std::memory_order_release); }
  // Returns whether the parameters are of that round, or of a later one.
  bool has(Round round) const { return version_plus_one.load(std::memory_order_acquire) > round.value; }
};

struct RankHeader {
  std::uint64_t magic = kRankRegionMagic;
  std::uint64_t flat_elements = 0;
  std::uint64_t tensors = 0;
  std::atomic<std::uint64_t> ready{0};  // grows with every ready()
  TraceWindow trace;
};
struct TensorWord {
  std::atomic<std::uint64_t> round{0};  // of the last ready(); begins at the resume round
  std::atomic<std::uint64_t> weight{0};
  // Settings of the step, given by the trainer.
  std::atomic<double> lr{StepSettings::kConfigured};
  std::atomic<double> weight_decay{StepSettings::kConfigured};
  std::atomic<double> momentum{StepSettings::kConfigured};

  StepSettings settings() const {
    return {lr.load(std::memory_order_relaxed), weight_decay.load(std::memory_order_relaxed),
            momentum.load(std::memory_order_relaxed)};
  }
  void set(const StepSettings& said) {
    lr.store(said.lr, std::memory_order_relaxed);
    weight_decay.store(said.weight_decay, std::memory_order_relaxed);
    momentum.store(said.momentum, std::memory_order_relaxed);
  }
};

// So many consecutive tensors share one: a lane whose doorbell rings need not look at all of a large model.
inline constexpr std::size_t kReadyBlock = 64;
struct ReadyBlock {
  std::atomic<std::uint64_t> ready{0};  // grows with every ready() of one of them
};
inline constexpr std::size_t ready_blocks(std::size_t tensors) {
  return (tensors + kReadyBlock - 1) / kReadyBlock;
}
// The words in which a rank reports what it is ready with.
struct RankWords {
  RankHeader* header = nullptr;
  TensorWord* tensors = nullptr;
  ReadyBlock* blocks = nullptr;

  static RankWords behind(RankHeader* header, std::size_t tensors) {
    auto* const words = reinterpret_cast<TensorWord*>(header + 1);
    return {header, words, reinterpret_cast<ReadyBlock*>(words + tensors)};
  }
  // The trainer, with TensorWord::weight and settings written: it is ready for `round`.
  void say(std::size_t tensor, std::uint64_t round) const {
    tensors[tensor].round.store(round, std::memory_order_release);
    blocks[tensor / kReadyBlock].ready.fetch_add(1, std::memory_order_release);
    header->ready.fetch_add(1, std::memory_order_release);
  }
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

inline std::size_t region_align(std::size_t bytes) {
  return (bytes + kRegionAlign - 1) / kRegionAlign * kRegionAlign;
}
inline std::size_t node_parameters_offset(std::size_t chunks) {
  return region_align(sizeof(NodeHeader) + chunks * sizeof(ChunkWord));
}
inline std::size_t rank_gradients_offset(std::size_t tensors) {
  return region_align(sizeof(RankHeader) + tensors * sizeof(TensorWord) + ready_blocks(tensors) * sizeof(ReadyBlock));
}

// The used parts of a rank's region: its words, and the gradients of tensors that it holds. The rest is addresses
// without memory, so that a rank with a part of the model needs memory only for that part.
struct RegionPart {
  std::size_t begin = 0, end = 0;  // bytes of the region
  std::size_t bytes() const { return end - begin; }
  bool operator==(const RegionPart&) const = default;
};

// Whole pages but for the region's end, ascending, with a page or more between two. held: numbers of tensors in the
// node's layout, ascending.
std::vector<RegionPart> rank_region_parts(const Layout& layout, std::span<const std::size_t> held);

}  // namespace tributary
