// NodeJob: one view of a job on this node, as the attach thread and the lanes share it: what was agreed, the shared
// memory, and the counters. Immutable after create() but for the atomics and the mapped memory,
// whose rules are in attach_region.h.
//
// Lifetime: shared_ptr. The attach thread drops its reference when the view ends, a lane when ZeroMQ has given back
// everything it was lent (lane.h); the last one unmaps the memory. A trainer keeps its own mapping.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/config/job_plan.h"
#include "common/system/shared_memory.h"
#include "common/wire/messages.h"
#include "session/shared/attach_region.h"
#include "worker/device/allreduce_devices.h"
#include "worker/device/device_reducer.h"
#include "worker/node/kept_parameters.h"
#include "worker/node/lane_counts.h"
#include "worker/reduce/redo_ring.h"

namespace tributary {

// As messages name a job.
inline std::string job_in_words(const std::string& name) {
  return "job '" + name + "'";
}

// This node's part of a view.
struct NodeJobSpec {
  std::shared_ptr<const ViewPlan> view;
  NodeRank node;
  std::uint32_t ranks = 1;
  std::uint64_t lane_memory = 0;  // bytes that the lanes take for it next to what NodeJob allocates (all-reduce)
  std::vector<std::vector<std::string>> endpoints;  // [shard][lane]
  std::vector<std::string> server_keys;             // with keys: by shard
  std::vector<ShardIndex> plain;                    // with keys: whose lanes do not encrypt
  std::vector<std::vector<std::string>> locals;     // [shard][lane]; common/wire/local_link.h. Empty or missing: none
  std::vector<Version> redo_after;                  // JobWelcome::redo_after
  std::shared_ptr<RedoRing> redo;                   // null: pushes are not kept
  NodeRank values_from;                             // JobWelcome::values_from
  bool gradients_in_ring = false;                   // the node's one rank writes its gradients into `redo`
  std::shared_ptr<DeviceReduction> devices;         // of the node reduction
  std::shared_ptr<AllreduceDevices> allreduce_devices;
  std::string why_host;  // all-reduce: why not over devices, if a rank is on one

  // The model ranks of this node's ranks; empty: each rank holds the whole model.
  std::span<const std::uint32_t> model_ranks() const { return view->model_ranks.of_node(node, view->nodes); }
  // Does this node, or that rank of it, give initial values?
  bool init() const;
  bool gives_values(std::uint32_t local_rank) const;
  // The lender of the trainers' gradients and parameters; null: both are in shared memory.
  const DeviceLender* lender() const {
    return devices ? static_cast<const DeviceLender*>(devices.get()) : allreduce_devices.get();
  }
};

class NodeJob {
 public:
  // earlier: parameters that this node has already, perhaps (KeptParameters::of()). kLimit if the budget or the
  // machine's shared memory does not suffice; the message has the numbers.
  static Result<std::shared_ptr<NodeJob>> create(NodeJobSpec spec, std::uint16_t lanes,
                                                 std::shared_ptr<MemoryBudget> budget,
                                                 const std::shared_ptr<const NodeRegion>& earlier = {});
  NodeJob(const NodeJob&) = delete;
  NodeJob& operator=(const NodeJob&) = delete;

  // Bytes that create() would take from the budget, without devices, of ranks with these model ranks; none: each holds
  // all.
  static std::uint64_t bytes_needed(const Layout& layout, std::uint32_t ranks,
                                    std::span<const std::uint32_t> model_ranks, EncodingSpec push);

