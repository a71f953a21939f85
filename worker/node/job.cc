#include "worker/node/job.h"

#include <algorithm>
#include <new>

#include "common/base/assert.h"
#include "worker/reduce/host_reducer.h"

namespace tributary {

bool NodeJobSpec::gives_values(std::uint32_t local_rank) const {
  const std::uint32_t rank = node.value * ranks + local_rank;
  return !view->resumes && std::ranges::any_of(view->layout->tensors(), [&](const TensorSpec& tensor) {
    return view->model_ranks.first_with(tensor) == rank;
  });
}

bool NodeJobSpec::init() const {
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    if (gives_values(rank)) return true;
  }
  return false;
}

namespace {

std::vector<RegionPart> parts_of(const Layout& layout, std::span<const std::uint32_t> model_ranks, std::uint32_t rank) {
  std::vector<std::size_t> held;
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    if (layout.tensors()[t].held_at(model_ranks, rank)) held.push_back(t);
  }
  return rank_region_parts(layout, held);
}

std::uint64_t bytes_of(const std::vector<RegionPart>& parts) {
  std::uint64_t bytes = 0;
  for (const RegionPart& part : parts) bytes += part.bytes();
  return bytes;
}

// Memory in the parts of a region.
Result<SharedMemory> create_parts(std::size_t bytes, const std::vector<RegionPart>& parts, const std::string& purpose) {
  const std::uint64_t wanted = bytes_of(parts), available = available_memory();
  if (wanted == bytes) return SharedMemory::create(bytes, purpose, SharedMemory::Peers::kWrite);
  auto region = SharedMemory::create_sparse(bytes, purpose, SharedMemory::Peers::kWrite);
  if (!region) return region;
  const bool is_there = wanted <= available && std::ranges::all_of(parts, [&](const RegionPart& part) {
                          return region->reserve(part.begin, part.bytes());
                        });
  if (is_there) return region;
  return fail(ErrorCode::kLimit, "cannot reserve " + std::to_string(wanted) + " bytes of shared memory for " + purpose +
                                     "; free memory, or use a smaller model");
}

}  // namespace

std::uint64_t NodeJob::bytes_needed(const Layout& layout, std::uint32_t ranks,
                                    std::span<const std::uint32_t> model_ranks, EncodingSpec push) {
  std::uint64_t bytes = NodeRegion::bytes_needed(layout) + HostReducer::frame_bytes_for(layout, ranks, push);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) bytes += bytes_of(parts_of(layout, model_ranks, rank));
  return bytes;
}

Result<std::shared_ptr<NodeJob>> NodeJob::create(NodeJobSpec spec, std::uint16_t lanes,
                                                 std::shared_ptr<MemoryBudget> budget,
                                                 const std::shared_ptr<const NodeRegion>& earlier) {
  std::shared_ptr<NodeJob> job(new NodeJob(std::move(spec)));
  const Layout& layout = job->layout();
  const std::size_t flat_bytes = layout.flat_elements() * sizeof(float);
  const bool on_devices = job->spec_.lender() != nullptr, in_ring = job->spec_.gradients_in_ring;
  TRIB_ASSERT(!in_ring || (job->spec_.redo && job->spec_.ranks == 1 && !on_devices));
  TRIB_ASSERT(!in_ring || job->spec_.redo->slot_bytes() == flat_bytes);
  // The ranks' gradients, and the frames that are made of them.
  const std::size_t gradient_bytes = on_devices || in_ring ? 0 : flat_bytes;
  const std::uint64_t bytes =
      on_devices
          ? NodeRegion::bytes_needed(layout) + job->spec_.ranks * rank_gradients_offset(layout.tensors().size()) +
                job->spec_.lender()->pinned_bytes() + job->spec_.lane_memory
          : bytes_needed(layout, job->spec_.ranks, job->spec_.model_ranks(), job->plan().config.push) +
                job->spec_.lane_memory - (in_ring ? flat_bytes : 0) -
                (job->spec_.redo ? HostReducer::frame_bytes_for(layout, job->spec_.ranks, job->plan().config.push) : 0);
  if (!budget->take(bytes)) {
    return fail(ErrorCode::kLimit,
                "job '" + job->view().name() + "' needs " + std::to_string(bytes) + " bytes of memory on this node, " +
                    std::to_string(budget->used()) + " of " + std::to_string(budget->limit()) +
                    " are taken; raise [limits] max_shared_memory in worker.toml or stop another job");
  }
  job->budget_bytes_ = bytes;
  const std::uint64_t region_bytes = NodeRegion::bytes_needed(layout);
  auto region_share = BudgetShare::taken(budget, region_bytes);
  job->share_ = BudgetShare::taken(std::move(budget), bytes - region_bytes);

  const std::string purpose = "job '" + job->view().name() + "'";
  auto node_memory = SharedMemory::create(region_bytes, purpose, SharedMemory::Peers::kWrite);
  if (!node_memory) return tl::unexpected(node_memory.error());
  job->region_ = std::make_shared<const NodeRegion>(
      NodeRegion{job->view().layout, std::move(region_share), std::move(*node_memory)});
  if (job->view().resumes && !on_devices && !job->plan().has_clocks()) job->earlier_.assign(lanes, earlier);
  job->earlier_.resize(lanes);
  std::byte* base = job->region_->memory.data();
  job->header_ = new (base) NodeHeader;
  job->header_->flat_elements = layout.flat_elements();
  job->header_->chunks = layout.chunks();
  job->chunk_words_ = new (base + sizeof(NodeHeader)) ChunkWord[layout.chunks()];
  job->published_ = std::make_unique<ChunkWord[]>(layout.chunks());
  job->parameters_ = job->region_->parameters();

  for (std::uint32_t rank = 0; rank < job->spec_.ranks; ++rank) {
    const std::size_t tensors = layout.tensors().size();
    const std::size_t rank_bytes = rank_gradients_offset(tensors) + gradient_bytes;
    auto region = gradient_bytes == 0
                      ? SharedMemory::create(rank_bytes, purpose, SharedMemory::Peers::kWrite)
                      : create_parts(rank_bytes, parts_of(layout, job->spec_.model_ranks(), rank), purpose);
    if (!region) return tl::unexpected(region.error());
    std::byte* at = region->data();
    auto* header = new (at) RankHeader;
    header->flat_elements = layout.flat_elements();
    header->tensors = tensors;
    RankMemory memory;
    auto* words = new (at + sizeof(RankHeader)) TensorWord[tensors];
    for (std::size_t t = 0; t < tensors; ++t) words[t].round.store(job->view().start.value, std::memory_order_relaxed);
    memory.words = RankWords::behind(header, tensors);
    new (memory.words.blocks) ReadyBlock[ready_blocks(tensors)];
    if (gradient_bytes != 0) memory.gradients = reinterpret_cast<const float*>(at + rank_gradients_offset(tensors));
    memory.memory = std::move(*region);
    job->ranks_.push_back(std::move(memory));
  }
  job->stats_ = std::make_unique<std::vector<LaneJobStats>>(lanes);
  return job;
}

