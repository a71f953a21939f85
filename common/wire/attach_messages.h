// The attach path: trainer <-> worker over a Unix socket, SOCK_SEQPACKET (schema/attach.capnp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/base/ids.h"
#include "common/base/layout.h"
#include "common/base/message_fields.h"
#include "common/math/figures.h"
#include "common/wire/compute_kinds.h"
#include "common/wire/rank_values.h"
#include "common/wire/state_head.h"

namespace tributary {

enum class LeaveKind : std::uint8_t {
  kFinished = 0,     // training is complete
  kStopped = 1,      // asked to stop; may come back
  kFailed = 2,       // a trainer or the node is lost
  kFinishesAll = 3,  // training is complete, for those that have not left, too
};
constexpr KnownValues known_values(LeaveKind) {
  return {static_cast<std::uint16_t>(LeaveKind::kFinishesAll), "the kind of leave"};
}

enum class StopKind : std::uint8_t {
  kFinished = 0,  // every node finished, or one for all: keep the final state as a snapshot of `round`
  kStopped = 1,   // stopped at a round boundary: likewise
  kRestart = 2,   // a member was lost: drop open rounds; members may attach again and continue from the last snapshot
};
constexpr KnownValues known_values(StopKind) {
  return {static_cast<std::uint16_t>(StopKind::kRestart), "the kind of stop"};
}

// A rank's own state, kept with the state after `round` (Session::keep): generators of random numbers, a sampler.
// Trainer -> worker (RankState) -> coordinator (NodeRankState), and back when the job continues from there. Worker ->
// trainer: the state of the view's first rank. A large part (StateHead) travels with it as a descriptor.
inline constexpr std::size_t kMaxRankState = 256u << 10;  // bytes
inline constexpr std::size_t kMaxRankStates = 256;        // of a node
inline constexpr std::size_t kMaxHeldRounds = 4;          // of a rank, in its worker's memory
struct RankState {
  Round round;
  std::vector<std::byte> state;

  static constexpr auto kWire = TRIB_WIRE(RankState);
  static void fields(auto& m, auto&& field) {
    field(m.round, TRIB_WIRE(Round));
    field(m.state, TRIB_WIRE(State), AtMost{kMaxRankState, "the rank's state"});
  }
};

inline constexpr std::size_t kMaxRanks = 1u << 16;  // of a view
inline constexpr std::size_t kMaxDeviceUuid = 64;
inline constexpr std::size_t kMaxMemoryHandle = 256;  // bytes; CUDA's have 64

struct AttachRequest {
  std::string job_json;
  std::uint32_t rank = 0, local_rank = 0, world_size = 1, local_world_size = 1, node_rank = 0;
  std::int32_t pid = 0;
  std::vector<TensorSpec> tensors;
  std::string device;            // UUID of the GPU with this rank's gradients; empty: they are in host memory
  bool gradients_move = false;   // the trainer can write each round's gradient elsewhere
  std::string computes_with;     // common/wire/compute_kinds.h; empty: not known
  std::uint32_t model_rank = 0;  // common/base/model_ranks.h
  bool hears_waits = false;      // it knows AttachWaits
  JobId lived_in;                // the job whose state of the last view this process has

  static constexpr auto kWire = TRIB_WIRE(Request);
  static void fields(auto& m, auto&& field) {
    field(m.job_json, TRIB_WIRE(JobJson), AtMost{kMaxJobJsonBytes, "the job configuration"});
    field(m.rank, TRIB_WIRE(Rank));
    field(m.local_rank, TRIB_WIRE(LocalRank));
    field(m.world_size, TRIB_WIRE(WorldSize));
    field(m.local_world_size, TRIB_WIRE(LocalWorldSize));
    field(m.node_rank, TRIB_WIRE(NodeRank));
    field(m.pid, TRIB_WIRE(Pid));
    field(m.tensors, TRIB_WIRE(Tensors), AtMost{kMaxTensors, "the list of tensors"});
    field(m.device, TRIB_WIRE(Device), AtMost{kMaxDeviceUuid, "the device"});
    field(m.gradients_move, TRIB_WIRE(GradientsMove));
    field(m.computes_with, TRIB_WIRE(ComputesWith), CutAt{kMaxComputeKindBytes, "what the rank computes with"});
    field(m.model_rank, TRIB_WIRE(ModelRank));
    field(m.hears_waits, TRIB_WIRE(HearsWaits));
    field(m.lived_in, TRIB_WIRE(LivedIn));
  }
};
// One rank's state of the round that a view begins at, for ranks that have none.
enum class FirstState : std::uint8_t {
  kNone = 0,   // no rank has any
  kComes = 1,  // as RankState, to the ranks that wait for it
  kGiven = 2,  // by this rank
};
constexpr KnownValues known_values(FirstState) {
  return {static_cast<std::uint16_t>(FirstState::kGiven), "whether the first rank's state comes"};
}

// File descriptors travel with it (SCM_RIGHTS), in this order: node region, gradient region, one eventfd per lane,
// `redo`, the large part of its state.
struct AttachReply {
  JobId job;
  ViewId view;
  // The rank's place in this view. In an elastic job it may differ from the request's.
  std::uint32_t rank = 0, world_size = 1, node_rank = 0;
  std::vector<std::byte> state;       // this rank's own state, kept with resume_round; empty: none
  std::vector<std::byte> held_state;  // HeldState of resume_round of this rank, or of the one in its place before
  FirstState first = FirstState::kNone;
  bool resume = false;
  Round resume_round;
  std::uint64_t chunk_elements = 0;
  std::vector<ChunkOwner> owners;
  std::uint16_t lanes = 1;  // worker lanes: how many eventfds
  std::uint64_t node_region_bytes = 0;
  std::uint64_t gradient_region_bytes = 0;
  // Device memory that is lent to the trainer, as CUDA IPC handles; device empty: everything is in the regions.
  std::string device;
  std::vector<std::byte> gradient_handle, parameter_handle;
  std::uint64_t device_bytes = 0;  // of each
  // One more descriptor: the node's pushes. The trainer holds it and returns it when it attaches again.
  bool redo = false;
  // The place of the rank's gradients in that memory: round r's at offset + (r % slots) * slot_bytes, as flat as in a
  // gradient region. slots 0: they are in the gradient region.
  struct RingGradients {
    std::uint64_t offset = 0, slot_bytes = 0;
    std::uint32_t slots = 0;
  } ring;
  std::vector<std::uint32_t> model_ranks;  // as OpenJob::model_ranks

