// RedoRing: what a node pushed in the last rounds, for servers that lost it. The reducer writes its frames straight
// into it, so that keeping them costs no copy; or, where frames are one rank's gradient as it is, that rank does. It
// outlives views; it is shared memory, and trainers hold a descriptor of it and give it back when they attach again, so
// that it outlives the worker daemon, too.
//
// Layout of the memory:
//     Header | decisions: GateWord[slot] | Entry[chunk][slot] | settings: StepSettings[chunk][slot][group of the chunk]
//     | slot 0: frame of chunk 0 | frame of chunk 1 | ... | slot 1: frame of chunk 0 | ...
//            | chunk 0: area of even rounds | of odd ones | chunk 1: ...
// Round r lies in slot r % slots. There is a slot more than rounds are kept: that of the open round, which a rank may
// write while all the others are still wanted. An entry names its round only while its frame is complete: a process
// that dies in the middle leaves none. The oldest round gives way to the newest, whether a snapshot has it or not.
//
// Encodings with error feedback: behind the slots lies, for each chunk, what the node had not said after a round (its
// residual, without which a round cannot be computed again to the same bits), for the last two rounds in turns: the one
// that is being encoded overwrites the one before the last. It is preceded by room for the frame, as a snapshot wants
// both in one piece. A residual, too, has its round only while it is complete.
//
// Trainers can write to the memory, so that what is in it is believed only as far as it harms nobody: an entry that
// cannot be is none.
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
#include "common/base/shared_memory.h"
#include "common/config/step_runs.h"
#include "common/math/encoding.h"
#include "common/math/gate_word.h"

namespace tributary {

class RedoRing {
 public:
  // Memory of a ring for that many rounds.
  static std::uint64_t bytes_needed(const Layout& layout, EncodingSpec push, std::uint32_t rounds);

  // REQUIRES: rounds > 0. kLimit: the machine has no memory for it.
  static Result<std::shared_ptr<RedoRing>> create(JobId job, NodeRank node, const Layout& layout, EncodingSpec push,
                                                  std::uint32_t rounds);
  // What another process made, for what ranks with these model ranks hold of the same tensors. kMalformed: it is
  // something else.
  static Result<std::shared_ptr<RedoRing>> adopt(FileDescriptor fd, NodeRank node,
                                                 const std::vector<TensorSpec>& tensors, EncodingSpec push,
                                                 std::span<const std::uint32_t> model_ranks = {});

  JobId job() const { return job_; }
  std::uint32_t rounds() const { return rounds_; }
  const SharedMemory& memory() const { return memory_; }
  // Was it made by this node for this job on this layout?
  bool fits(JobId job, NodeRank node, const Layout& layout, EncodingSpec push) const;
  // Was it made by this node, of what ranks with these model ranks hold of these tensors? Of any job.
  bool is_of(NodeRank node, const std::vector<TensorSpec>& tensors, std::span<const std::uint32_t> model_ranks) const;

  // Where the frame of a round is to be written; what was there is forgotten.
  std::byte* frame(ChunkIndex chunk, Round round);
  // Where a rank writes the gradient of a round itself: as flat as the model's, from slot_offset(round) on. It may
  // begin as soon as its chunks of the round before are published: what is there is wanted by nobody then. Only with
  // fp32.
  std::size_t slot_offset(Round round) const { return places_.begin + round.value % slots() * places_.slot_bytes; }
  std::size_t slots_offset() const { return places_.begin; }
  std::size_t slot_bytes() const { return places_.slot_bytes; }
  std::uint32_t slots() const { return rounds_ + 1; }
  std::span<const std::byte> written(ChunkIndex chunk, Round round) const;
  // Settings that the trainers say with the round's gradient; before publish() of it.
  void note_settings(ChunkIndex chunk, Round round, SaidSettings said);
  // It is complete. The place of the round after it is free from now on.
  void publish(ChunkIndex chunk, Round round, std::uint64_t weight);
  // Jobs with a gate: what an answer says was decided about its round, all of it. Any lane.
  void note_decision(Round round, const GateDecision& decision);

  // Of a lane that may write into it: from the order to open a view until the lane has closed that.
  using Use = std::shared_ptr<const void>;
  static Use use(const std::shared_ptr<RedoRing>& ring);
  bool in_use() const { return users_.load(std::memory_order_acquire) != 0; }

  struct Frame {
    std::span<const std::byte> bytes;
    std::uint64_t weight = 0;
    GateDecision gate;
    SaidSettings settings;  // in the ring, where trainers can write any time: who wants them takes a copy
  };
  std::optional<Frame> find(ChunkIndex chunk, Round round) const;

  // The rounds that every chunk has, all from first to last; last < first: none. decided: those alone whose decision is
  // known, because without it they cannot be repeated.
  struct Range {
    Round first{1}, last;
  };
  Range kept(bool decided = false) const;
  // Of encodings with error feedback: frame | padding to residual_offset() | residual after `round`. 0: as a job
  // begins.
  std::byte* area(ChunkIndex chunk, Round round) const;
  // It is about to be written; it is complete.
  void begin_residual(ChunkIndex chunk, Round round);
  void publish_residual(ChunkIndex chunk, Round round);
  bool has_residual(ChunkIndex chunk, Round round) const;
  // The rounds after which every chunk's is here; last < first: none.
  Range residuals() const;

  // Later rounds are gone through again.
  void forget_after(Round round);

  // Which nodes took part in its rounds (JobWelcome::members).
  std::uint64_t members() const { return members_; }
  void set_members(std::uint64_t members);

 private:
  struct Header;
  struct Entry;
  // Where what lies, in bytes.
  struct Places {
    Places(const Layout& layout, EncodingSpec push, std::uint32_t rounds);
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
  const JobId job_;  // as of create() or adopt(), like what follows: the header is for the next process
  const NodeRank node_;
  std::uint64_t members_;
  const std::uint64_t layout_hash_, chunk_elements_;
  const EncodingSpec push_;
  const std::uint32_t rounds_;
  const Places places_;
  std::atomic<std::uint32_t> users_{0};
};

}  // namespace tributary
