// RedoRing: a node's pushes of the last rounds, for servers that lost them. The reducer writes its frames straight into
// the ring, so that keeping them costs no copy. (If frames are one rank's plain gradients, that rank writes them.) The
// ring outlives views. It is shared memory: trainers hold a descriptor of it and return it when they attach again, so
// it outlives the worker daemon, too.
//
// Layout of the memory:
//     Header | decisions: GateWord[slot] | Entry[chunk][slot] | settings: StepSettings[chunk][slot][group of the chunk]
//     | slot 0: frame of chunk 0 | frame of chunk 1 | ... | slot 1: frame of chunk 0 | ...
//            | chunk 0: area of the residual after round 0 | after round 1 | ... | chunk 1: ...
// Round r lies in slot r % slots. There is a slot more than rounds are kept: that of the open round, which a rank may
// write while all the others are still wanted. An entry names its round only while its frame is complete: a process
// that dies in the middle leaves none. The oldest round gives way to the newest, whether a snapshot has it or not.
//
// Encodings with error feedback: behind the slots lie, for each chunk, the residuals after the last two or three rounds
// (residual_rounds()), in turns. (Without its residual a round cannot be computed again to the same bits.) The round that
// is being encoded overwrites the oldest residual. Room for the frame precedes each residual, as a snapshot wants both in
// one piece. A residual, too, has its round only while it is complete.
//
// Trainers can write to the memory, so its contents are trusted only where they can do no harm: an impossible entry
// counts as none.
//
// Thread rule: frame(), publish() and find() of a chunk by the lane that owns it; in_use() by any thread; the rest
// while no lane uses it, that is, while in_use() is false.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/layout.h"
#include "common/base/result.h"
#include "common/config/step_runs.h"
#include "common/math/encoding.h"
#include "common/math/gate_word.h"
#include "common/system/shared_memory.h"
#include "common/wire/redo_plan.h"

namespace tributary {

class RedoRing {
 public:
  // Memory of a ring for that many rounds of pushes, and of residuals if the encoding has them.
  static std::uint64_t bytes_needed(const Layout& layout, EncodingSpec push, std::uint32_t rounds,
                                    std::uint32_t residuals = kMinResidualRounds);

  // REQUIRES: rounds >= residuals, which is 2 or 3. kLimit: the machine has no memory for the ring.
  static Result<std::shared_ptr<RedoRing>> create(JobId job, NodeRank node, const Layout& layout, EncodingSpec push,
                                                  std::uint32_t rounds, std::uint32_t residuals = kMinResidualRounds);
  // Maps a ring of another process, for the part of the same tensors that these model ranks hold. kMalformed: it is no
  // such ring.
  static Result<std::shared_ptr<RedoRing>> adopt(FileDescriptor fd, NodeRank node,
                                                 const std::vector<TensorSpec>& tensors, EncodingSpec push,
                                                 std::span<const std::uint32_t> model_ranks = {});

  JobId job() const { return job_; }
  std::uint32_t rounds() const { return rounds_; }
  const SharedMemory& memory() const { return memory_; }
  // Returns whether this node made the ring for this job on this layout.
  bool fits(JobId job, NodeRank node, const Layout& layout, EncodingSpec push) const;
  // Returns whether this node made the ring, for any job, for the part of these tensors that these model ranks hold.
  bool is_of(NodeRank node, const std::vector<TensorSpec>& tensors, std::span<const std::uint32_t> model_ranks) const;

  // Returns the place to write the frame of a round to, and forgets the frame that was there.
  std::byte* frame(ChunkIndex chunk, Round round);
  // Returns where a rank writes its own gradient of a round, flat as the model, with fp32 only. The rank may begin when
  // its chunks of the round before are published: the slot's old frames are not needed then.
  std::size_t slot_offset(Round round) const { return places_.begin + round.value % slots() * places_.slot_bytes; }
  std::size_t slots_offset() const { return places_.begin; }
  std::size_t slot_bytes() const { return places_.slot_bytes; }
  std::uint32_t slots() const { return rounds_ + 1; }
  std::span<const std::byte> written(ChunkIndex chunk, Round round) const;
  // Marks the frame as complete, with its weight and the settings that trainers sent with the gradient. The place of the
  // next round is free from now on.
  void publish(ChunkIndex chunk, Round round, std::uint64_t weight, SaidSettings said = {});
  // Jobs with a gate: keeps the decision about a whole round, from an answer. Any lane.
  void note_decision(Round round, const GateDecision& decision);

  // A lane's right to write into the ring: from the order to open a view until the lane has closed that view.
  using Use = std::shared_ptr<const void>;
  static Use use(const std::shared_ptr<RedoRing>& ring);
  bool in_use() const { return users_.load(std::memory_order_acquire) != 0; }

  struct Frame {
    std::span<const std::byte> bytes;
    std::uint64_t weight = 0;
    GateDecision gate;
    SaidSettings settings;  // in the ring, where trainers can write any time: readers take a copy
  };
  std::optional<Frame> find(ChunkIndex chunk, Round round) const;

  // The rounds that every chunk has, all from first to last; last < first: none. decided: only rounds whose decision is
  // known, because others cannot be repeated.
  struct Range {
    Round first{1}, last;
  };
  Range kept(bool decided = false) const;
  // Encodings with error feedback: frame | padding to residual_offset() | residual after `round`. Round 0: as a job
  // begins.
  std::byte* area(ChunkIndex chunk, Round round) const;
  // Mark a residual as about to be written, and as complete.
  void begin_residual(ChunkIndex chunk, Round round);
  void publish_residual(ChunkIndex chunk, Round round);
  bool has_residual(ChunkIndex chunk, Round round) const;
  // Returns the rounds after which every chunk's residual is here; last < first: none.
  Range residuals() const;

  // Forgets later rounds, which will be repeated.
  void forget_after(Round round);

  // Which nodes took part in its rounds (JobWelcome::members).
  std::uint64_t members() const { return members_; }
  void set_members(std::uint64_t members);

 private:
  struct Header;
  struct Entry;
  // The layout of the memory, in bytes.
  struct Places {
    Places(const Layout& layout, EncodingSpec push, std::uint32_t rounds, std::uint32_t residuals);
    std::size_t residuals = 0;                       // of a chunk
    std::vector<std::size_t> groups, settings_at;    // by chunk: how many settings an entry has; of its first slot's
    std::vector<std::size_t> frame_bytes, frame_at;  // by chunk: of one frame; from where its slot begins
    std::vector<std::size_t> area_bytes, area_at;    // by chunk: of one area; both are 0 if there are none
    std::size_t entries_at = 0;
    std::size_t begin = 0, slot_bytes = 0, end = 0;  // of all slots; of one; of all
  };
  RedoRing(SharedMemory memory, JobId job, NodeRank node, std::uint64_t members, const Layout& layout,
           EncodingSpec push, std::uint32_t rounds, Places places);
  Header& header() const;
  void* entries() const;
  GateWord& decision(Round round) const;
  Entry& entry(ChunkIndex chunk, Round round) const;
  std::span<StepSettings> settings(ChunkIndex chunk, Round round) const;
  std::atomic<std::uint64_t>& residual_round(ChunkIndex chunk, Round round) const;

  SharedMemory memory_;
  const JobId job_;  // as of create() or adopt(), like the next members: the header is for the next process
  const NodeRank node_;
  std::uint64_t members_;
  const std::uint64_t layout_hash_, chunk_elements_;
  const EncodingSpec push_;
  const std::uint32_t rounds_;
  const Places places_;
  std::atomic<std::uint32_t> users_{0};
};

}  // namespace tributary
