#include "worker/reduce/node_gather.h"

#include <algorithm>

#include "common/base/assert.h"
#include "common/base/weight.h"

namespace tributary {
namespace {

constexpr std::uint32_t kNone = ~0u;

}  // namespace

NodeGather::NodeGather(std::shared_ptr<const Layout> layout, const std::vector<ChunkIndex>& chunks, std::uint32_t ranks,
                       Round start)
    : layout_(std::move(layout)),
      ranks_(ranks),
      local_(layout_->chunks(), kNone),
      chunks_(chunks.size()),
      tensor_rounds_(layout_->tensors().size() * ranks, start),
      chunk_weights_(chunks.size() * ranks, kUnset) {
  TRIB_ASSERT(ranks > 0);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    local_[chunks[i].value] = static_cast<std::uint32_t>(i);
    chunks_[i].round = start.next();
    chunks_[i].missing = needed(chunks[i]);
    const auto [first, last] = layout_->tensors_of(chunks[i]);
    for (std::size_t t = first; t < last; ++t) {
      if (tensors_.empty() || tensors_.back() < t) tensors_.push_back(static_cast<std::uint32_t>(t));
    }
  }
}

std::uint32_t NodeGather::needed(ChunkIndex chunk) const {
  const auto [first, last] = layout_->tensors_of(chunk);
  return static_cast<std::uint32_t>(last - first) * ranks_;
}

Status NodeGather::mistake(std::uint32_t rank, std::size_t tensor, const std::string& what) const {
  return fail(ErrorCode::kWrongRound,
              "local rank " + std::to_string(rank) + ", tensor '" + layout_->tensors()[tensor].name + "': " + what);
}

void NodeGather::answered(ChunkIndex chunk) {
  const std::uint32_t position = local_[chunk.value];
  TRIB_ASSERT(position != kNone);
  chunks_[position].open = true;
}

Status NodeGather::on_tensor(std::uint32_t rank, std::size_t tensor, Round round, std::uint64_t weight,
                             std::vector<Complete>& out) {
  TRIB_ASSERT(rank < ranks_ && tensor < layout_->tensors().size());
  Round& last_round = tensor_rounds_[tensor * ranks_ + rank];
  if (round != last_round.next()) {
    return mistake(rank, tensor,
                   "ready for round " + std::to_string(round.value) + " came where round " +
                       std::to_string(last_round.value + 1) +
                       " was due; call ready once per tensor and round, and wait() before the next one");
  }
  if (weight > kMaxWeight) {
    return mistake(rank, tensor,
                   "weight " + std::to_string(weight) + " is over the limit of " + std::to_string(kMaxWeight) +
                       "; the weight is the number of samples in the gradient");
  }
  last_round = round;
  const auto [begin, end] = layout_->chunks_of(tensor);
  for (std::uint32_t index = begin; index < end; ++index) {
    const std::uint32_t position = local_[index];
    if (position == kNone) continue;
    Chunk& chunk = chunks_[position];
    if (!chunk.open || chunk.round != round) {
      return mistake(rank, tensor,
                     "ready for round " + std::to_string(round.value) + " came before the parameters of round " +
                         std::to_string(round.value - 1) +
                         " were there; call start() first, and wait() between two rounds");
    }
    std::uint64_t& known = chunk_weights_[std::size_t{position} * ranks_ + rank];
    if (known == kUnset) {
      known = weight;
      chunk.weight += weight;
    } else if (known != weight) {
      return mistake(rank, tensor,
                     "weight " + std::to_string(weight) + " in round " + std::to_string(round.value) +
                         " differs from the weight " + std::to_string(known) +
                         " of another tensor; all tensors of a round have the same number of samples");
    }
    if (--chunk.missing != 0) continue;
    out.push_back({ChunkIndex(index), round, chunk.weight});
    chunk.open = false;
    chunk.round = round.next();
    chunk.missing = needed(ChunkIndex(index));
    chunk.weight = 0;
    std::fill_n(chunk_weights_.begin() + static_cast<std::ptrdiff_t>(position) * ranks_, ranks_, kUnset);
  }
  return {};
}

}  // namespace tributary