  const NodeJobSpec& spec() const { return spec_; }
  const ViewPlan& view() const { return *spec_.view; }
  const JobPlan& plan() const { return *spec_.view->plan; }
  const Layout& layout() const { return *spec_.view->layout; }
  NodeHeader& header() const { return *header_; }
  const ChunkWord* chunk_words() const { return chunk_words_; }
  float* parameters() const { return parameters_; }
  const RankWords& rank_words(std::uint32_t rank) const { return ranks_[rank].words; }
  const TensorWord* tensor_words(std::uint32_t rank) const { return ranks_[rank].words.tensors; }
  TraceWindow& trace_window(std::uint32_t rank) const { return ranks_[rank].words.header->trace; }
  // Null with devices, and where the rank writes them into the ring.
  const float* gradients(std::uint32_t rank) const { return ranks_[rank].gradients; }
  const std::shared_ptr<const NodeRegion>& region() const { return region_; }
  const SharedMemory& node_memory() const { return region_->memory; }
  const SharedMemory& rank_memory(std::uint32_t rank) const { return ranks_[rank].memory; }
  int node_fd() const { return node_memory().fd(); }
  int rank_fd(std::uint32_t rank) const { return ranks_[rank].memory.fd(); }
  std::size_t node_bytes() const { return node_memory().size(); }
  std::size_t rank_bytes() const { return ranks_.front().memory.size(); }
  std::uint64_t budget_bytes() const { return budget_bytes_; }
  LaneJobStats& lane_stats(std::size_t lane) const { return (*stats_)[lane]; }
  std::size_t lanes() const { return stats_->size(); }

  // Takes that lane's parameters of an earlier view, once; null: there are none.
  std::shared_ptr<const NodeRegion> take_earlier(std::size_t lane) const { return std::move(earlier_[lane]); }

  // Any thread. Time that went into summing, of jobs without servers.
  void add_reduce_ns(std::uint64_t ns) const;
  std::uint64_t reduce_ns() const { return reduce_ns_.load(std::memory_order_relaxed); }
  // The chunk's owner. Its parameters are of that version, for trainers to read.
  void publish(ChunkIndex chunk, Version version) const {
    published_[chunk.value].publish(version);
    chunk_words_[chunk.value].publish(version);
  }
  // Any thread. Sets the state, unless a later one is set already (states only grow), and wakes the trainers.
  void set_state(RegionState state) const;
  RegionState state() const { return state_.load(std::memory_order_relaxed); }
  // Any thread. Lowest and highest version among all chunks; 0 before the first parameters.
  Version min_version() const;
  Version max_version() const;
  // Any thread. Every chunk has parameters.
  bool whole() const;
  // Any thread. Grows with every answer.
  std::uint64_t answers() const;
  // Any thread. Where the node's time went in this view.
  NodePace pace() const;
  // Any thread. Is `round` the job's last one, as its trainers say?
  bool is_last(Round round) const { return round.value == header_->last_round.load(std::memory_order_relaxed); }
  // Any thread. The newest round of which local rank `rank` has given all gradients.
  Round said(std::uint32_t rank) const;
  // Did local rank `rank` call ready for a round beyond `round`?
  bool beyond(std::uint32_t rank, Round round) const;

 private:
  struct RankMemory {
    SharedMemory memory;
    RankWords words;
    const float* gradients = nullptr;
  };
  explicit NodeJob(NodeJobSpec spec) : spec_(std::move(spec)) {}

  const NodeJobSpec spec_;
  std::uint64_t budget_bytes_ = 0;
  std::shared_ptr<const BudgetShare> share_;  // of them, without the region's
  std::shared_ptr<const NodeRegion> region_;
  mutable std::vector<std::shared_ptr<const NodeRegion>> earlier_;  // by lane
  std::vector<RankMemory> ranks_;
  NodeHeader* header_ = nullptr;
  ChunkWord* chunk_words_ = nullptr;
  // Copies of what was published, of state and time: trainers can write to the region, where they are told.
  std::unique_ptr<ChunkWord[]> published_;
  mutable std::mutex state_mutex_;
  mutable std::atomic<RegionState> state_{RegionState::kRunning};
  mutable std::atomic<std::uint64_t> reduce_ns_{0};
  float* parameters_ = nullptr;
  std::unique_ptr<std::vector<LaneJobStats>> stats_;
};

// The reason why a job cannot continue, as a lane sees it.
struct LaneFailure {
  enum class Kind {
    kTrainer,   // `local_rank` broke the rules
    kRefused,   // a server refused something
    kViewOver,  // a server does not know this view any more, or the devices here are lost: it continues in another
  };
  Kind kind = Kind::kRefused;
  std::uint32_t local_rank = 0;
  Error error;
};

// A lane's reports to the opener of jobs on it.
class WorkerLaneListener {
 public:
  virtual ~WorkerLaneListener() = default;
  // On the lane's thread, at most once per job and lane.
  virtual void lane_failed(std::shared_ptr<NodeJob> job, LaneFailure failure) = 0;
};

}  // namespace tributary
