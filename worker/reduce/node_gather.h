// NodeGather: finds what a node's ranks have become ready with, and which chunks of a lane have all they need for their
// next round. Pure.
//
// A chunk is complete for round r when every local rank that holds it has called ready for every tensor that overlaps
// it, for round r. It is open from the answer to round r-1 (or the first pull) until then; a ready outside that time is
// the trainer's mistake, because the worker may be reading the gradient it has just overwritten.
//
// A look reads as many words as ranks count and blocks (session/shared/attach_region.h) have changed, not those of all
// tensors. Trainers may have written anything there: a count only shows where to look.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/layout.h"
#include "common/base/result.h"
#include "session/shared/attach_region.h"
#include "worker/reduce/lane_chunk.h"

namespace tributary {

class NodeGather {
 public:
  // chunks: this lane's, which outlive this. The first ready is for the round after LaneChunks::start(). ranks: local
  // ones. model_ranks: of the local ranks; empty: each holds everything.
  NodeGather(LaneChunks& chunks, std::uint32_t ranks, std::span<const std::uint32_t> model_ranks = {});

  // The answer to `chunk` is delivered (or its first pull): ready may be called for the tensors in it again.
  static void answered(LaneChunk& chunk) { chunk.gather.open = true; }

  // Takes what local rank `rank` has become ready with since the last look, from its words, through on_tensor(). The
  // first error ends the look.
  Status look(std::uint32_t rank, const RankWords& words, std::vector<LaneChunk*>& out);
  // Local rank `rank` called ready for `tensor`. Appends the chunks that became complete to `out`, in flat order, with
  // round, weight and settings in LaneChunk::gradient. An error is that trainer's mistake, worded for it; the job
  // cannot continue.
  Status on_tensor(std::uint32_t rank, std::size_t tensor, Round round, std::uint64_t weight,
                   const StepSettings& settings, std::vector<LaneChunk*>& out);

  // Tensors that overlap this lane's chunks, ascending: the only ones it needs to look at.
  const std::vector<std::uint32_t>& tensors() const { return tensors_; }

 private:
  static constexpr std::uint64_t kUnset = ~0ull;
  static constexpr StepSettings kUnsaid{.lr = -2.0};
  struct Block {              // of words, with tensors of the lane's
    std::size_t number, end;  // end: in tensors_
  };

  std::span<StepSettings> settings_of(const LaneChunk& chunk) {
    return {settings_.data() + chunk.gather.settings_at, chunk.gather.groups.size()};
  }
  Status take_settings(const LaneChunk& chunk, std::uint32_t rank, std::size_t tensor, Round round,
                       const StepSettings& settings);
  void complete(LaneChunk& chunk);

  Status mistake(std::uint32_t rank, std::size_t tensor, const std::string& what) const;
  bool holds(std::uint32_t rank, std::size_t tensor) const {
    return layout_.tensors()[tensor].held_at(model_ranks_, rank);
  }

  LaneChunks& chunks_;
  const Layout& layout_;  // of chunks_
  const std::uint32_t ranks_;
  const std::vector<std::uint32_t> model_ranks_;
  std::vector<std::uint32_t> tensors_;
  std::vector<Block> blocks_;
  std::vector<std::uint64_t> counts_;         // by rank, as last seen: RankHeader::ready, then those of the blocks
  std::vector<Round> tensor_rounds_;          // [tensor * ranks + rank]: last ready
  std::vector<std::uint64_t> chunk_weights_;  // [place * ranks + rank]: this round's, kUnset before the first tensor
  std::vector<StepSettings> settings_;        // by chunk and group: of the round that is gathered, else of the last one
};

}  // namespace tributary
