#include "worker/reduce/node_gather.h"

#include <algorithm>

#include "common/base/assert.h"
#include "common/base/weight.h"

namespace tributary {
namespace {

constexpr std::uint32_t kNotHeld = ~0u;

}  // namespace

NodeGather::NodeGather(std::shared_ptr<const Layout> layout, const std::vector<ChunkIndex>& chunks, std::uint32_t ranks,
                       Round start, std::span<const std::uint32_t> model_ranks)
    : layout_(std::move(layout)),
      ranks_(ranks),
      model_ranks_(model_ranks.begin(), model_ranks.end()),
      local_(layout_->chunks(), kNotHeld),
      chunks_(chunks.size()),
      tensor_rounds_(layout_->tensors().size() * ranks, start),
      chunk_weights_(chunks.size() * ranks, kUnset) {
  TRIB_ASSERT(ranks > 0 && (model_ranks.empty() || model_ranks.size() == ranks));
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    local_[chunks[i].value] = static_cast<std::uint32_t>(i);
    chunks_[i].round = start.next();
    chunks_[i].groups = layout_->groups_of(chunks[i]);
    chunks_[i].settings_at = settings_.size();
    settings_.resize(settings_.size() + chunks_[i].groups.size(), kUnsaid);
    const auto [first, last] = layout_->tensors_of(chunks[i]);
    for (std::size_t t = first; t < last; ++t) {
      if (tensors_.empty() || tensors_.back() < t) tensors_.push_back(static_cast<std::uint32_t>(t));
      for (std::uint32_t rank = 0; rank < ranks; ++rank) chunks_[i].needed += holds(rank, t) ? 1 : 0;
    }
    chunks_[i].missing = chunks_[i].needed;
    TRIB_ASSERT(chunks_[i].needed > 0);
  }
}

Status NodeGather::mistake(std::uint32_t rank, std::size_t tensor, const std::string& what) const {
  return fail(ErrorCode::kWrongRound,
              "local rank " + std::to_string(rank) + ", tensor '" + layout_->tensors()[tensor].name + "': " + what);
}

void NodeGather::answered(ChunkIndex chunk) {
  const std::uint32_t position = local_[chunk.value];
  TRIB_ASSERT(position != kNotHeld);
  chunks_[position].open = true;
}

// All tensors of a group, on all ranks, say the same.
Status NodeGather::take_settings(Chunk& chunk, std::uint32_t rank, std::size_t tensor, Round round,
                                 const StepSettings& settings) {
  const std::uint32_t group = layout_->tensors()[tensor].group;
  const auto place = std::ranges::lower_bound(chunk.groups, group) - chunk.groups.begin();
  StepSettings& known = settings_[chunk.settings_at + static_cast<std::size_t>(place)];
  if (known == kUnsaid) {
    known = settings;
  } else if (known != settings) {
    return mistake(rank, tensor,
                   settings.in_words() + " in round " + std::to_string(round.value) + " differs from " +
                       known.in_words() + ", which was said for group " + std::to_string(group) +
                       " before, by another tensor or another rank of this node; all ranks must set the same values");
  }
  return {};
}

Status NodeGather::on_tensor(std::uint32_t rank, std::size_t tensor, Round round, std::uint64_t weight,
                             const StepSettings& settings, std::vector<Complete>& out) {
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
  if (!settings.sound()) {
    return mistake(rank, tensor, settings.in_words() + ": each must be a finite number from 0 on");
  }
  if (!holds(rank, tensor)) {
    return mistake(
        rank, tensor,
        "ready came from a rank that does not hold it: its model rank is " + std::to_string(model_ranks_[rank]));
  }
  last_round = round;
  const auto [begin, end] = layout_->chunks_of(tensor);
  for (std::uint32_t index = begin; index < end; ++index) {
    const std::uint32_t position = local_[index];
    if (position == kNotHeld) continue;
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
    // The settings of the last round were wanted until its answer, which has come.
    if (chunk.missing == chunk.needed) {
      std::fill_n(settings_.begin() + static_cast<std::ptrdiff_t>(chunk.settings_at), chunk.groups.size(), kUnsaid);
    }
    if (Status status = take_settings(chunk, rank, tensor, round, settings); !status) return status;
    if (--chunk.missing != 0) continue;
    chunk.says_settings =
        std::ranges::any_of(all_of(chunk), [](const StepSettings& each) { return each != StepSettings(); });
    out.push_back({ChunkIndex(index), round, chunk.weight, said(chunk)});
    chunk.open = false;
    chunk.round = round.next();
    chunk.missing = chunk.needed;
    chunk.weight = 0;
    std::fill_n(chunk_weights_.begin() + static_cast<std::ptrdiff_t>(position) * ranks_, ranks_, kUnset);
  }
  return {};
}

}  // namespace tributary
