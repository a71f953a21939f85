#include "worker/reduce/node_gather.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "common/base/assert.h"
#include "common/base/weight.h"

namespace tributary {
namespace {

bool grown(std::uint64_t& seen, const std::atomic<std::uint64_t>& count) {
  const std::uint64_t now = count.load(std::memory_order_acquire);
  return std::exchange(seen, now) != now;
}

}  // namespace

NodeGather::NodeGather(LaneChunks& chunks, std::uint32_t ranks, std::span<const std::uint32_t> model_ranks)
    : chunks_(chunks),
      layout_(chunks.layout()),
      ranks_(ranks),
      model_ranks_(model_ranks.begin(), model_ranks.end()),
      tensor_rounds_(layout_.tensors().size() * ranks, chunks.start()),
      chunk_weights_(chunks.size() * ranks, kUnset) {
  TRIB_ASSERT(ranks > 0 && (model_ranks.empty() || model_ranks.size() == ranks));
  for (LaneChunk& chunk : chunks_) {
    LaneChunk::Gather& gather = chunk.gather;
    gather.round = chunks.start().next();
    gather.groups = layout_.groups_of(chunk.index);
    gather.settings_at = settings_.size();
    settings_.resize(settings_.size() + gather.groups.size(), kUnsaid);
    const auto [first, last] = layout_.tensors_of(chunk.index);
    for (std::size_t t = first; t < last; ++t) {
      if (tensors_.empty() || tensors_.back() < t) tensors_.push_back(static_cast<std::uint32_t>(t));
      for (std::uint32_t rank = 0; rank < ranks; ++rank) gather.needed += holds(rank, t) ? 1 : 0;
    }
    gather.missing = gather.needed;
    TRIB_ASSERT(gather.needed > 0);
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const std::size_t number = tensors_[i] / kReadyBlock;
    if (blocks_.empty() || blocks_.back().number != number) blocks_.push_back({number, i});
    blocks_.back().end = i + 1;
  }
  counts_.resize(ranks * (1 + blocks_.size()));
}

Status NodeGather::look(std::uint32_t rank, const RankWords& words, std::vector<LaneChunk*>& out) {
  std::uint64_t* seen = counts_.data() + rank * (1 + blocks_.size());
  if (!grown(*seen, words.header->ready)) return {};
  std::size_t i = 0;
  for (const Block& block : blocks_) {
    if (!grown(*++seen, words.blocks[block.number].ready)) i = block.end;
    for (; i < block.end; ++i) {
      const TensorWord& word = words.tensors[tensors_[i]];
      const Round round(word.round.load(std::memory_order_acquire));
      if (round == tensor_rounds_[std::size_t{tensors_[i]} * ranks_ + rank]) continue;
      const std::uint64_t weight = word.weight.load(std::memory_order_relaxed);
      if (Status taken = on_tensor(rank, tensors_[i], round, weight, word.settings(), out); !taken) return taken;
    }
  }
  return {};
}

Status NodeGather::mistake(std::uint32_t rank, std::size_t tensor, const std::string& what) const {
  return fail(ErrorCode::kWrongRound,
              "local rank " + std::to_string(rank) + ", tensor '" + layout_.tensors()[tensor].name + "': " + what);
}

// All tensors of a group, on all ranks, say the same.
Status NodeGather::take_settings(const LaneChunk& chunk, std::uint32_t rank, std::size_t tensor, Round round,
                                 const StepSettings& settings) {
  const std::uint32_t group = layout_.tensors()[tensor].group;
  const std::vector<std::uint32_t>& groups = chunk.gather.groups;
  const auto place = std::ranges::lower_bound(groups, group) - groups.begin();
  StepSettings& known = settings_of(chunk)[static_cast<std::size_t>(place)];
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
                             const StepSettings& settings, std::vector<LaneChunk*>& out) {
  TRIB_ASSERT(rank < ranks_ && tensor < layout_.tensors().size());
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
  const auto [begin, end] = layout_.chunks_of(tensor);
  for (std::uint32_t index = begin; index < end; ++index) {
    LaneChunk* const chunk = chunks_.find(ChunkIndex(index));
    if (!chunk) continue;
    LaneChunk::Gather& gather = chunk->gather;
    if (!gather.open || gather.round != round) {
      return mistake(rank, tensor,
                     "ready for round " + std::to_string(round.value) + " came before the parameters of round " +
                         std::to_string(round.value - 1) +
                         " were there; call start() first, and wait() between two rounds");
    }
    std::uint64_t& known = chunk_weights_[std::size_t{chunk->place} * ranks_ + rank];
    if (known == kUnset) {
      known = weight;
      gather.weight += weight;
    } else if (known != weight) {
      return mistake(rank, tensor,
                     "weight " + std::to_string(weight) + " in round " + std::to_string(round.value) +
                         " differs from the weight " + std::to_string(known) +
                         " of another tensor; all tensors of a round have the same number of samples");
    }
    // The settings of the last round were wanted until its answer, which has come.
    if (gather.missing == gather.needed) std::ranges::fill(settings_of(*chunk), kUnsaid);
    if (Status status = take_settings(*chunk, rank, tensor, round, settings); !status) return status;
    if (--gather.missing != 0) continue;
    complete(*chunk);
    out.push_back(chunk);
  }
  return {};
}

void NodeGather::complete(LaneChunk& chunk) {
  TRIB_ASSERT(chunk.gradient.frame.empty());  // rounds do not overlap
  LaneChunk::Gather& gather = chunk.gather;
  const SaidSettings said = settings_of(chunk);
  const bool differs = std::ranges::any_of(said, [](const StepSettings& each) { return each != StepSettings(); });
  chunk.gradient = {gather.round, gather.weight, differs ? said : SaidSettings(), {}};
  gather.open = false;
  gather.round = gather.round.next();
  gather.missing = gather.needed;
  gather.weight = 0;
  std::fill_n(chunk_weights_.begin() + static_cast<std::ptrdiff_t>(chunk.place) * ranks_, ranks_, kUnset);
}

}  // namespace tributary