void NodeJob::add_reduce_ns(std::uint64_t ns) const {
  reduce_ns_.fetch_add(ns, std::memory_order_relaxed);
  header_->reduce_ns.fetch_add(ns, std::memory_order_relaxed);
}

void NodeJob::set_state(RegionState state) const {
  {
    const std::lock_guard lock(state_mutex_);
    if (state_.load(std::memory_order_relaxed) < state) {
      state_.store(state, std::memory_order_relaxed);
      header_->state.store(static_cast<std::uint32_t>(state), std::memory_order_release);
    }
  }
  header_->announce();
}

Version NodeJob::min_version() const {
  std::uint64_t lowest = ~0ull;
  for (std::size_t c = 0; c < layout().chunks(); ++c) {
    lowest = std::min(lowest, published_[c].version_plus_one.load(std::memory_order_acquire));
  }
  return Version(lowest == 0 ? 0 : lowest - 1);
}

bool NodeJob::whole() const {
  for (std::size_t c = 0; c < layout().chunks(); ++c) {
    if (published_[c].version_plus_one.load(std::memory_order_acquire) == 0) return false;
  }
  return true;
}

std::uint64_t NodeJob::answers() const {
  std::uint64_t sum = 0;
  for (std::size_t c = 0; c < layout().chunks(); ++c) {
    sum += published_[c].version_plus_one.load(std::memory_order_acquire);
  }
  return sum;
}

Version NodeJob::max_version() const {
  std::uint64_t highest = 0;
  for (std::size_t c = 0; c < layout().chunks(); ++c) {
    highest = std::max(highest, published_[c].version_plus_one.load(std::memory_order_acquire));
  }
  return Version(highest == 0 ? 0 : highest - 1);
}

// Lanes work side by side: what the slowest of them takes is what the node takes. Lanes without chunks have no rounds.
NodePace NodeJob::pace() const {
  NodePace pace{.job = view().job, .view = view().view, .node = spec_.node, .answers = answers()};
  for (const LaneJobStats& lane : *stats_) {
    const std::uint64_t rounds = lane.rounds.value();
    if (rounds == 0) continue;
    pace.samples = std::max(pace.samples, lane.samples.value());
    pace.rounds = pace.rounds == 0 ? rounds : std::min(pace.rounds, rounds);
    pace.compute_ns = std::max(pace.compute_ns, lane.compute_ns.value());
    pace.reduce_ns = std::max(pace.reduce_ns, lane.reduce_ns.value());
    pace.network_ns = std::max(pace.network_ns, lane.network_ns.value());
  }
  for (std::uint32_t rank = 0; rank < spec_.ranks; ++rank) pace.said.push_back(said(rank));
  return pace;
}

Round NodeJob::said(std::uint32_t rank) const {
  const std::span<const std::uint32_t> model_ranks = spec_.model_ranks();
  std::uint64_t least = ~0ull;
  for (std::size_t t = 0; t < layout().tensors().size(); ++t) {
    if (layout().tensors()[t].held_at(model_ranks, rank))
      least = std::min(least, tensor_words(rank)[t].round.load(std::memory_order_relaxed));
  }
  return Round(least == ~0ull ? 0 : least);
}

bool NodeJob::beyond(std::uint32_t rank, Round round) const {
  const TensorWord* words = tensor_words(rank);
  for (std::size_t t = 0; t < layout().tensors().size(); ++t) {
    if (words[t].round.load(std::memory_order_relaxed) > round.value) return true;
  }
  return false;
}

}  // namespace tributary