  static constexpr auto kWire = TRIB_WIRE(Reply);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field(m.rank, TRIB_WIRE(Rank));
    field(m.world_size, TRIB_WIRE(WorldSize));
    field(m.node_rank, TRIB_WIRE(NodeRank));
    field(m.state, TRIB_WIRE(State), AtMost{kMaxRankState, "the rank's state"});
    field(m.held_state, TRIB_WIRE(HeldState), AtMost{kMaxRankState, "the state that the worker held"});
    field(m.first, TRIB_WIRE(First));
    field(m.resume, TRIB_WIRE(Resume));
    field(m.resume_round, TRIB_WIRE(ResumeRound));
    field.inside(TRIB_WIRE(Layout), [&](const auto& layout) {
      layout(m.chunk_elements, TRIB_WIRE(ChunkElements));
      layout.owners(m.owners);
    });
    field(m.lanes, TRIB_WIRE(Lanes));
    field(m.node_region_bytes, TRIB_WIRE(NodeRegionBytes));
    field(m.gradient_region_bytes, TRIB_WIRE(GradientRegionBytes));
    field(m.device, TRIB_WIRE(Device), AtMost{kMaxDeviceUuid, "the device"});
    field(m.gradient_handle, TRIB_WIRE(GradientHandle), AtMost{kMaxMemoryHandle, "the gradients' memory handle"});
    field(m.parameter_handle, TRIB_WIRE(ParameterHandle), AtMost{kMaxMemoryHandle, "the parameters' memory handle"});
    field(m.device_bytes, TRIB_WIRE(DeviceBytes));
    field(m.redo, TRIB_WIRE(Redo));
    field(m.ring.offset, TRIB_WIRE(RingOffset));
    field(m.ring.slot_bytes, TRIB_WIRE(RingSlotBytes));
    field(m.ring.slots, TRIB_WIRE(RingSlots));
    field(m.model_ranks, TRIB_WIRE(ModelRanks), AtMost{kMaxRanks, "the list of model ranks"});
  }
};
struct InitialValues {  // trainer of rank 0 -> worker: the parameters in the node region are the initial ones
  static constexpr auto kWire = TRIB_WIRE(InitialValues);
};
struct Detach {
  LeaveKind kind = LeaveKind::kFinished;
  std::string message;

  static constexpr auto kWire = TRIB_WIRE(Detach);
  static void fields(auto& m, auto&& field) {
    field(m.kind, TRIB_WIRE(Kind));
    field(m.message, TRIB_WIRE(Message), CutAt{});
  }
};
struct DetachReply {
  static constexpr auto kWire = TRIB_WIRE(DetachReply);
};
struct AttachStopped {  // worker -> trainer: the job's view is over (also flagged in the node region)
  StopKind kind = StopKind::kRestart;
  Round round;
  std::string reason;

  static constexpr auto kWire = TRIB_WIRE(Stopped);
  static void fields(auto& m, auto&& field) {
    field(m.kind, TRIB_WIRE(Kind));
    field(m.round, TRIB_WIRE(Round));
    field(m.reason, TRIB_WIRE(Reason), CutAt{});
  }
};
struct AttachError {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;

  static constexpr auto kWire = TRIB_WIRE(Error);
  static void fields(auto& m, auto&& field) {
    field(m.code, TRIB_WIRE(Code));
    field(m.message, TRIB_WIRE(Message), CutAt{});
  }
};
struct RankFigures {  // trainer -> worker: of its rounds since its previous report
  Figures figures;

  static constexpr auto kWire = TRIB_WIRE(Figures);
  static void fields(auto& m, auto&& field) { Figures::fields(m.figures, field); }
};
// Trainer -> worker, of every round: for the rank's next process on this node, with or without a snapshot.
struct HeldState {
  RankState held;

  static constexpr auto kWire = TRIB_WIRE(HeldState);
  static void fields(auto& m, auto&& field) { RankState::fields(m.held, field); }
};
struct AttachWaits {  // worker -> trainer, now and then while it attaches: the members that are missing
  std::string missing;
  std::uint64_t progress = 0;  // of JobWaits

  static constexpr auto kWire = TRIB_WIRE(Waits);
  static void fields(auto& m, auto&& field) {
    field(m.missing, TRIB_WIRE(Missing), CutAt{});
    field(m.progress, TRIB_WIRE(Progress));
  }
};

// In the order of the union in schema/attach.capnp.
using AttachMessage = std::variant<AttachRequest, AttachReply, InitialValues, Detach, DetachReply, AttachStopped,
                                   AttachError, RankState, RankFigures, AttachWaits, HeldState, SharedValues>;

inline constexpr std::size_t kMaxAttachBytes = 8u << 20;

}  // namespace tributary
