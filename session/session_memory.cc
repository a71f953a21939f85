#include "session/session_memory.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/base/model_ranks.h"

namespace tributary {
namespace {

constexpr char kSameRelease[] = "; worker and trainer must be of the same release";

std::vector<std::uint16_t> lanes_of(const Layout& layout, std::uint32_t begin, std::uint32_t end, std::uint16_t lanes) {
  std::vector<std::uint16_t> found;
  for (std::uint32_t c = begin; c < end && found.size() < lanes; ++c) {
    const std::uint16_t lane = layout.owner(ChunkIndex(c)).worker_lane(lanes);
    if (std::ranges::find(found, lane) == found.end()) found.push_back(lane);
  }
  return found;
}

}  // namespace

// Lent memory is closed before the socket: the worker frees the memory after that.
SessionMemory::~SessionMemory() {
  if (device_gradients_) opener_->close(device_gradients_);
  if (device_parameters_) opener_->close(device_parameters_);
}

Status SessionMemory::hold(const AttachReply& reply, std::uint32_t nodes, std::uint32_t local_rank,
                           std::vector<TensorSpec> tensors) {
  auto ranks = ModelRanks::of(reply.model_ranks, nodes, tensors);
  if (!ranks) return fail(ErrorCode::kMalformed, std::move(ranks.error().message));
  if (!ranks->whole() && ranks->by_rank().size() != reply.world_size) {
    return fail(ErrorCode::kMalformed, std::to_string(ranks->by_rank().size()) + " model ranks came for " +
                                           std::to_string(reply.world_size) + " ranks");
  }
  auto whole = Layout::with_owners(std::move(tensors), reply.chunk_elements, reply.owners);
  if (!whole) return tl::unexpected(whole.error());
  const std::span<const std::uint32_t> here = ranks->of_node(NodeRank(reply.node_rank), nodes);
  layout_ = whole->part(here);
  TRIB_ASSERT(layout_);  // every model rank holds something
  places_.assign(whole->tensors().size(), kNone);
  for (std::size_t t = 0; t < layout_->tensors().size(); ++t) {
    const TensorSpec& tensor = layout_->tensors()[t];
    if (!tensor.held_at(here, local_rank)) continue;
    const auto [begin, end] = layout_->chunks_of(t);
    places_[layout_->tensor_in_whole(t)] = static_cast<std::uint32_t>(held_.size());
    held_.push_back({t, layout_->tensor_offset(t), tensor.elements(), begin, end,
                     lanes_of(*layout_, begin, end, reply.lanes),
                     !reply.resume && ranks->first_with(tensor) == reply.rank});
  }
  return {};
}

Status SessionMemory::map(const AttachReply& reply, std::vector<FileDescriptor> fds,
                          const std::shared_ptr<TrainerDevice>& opener, FileDescriptor* kept,
                          const std::string& worker) {
  const auto bad = [&](const std::string& what) {
    return fail(ErrorCode::kMalformed,
                "worker daemon at " + worker + " sent an attach reply with " + what + kSameRelease);
  };
  const Layout& layout = *layout_;
  opener_ = opener;
  ring_ = reply.ring;
  const std::size_t lanes = reply.lanes;
  if (lanes == 0 || fds.size() != 2 + lanes + (reply.redo ? 1 : 0))
    return bad(std::to_string(fds.size()) + " descriptors for its lanes");
  const bool in_ring = ring_.slots != 0;
  if (in_ring) {
    if (!reply.redo) return bad("gradients in a ring that it has not sent");
    if (Status mapped = map_ring(std::move(fds.back()), worker); !mapped) return mapped;
    fds.back() = ring_memory_.take_fd();
  }
  if (kept) *kept = reply.redo ? std::move(fds.back()) : FileDescriptor();
  fds.resize(2 + lanes);
  const std::size_t parameters_at = node_parameters_offset(layout.chunks());
  const std::size_t gradients_at = rank_gradients_offset(layout.tensors().size());
  const std::size_t flat_bytes = layout.flat_elements() * sizeof(float);
  const bool device = !reply.device.empty();
  if (reply.node_region_bytes != parameters_at + flat_bytes ||
      reply.gradient_region_bytes != gradients_at + (device || in_ring ? 0 : flat_bytes)) {
    return bad("regions of another size than this model needs");
  }
  if (device && (!opener || reply.device != opener->uuid() || reply.device_bytes < flat_bytes)) {
    return bad("memory of device '" + reply.device + "' that this rank did not ask for");
  }
  auto node_region = SharedMemory::map(std::move(fds[0]), reply.node_region_bytes, "the job's parameters");
  if (!node_region) return tl::unexpected(node_region.error());
  auto rank_region = SharedMemory::map(std::move(fds[1]), reply.gradient_region_bytes, "this rank's gradients");
  if (!rank_region) return tl::unexpected(rank_region.error());
  node_memory_ = std::move(*node_region);
  rank_memory_ = std::move(*rank_region);
  rank_memory_.close_fd();
  doorbells_.assign(std::make_move_iterator(fds.begin() + 2), std::make_move_iterator(fds.end()));

  node_ = reinterpret_cast<NodeHeader*>(node_memory_.data());
  auto* header = reinterpret_cast<RankHeader*>(rank_memory_.data());
  if (node_->magic != kNodeRegionMagic || header->magic != kRankRegionMagic || node_->chunks != layout.chunks() ||
      header->tensors != layout.tensors().size()) {
    return bad("regions that are none of ours");
  }
  chunk_words_ = reinterpret_cast<ChunkWord*>(node_ + 1);
  given_parameters_ = reinterpret_cast<float*>(node_memory_.data() + parameters_at);
  parameters_ = given_parameters_;
  words_ = RankWords::behind(header, layout.tensors().size());
  gradients_ = reinterpret_cast<float*>(rank_memory_.data() + gradients_at);
  return {};
}

Result<std::shared_ptr<const void>> SessionMemory::hold_parameters() {
  if (!parameter_view_) {
    auto view = node_memory_.private_view("the job's parameters");
    if (!view) return tl::unexpected(view.error());
    parameter_view_ = std::make_shared<SharedMemory>(std::move(*view));
    const auto at = reinterpret_cast<const std::byte*>(given_parameters_) - node_memory_.data();
    parameters_ = reinterpret_cast<const float*>(parameter_view_->data() + at);
  }
  return parameter_view_;
}

Status SessionMemory::map_ring(FileDescriptor fd, const std::string& worker) {
  auto memory = SharedMemory::map_kept(std::move(fd), "this rank's gradients of the last rounds");
  if (!memory) return tl::unexpected(memory.error());
  const auto& [offset, slot_bytes, slots] = ring_;
  const std::uint64_t size = memory->size();
  if (offset > size || slot_bytes < layout_->flat_elements() * sizeof(float) || slot_bytes > (size - offset) / slots ||
      offset % alignof(float) != 0 || slot_bytes % alignof(float) != 0) {
    return fail(ErrorCode::kMalformed, "worker daemon at " + worker + " gave this rank " + std::to_string(slots) +
                                           " places of " + std::to_string(slot_bytes) +
                                           " bytes for its gradients, in memory that has " + std::to_string(size) +
                                           kSameRelease);
  }
  ring_memory_ = std::move(*memory);
  return {};
}

Status SessionMemory::open_device(const AttachReply& reply) {
  if (reply.device.empty()) return {};
  const auto gradients = opener_->open(reply.gradient_handle);
  if (!gradients) return tl::unexpected(gradients.error());
  device_gradients_ = static_cast<float*>(*gradients);
  const auto parameters = opener_->open(reply.parameter_handle);
  if (!parameters) return tl::unexpected(parameters.error());
  device_parameters_ = static_cast<float*>(*parameters);
  return {};
}

void SessionMemory::ready(const HeldTensor& tensor, Round round, std::uint64_t weight,
                          const StepSettings& settings) const {
  TensorWord& word = words_.tensors[tensor.number];
  word.weight.store(weight, std::memory_order_relaxed);
  word.set(settings);
  words_.say(tensor.number, round.value);
  for (const std::uint16_t lane : tensor.lanes) {
    const std::uint64_t one = 1;
    // A full counter (EAGAIN) means that the lane is about to look anyway.
    [[maybe_unused]] const auto written = ::write(doorbells_[lane].get(), &one, sizeof one);
  }
}

std::vector<std::span<std::byte>> SessionMemory::host_memory() const {
  const auto whole_pages = [](std::byte* begin, std::size_t bytes) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t before = reinterpret_cast<std::uintptr_t>(begin) % page;
    return std::span<std::byte>(begin - before, (before + bytes + page - 1) / page * page);
  };
  std::vector<std::span<std::byte>> mappings{whole_pages(node_memory_.data(), node_memory_.size())};
  if (ring_.slots == 0) {
    std::vector<std::size_t> numbers;
    for (const HeldTensor& tensor : held_) numbers.push_back(tensor.number);
    for (const RegionPart& part : rank_region_parts(*layout_, numbers)) {
      mappings.push_back(whole_pages(rank_memory_.data() + part.begin, part.bytes()));
    }
  } else {
    mappings.push_back(whole_pages(ring_memory_.data() + ring_.offset, ring_.slots * ring_.slot_bytes));
  }
  return mappings;
}

std::span<float> SessionMemory::gradient(const HeldTensor& tensor, Round round) const {
  float* all = gradients_;
  if (ring_.slots != 0) {
    const std::uint64_t slot = round.value % ring_.slots;
    all = reinterpret_cast<float*>(ring_memory_.data() + ring_.offset + slot * ring_.slot_bytes);
  }
  return {all + tensor.offset, tensor.elements};
}

}  // namespace tributary
