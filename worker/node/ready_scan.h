// ReadyScan: finds the tensors of a lane that its node's ranks have become ready with since the last scan. Looks at as
// many words as ranks count and blocks (session/shared/attach_region.h) have changed, not at all tensors of all ranks.
// Trainers may have written anything there: a count only shows where to look. Thread rule: the lane's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "session/shared/attach_region.h"

namespace tributary {

class ReadyScan {
 public:
  // tensors: the lane's, ascending. start: the round before the first.
  ReadyScan(const std::vector<std::uint32_t>& tensors, std::uint32_t ranks, Round start) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::size_t number = tensors[i] / kReadyBlock;
      if (blocks_.empty() || blocks_.back().number != number) blocks_.push_back({number, {}});
      blocks_.back().tensors.push_back(tensors[i]);
    }
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      Rank& mine = ranks_.emplace_back();
      for (const Block& block : blocks_)
        mine.blocks.push_back({0, std::vector<std::uint64_t>(block.tensors.size(), start.value)});
    }
  }

  // Calls ready(tensor, word, round) for each; the first error ends it.
  template <class Ready>
  Status look(std::uint32_t rank, const RankWords& words, Ready&& ready) {
    Rank& mine = ranks_[rank];
    if (!grown(mine.ready, words.header->ready)) return {};
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      Seen& seen = mine.blocks[b];
      if (!grown(seen.ready, words.blocks[blocks_[b].number].ready)) continue;
      for (std::size_t i = 0; i < blocks_[b].tensors.size(); ++i) {
        const std::uint32_t tensor = blocks_[b].tensors[i];
        const TensorWord& word = words.tensors[tensor];
        const std::uint64_t round = word.round.load(std::memory_order_acquire);
        if (std::exchange(seen.rounds[i], round) == round) continue;
        if (Status taken = ready(tensor, word, Round(round)); !taken) return taken;
      }
    }
    return {};
  }

 private:
  struct Block {
    std::size_t number;
    std::vector<std::uint32_t> tensors;  // those of the lane's in it
  };
  struct Seen {
    std::uint64_t ready = 0;
    std::vector<std::uint64_t> rounds;  // of each of Block::tensors
  };
  struct Rank {
    std::uint64_t ready = 0;
    std::vector<Seen> blocks;
  };
  static bool grown(std::uint64_t& seen, const std::atomic<std::uint64_t>& count) {
    const std::uint64_t now = count.load(std::memory_order_acquire);
    return std::exchange(seen, now) != now;
  }

  std::vector<Block> blocks_;
  std::vector<Rank> ranks_;
};

}  // namespace tributary
