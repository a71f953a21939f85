// NodeGather: which chunks of a lane have all they need for their next round. Pure.
//
// A chunk is complete for round r when every local rank that holds it has called ready for every tensor that overlaps
// it, for round r. It is open from the answer to round r-1 (or the first pull) until then; a ready outside that time is
// the trainer's mistake, because the worker may be reading the gradient it has just overwritten.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/ids.h"
#include "common/base/layout.h"
#include "common/base/result.h"
#include "common/config/step_runs.h"

namespace tributary {

class NodeGather {
 public:
  struct Complete {
    ChunkIndex chunk;
    Round round;
    std::uint64_t weight = 0;  // sum over the local ranks
    SaidSettings settings;     // of all ranks; valid until answered() and the next ready
  };

  // chunks: this lane's, ascending. ranks: local ones. start: the version every chunk begins at; the first ready is for
  // the next round. model_ranks: of the local ranks; empty: each holds everything.
  NodeGather(std::shared_ptr<const Layout> layout, const std::vector<ChunkIndex>& chunks, std::uint32_t ranks,
             Round start, std::span<const std::uint32_t> model_ranks = {});

  // The answer to `chunk` is delivered (or its first pull): ready may be called for the tensors in it again.
  void answered(ChunkIndex chunk);

  // Local rank `rank` called ready for `tensor`. Appends the chunks that became complete to `out`, in flat order. An
  // error is that trainer's mistake, worded for it; the job cannot continue.
  Status on_tensor(std::uint32_t rank, std::size_t tensor, Round round, std::uint64_t weight,
                   const StepSettings& settings, std::vector<Complete>& out);
  // Settings of the chunk's last complete round, until answered() and the next ready.
  SaidSettings settings(ChunkIndex chunk) const { return said(chunks_[local_[chunk.value]]); }

  // Tensors that overlap this lane's chunks, ascending: the only ones it needs to look at.
  const std::vector<std::uint32_t>& tensors() const { return tensors_; }

 private:
  struct Chunk {
    bool open = false;
    Round round;                // being gathered
    std::uint32_t missing = 0;  // (rank, tensor) pairs
    std::uint32_t needed = 0;   // of them, in every round
    std::uint64_t weight = 0;
    std::size_t settings_at = 0;        // in settings_: of each of its groups
    std::vector<std::uint32_t> groups;  // Layout::groups_of()
    bool says_settings = false;         // not all are as the job has them, in the last complete round
  };
  static constexpr std::uint64_t kUnset = ~0ull;
  static constexpr StepSettings kUnsaid{.lr = -2.0};

  SaidSettings said(const Chunk& chunk) const { return chunk.says_settings ? all_of(chunk) : SaidSettings(); }
  SaidSettings all_of(const Chunk& chunk) const { return {settings_.data() + chunk.settings_at, chunk.groups.size()}; }
  Status take_settings(Chunk& chunk, std::uint32_t rank, std::size_t tensor, Round round, const StepSettings& settings);

  Status mistake(std::uint32_t rank, std::size_t tensor, const std::string& what) const;
  bool holds(std::uint32_t rank, std::size_t tensor) const {
    return layout_->tensors()[tensor].held_at(model_ranks_, rank);
  }

  const std::shared_ptr<const Layout> layout_;
  const std::uint32_t ranks_;
  const std::vector<std::uint32_t> model_ranks_;
  std::vector<std::uint32_t> local_;  // chunk index -> position in chunks_, or none
  std::vector<Chunk> chunks_;
  std::vector<std::uint32_t> tensors_;
  std::vector<Round> tensor_rounds_;          // [tensor * ranks + rank]: last ready
  std::vector<std::uint64_t> chunk_weights_;  // [position * ranks + rank]: this round's, kUnset before the first tensor
  std::vector<StepSettings> settings_;        // by chunk and group: of the round that is gathered, else of the last one
};

}  // namespace tributary
