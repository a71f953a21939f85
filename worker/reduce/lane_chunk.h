// LaneChunk: a chunk of a job on the worker lane that owns it, from the node's gradients to its parameters. The stages
// of a round are called with it, one after another. Each stage has its part of it, and the next stage reads it:
//
//   tensors ▸ NodeGather ──────► NodeReducer ─────► ClientCore ▸ servers ▸ ClientCore ▸ NodeReducer ▸ trainers
//             gather, gradient   gradient.frame     flight                 flight
//
// LaneChunks: all chunks of one lane in one view. Thread rule: the lane's (all-reduce: NodeBuckets says).
#pragma once

#include <boost/intrusive/list.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/ids.h"
#include "common/base/layout.h"
#include "common/math/step_settings.h"

namespace tributary {

// One (server, lane) pair that a worker lane talks to.
using ConnectionIndex = StrongId<struct ConnectionTag, std::uint16_t>;

struct LaneChunk {
  using Hook = boost::intrusive::list_member_hook<boost::intrusive::link_mode<boost::intrusive::normal_link>>;

  // NodeGather's: the round that is being gathered.
  struct Gather {
    bool open = false;
    Round round;
    std::uint32_t missing = 0;  // (rank, tensor) pairs
    std::uint32_t needed = 0;   // of them, in every round
    std::uint64_t weight = 0;
    std::vector<std::uint32_t> groups;  // Layout::groups_of()
    std::size_t settings_at = 0;        // in NodeGather's: of each of its groups
  };
  // The node's gradient of the last round that was gathered.
  struct Gradient {
    Round round;               // before the first: the one that the view begins with
    std::uint64_t weight = 0;  // sum over the local ranks
    SaidSettings settings;     // of all ranks; empty: as the job has them. Until the next ready
    std::span<const std::byte>
        frame;  // from NodeReducer::reduce() to release(): encoded, with the residual if asked for
  };
  // ClientCore's: what is under way to the server and back.
  struct Flight {
    enum class Phase : std::uint8_t { kWaitingForValues, kQueued, kSent, kHeld, kIdle, kKept };
    Phase phase = Phase::kIdle;
    bool delivered = false;  // has parameters; until then what is queued or sent is Init and Pull
    Version version;         // newest delivered
    Round round;
    std::uint64_t in_flight = 0;   // bytes counted in the window
    bool gives_values = false;     // this node sends its initial values
    std::uint64_t held = 0;        // bytes of a push that is acknowledged and waits for other nodes'
    std::uint64_t sent_ns = 0;     // last send or query
    std::uint8_t repeats = 0;      // of an Init and Pull, or of a residual alone
    bool last = false;             // Push::last
    bool retransmitted = false;    // no rate sample from it (Karn's rule)
    bool wants_residual = false;   // a snapshot is named for the next round: its push must bring the residual
    bool has_residual = false;     // restored
    Checksum128::Value earlier{};  // the digest that pulls say; {}: nothing is there
    bool redo = false;             // what is queued, sent or held is a push that the server lost

    bool idle() const { return delivered && phase == Phase::kIdle; }
    bool has_earlier() const { return earlier != Checksum128::Value{}; }
  };

  ChunkIndex index;            // in the node's part of the layout: its memory's and its reducers' number
  ChunkIndex whole;            // in the job's layout: the number in messages
  std::uint32_t place = 0;     // in LaneChunks
  ConnectionIndex connection;  // to the server lane that owns it
  ChunkRange range;            // in the node's flat space

  Gather gather;
  Gradient gradient;
  Flight flight;
  Hook queued;  // ClientCore's, where the phase is kQueued
};

class LaneChunks {
 public:
  // Returns how many chunks such a lane has.
  static std::size_t count(const Layout& layout, std::uint16_t index, std::uint16_t lanes);
  // Takes the chunks whose ChunkOwner::worker_lane() is `index`, with a connection to each such server lane.
  // start: the round that the view begins with. layout: of the node.
  LaneChunks(std::shared_ptr<const Layout> layout, Round start, std::uint16_t index = 0, std::uint16_t lanes = 1);
  LaneChunks(const LaneChunks&) = delete;
  LaneChunks& operator=(const LaneChunks&) = delete;

  auto begin() { return chunks_.begin(); }
  auto end() { return chunks_.end(); }
  auto begin() const { return chunks_.begin(); }
  auto end() const { return chunks_.end(); }
  std::size_t size() const { return chunks_.size(); }
  LaneChunk& operator[](std::size_t place) { return chunks_[place]; }

  // Returns the chunk with this number on the node; null: it is another lane's.
  const LaneChunk* find(ChunkIndex index) const {
    const std::uint32_t place = index.value < places_.size() ? places_[index.value] : kNone;
    return place == kNone ? nullptr : &chunks_[place];
  }
  LaneChunk* find(ChunkIndex index) { return const_cast<LaneChunk*>(std::as_const(*this).find(index)); }
  // The same for its number in messages, which may be any.
  LaneChunk* find_whole(ChunkIndex whole) {
    const std::optional<ChunkIndex> index = layout_->in_part(whole);
    return index ? find(*index) : nullptr;
  }
  // REQUIRES: it is this lane's.
  const LaneChunk& at(ChunkIndex index) const;
  LaneChunk& at(ChunkIndex index) { return const_cast<LaneChunk&>(std::as_const(*this).at(index)); }

  const Layout& layout() const { return *layout_; }
  Round start() const { return start_; }
  const std::vector<ChunkOwner>& servers() const { return servers_; }  // by connection

 private:
  static constexpr std::uint32_t kNone = ~0u;

  const std::shared_ptr<const Layout> layout_;
  const Round start_;
  std::vector<LaneChunk> chunks_;      // ascending; of a fixed size, for the sake of pointers to them
  std::vector<std::uint32_t> places_;  // by number on the node
  std::vector<ChunkOwner> servers_;
};

}  // namespace tributary
