// The messages as plain structs with their field lists (common/base/message_fields.h). common/wire/codec.h converts
// them to Cap'n Proto and back; the cores see only these. Here: every daemon <-> the coordinator
// (schema/control.capnp), one frame.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/base/result.h"
#include "common/math/gate_decision.h"
#include "common/wire/attach_messages.h"
#include "common/wire/checkpoint_messages.h"
#include "common/wire/compute_kinds.h"
#include "common/wire/copy_messages.h"
#include "common/wire/data_messages.h"
#include "common/wire/doctor_messages.h"
#include "common/wire/peer_messages.h"
#include "common/wire/rank_values.h"
#include "common/wire/record_messages.h"
#include "common/wire/trace_messages.h"

namespace tributary {

// Both wires and the attach protocol carry the version first; another version is refused with a message that names
// both. Within a version fields and kinds may be added (docs/data-path.md, "Messages of other releases").
inline constexpr std::uint16_t kProtocolVersion = 16;

inline constexpr std::uint32_t kNobody = ~0u;  // in place of a rank

// Sent by a worker when all its local ranks have attached.
struct JoinJob {
  std::string job_json;  // canonical JobConfig
  std::vector<TensorSpec> tensors;
  NodeRank node;            // by which the job knows it, in all views
  std::uint32_t nodes = 1;  // as its trainers declare; an elastic job begins with that many
  std::uint32_t local_world_size = 1;
  std::uint32_t world_size = 1;
  Round checkpoint_round;       // all-reduce: the newest checkpoint of this job that the node holds; 0: none
  std::string checkpoint_flaw;  // why none that it holds can be read; empty: there is none, or one can
  // The node's pushes that it still has (worker/reduce/redo_ring.h): of this job, of all rounds from first to last
  // (last < first: none), and of how many rounds there can be some (0: it keeps none).
  JobId redo_job;
  Round redo_first, redo_last;
  std::uint32_t redo_capacity = 0;
  std::uint64_t redo_members = 0;  // JobWelcome::members of the views that they were pushed in
  // Encodings with error feedback: the rounds after which it has the residual (last < first: none).
  Round residual_first{1}, residual_last;
  ComputeKinds computes_with;              // its ranks
  bool on_devices = false;                 // its ranks' gradients are on GPUs, which add them up
  std::vector<std::uint32_t> model_ranks;  // of its ranks, by local rank; empty: each holds the whole model
  // The job whose HeldState of some ranks it has: the rounds for which it has all of it, and the local rank of each
  // state. Also the local ranks whose processes have lived through the job's last view.
  JobId held_job;
  std::vector<Round> held_rounds;
  std::vector<std::uint32_t> held_ranks, living;
  std::uint64_t number = 0;  // another one whenever other trainers join; welcome and refusal say it again

  static constexpr auto kWire = TRIB_WIRE(JoinJob);
  static void fields(auto& m, auto&& field) {
    field(m.job_json, TRIB_WIRE(JobJson), AtMost{kMaxJobJsonBytes, "the job configuration"});
    field(m.tensors, TRIB_WIRE(Tensors), AtMost{kMaxTensors, "the list of tensors"});
    field(m.node, TRIB_WIRE(Node));
    field(m.nodes, TRIB_WIRE(Nodes));
    field(m.local_world_size, TRIB_WIRE(LocalWorldSize));
    field(m.world_size, TRIB_WIRE(WorldSize));
    field(m.checkpoint_round, TRIB_WIRE(CheckpointRound));
    field(m.checkpoint_flaw, TRIB_WIRE(CheckpointFlaw), CutAt{});
    field(m.redo_job, TRIB_WIRE(RedoJob));
    field(m.redo_first, TRIB_WIRE(RedoFirst));
    field(m.redo_last, TRIB_WIRE(RedoLast));
    field(m.redo_capacity, TRIB_WIRE(RedoCapacity));
    field(m.redo_members, TRIB_WIRE(RedoMembers));
    field(m.residual_first, TRIB_WIRE(ResidualFirst));
    field(m.residual_last, TRIB_WIRE(ResidualLast));
    field(m.computes_with, TRIB_WIRE(ComputesWith), AtMost{kMaxComputeKinds, "the list of what ranks compute with"},
          AtMost{kMaxComputeKindBytes, "what a rank computes with"});
    field(m.on_devices, TRIB_WIRE(OnDevices));
    field(m.model_ranks, TRIB_WIRE(ModelRanks), AtMost{kMaxRanks, "the list of model ranks"});
    field(m.held_job, TRIB_WIRE(HeldJob));
    field(m.held_rounds, TRIB_WIRE(HeldRounds),
          AtMost{kMaxHeldRounds * kMaxRankStates, "the list of rounds that are held"});
    field(m.held_ranks, TRIB_WIRE(HeldRanks), AtMost{kMaxHeldRounds * kMaxRankStates, "the list of who kept them"});
    field(m.living, TRIB_WIRE(Living), AtMost{kMaxRankStates, "the list of ranks that live"});
    field(m.number, TRIB_WIRE(Number));
  }
  void check() const {
    if (held_rounds.size() != held_ranks.size()) throw Malformed{"a join names rounds that are held without whose"};
  }
};
// Coordinator -> server: the receiver owns its chunks of this job in this view.
struct OpenJob {
  JobId job;
  ViewId view;
  std::string job_json;
  std::vector<TensorSpec> tensors;
  std::uint64_t chunk_elements = 0;
  std::vector<ChunkOwner> owners;
  std::uint32_t nodes = 1;
  bool resume = false;  // load the snapshot of resume_round; else wait for Init
  Round resume_round;
  bool kept = false;  // continue with the state in memory; resume and resume_round then describe the store's
  std::vector<std::uint32_t> model_ranks;  // ModelRanks::by_rank() of the view; empty: each holds the whole model
  std::vector<std::string> worker_keys;    // in a cluster with keys: of the view's nodes; empty: there are none
  ServerEntry copy;  // a server that has a copy of the receiver's part of resume_round; no endpoint: none

  static constexpr auto kWire = TRIB_WIRE(OpenJob);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field(m.job_json, TRIB_WIRE(JobJson), AtMost{kMaxJobJsonBytes, "the job configuration"});
    field.inside(TRIB_WIRE(Layout), [&](const auto& layout) {
      layout(m.tensors, TRIB_WIRE(Tensors), AtMost{kMaxTensors, "the list of tensors"});
      layout(m.chunk_elements, TRIB_WIRE(ChunkElements));
      layout.owners(m.owners);
    });
    field(m.nodes, TRIB_WIRE(Nodes));
    field(m.resume, TRIB_WIRE(Resume));
    field(m.resume_round, TRIB_WIRE(ResumeRound));
    field(m.kept, TRIB_WIRE(Kept));
    field(m.model_ranks, TRIB_WIRE(ModelRanks), AtMost{kMaxRanks, "the list of model ranks"});
    field(m.worker_keys, TRIB_WIRE(WorkerKeys), AtMost{kMaxRanks, "the list of workers' keys"},
          AtMost{kMaxNameBytes, "a worker's key"});
    field(m.copy, TRIB_WIRE(Copy));
  }
};
// Server -> coordinator: reply to StopJob(kRestart): its state in memory to continue from.
struct ShardKept {
  JobId job;
  ViewId view;
  bool any = false;
  Version min_version, max_version;

  static constexpr auto kWire = TRIB_WIRE(ShardKept);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field(m.any, TRIB_WIRE(Any));
    field(m.min_version, TRIB_WIRE(MinVersion));
    field(m.max_version, TRIB_WIRE(MaxVersion));
  }
};
struct ShardReady {  // server -> coordinator: reply to OpenJob; code/message if it failed
  JobId job;
  ViewId view;
  bool ok = true;
  ErrorCode code = ErrorCode::kInternal;
  std::string message;

  static constexpr auto kWire = TRIB_WIRE(ShardReady);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field(m.ok, TRIB_WIRE(Ok));
    field(m.code, TRIB_WIRE(Code));
    field(m.message, TRIB_WIRE(Message), CutAt{});
  }
};
struct JobWelcome {  // coordinator -> workers: begin
  JobId job;
  ViewId view;
  std::uint64_t chunk_elements = 0;
  std::vector<ChunkOwner> owners;
  std::vector<std::vector<std::string>> endpoints;  // [shard][lane]
  bool resume = false;
  Round resume_round;
  std::string name;                              // the job's: the worker that joined does not know its id yet
  std::vector<std::vector<std::string>> locals;  // [shard][lane], as in ServerHello; empty: none
  // [shard]: the version that it has, if less than resume_round: its later pushes must be sent again. Empty: none.
  std::vector<Version> redo_after;
  Round committed;    // the last committed snapshot
  bool redo = false;  // keep pushes until a snapshot covers them
  // The receiver is node `node` of `nodes` in this view, which decides its ranks.
  NodeRank node;
  std::uint32_t nodes = 1;
  std::uint64_t members = 0;  // identifies those nodes (members_hash())
  // States of the node's ranks, by local rank, if the view begins at their round. Missing or empty: none.
  std::vector<std::vector<std::byte>> rank_states;
  std::vector<std::byte> first_state;      // of the job's first rank that has one; likewise
  std::uint32_t giver = kNobody;           // the rank that is to give it, if it is not known yet
  std::vector<std::uint32_t> model_ranks;  // as OpenJob::model_ranks
  std::vector<std::string> server_keys;    // in a cluster with keys: by shard; empty: there are none
  std::vector<ShardIndex> plain;           // of those: whose lanes do not encrypt, and take one-time tokens
  std::uint64_t join = 0;                  // JoinJob::number
  NodeRank values_from;                    // all-reduce: the node that passes on the values of the view's start

  static constexpr auto kWire = TRIB_WIRE(JobWelcome);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field.inside(TRIB_WIRE(Layout), [&](const auto& layout) {
      layout(m.chunk_elements, TRIB_WIRE(ChunkElements));
      layout.owners(m.owners);
    });
    field(m.endpoints, TRIB_WIRE(Endpoints), AtMost{kMaxShards, "the list of servers"},
          AtMost{kMaxLaneEndpoints, "the list of lane endpoints"}, AtMost{kMaxNameBytes, "an endpoint of a lane"});
    field(m.resume, TRIB_WIRE(Resume));
    field(m.resume_round, TRIB_WIRE(ResumeRound));
    field(m.name, TRIB_WIRE(Name), AtMost{kMaxNameBytes, "the job's name"});
    field(m.locals, TRIB_WIRE(Locals), AtMost{kMaxShards, "the list of servers"},
          AtMost{kMaxLaneEndpoints, "the list of the lanes' local names"},
          AtMost{kMaxNameBytes, "a lane's local name"});
    field(m.redo_after, TRIB_WIRE(RedoAfter), AtMost{kMaxShards, "the list of versions to redo after"});
    field(m.committed, TRIB_WIRE(Committed));
    field(m.redo, TRIB_WIRE(Redo));
    field(m.node, TRIB_WIRE(Node));
    field(m.nodes, TRIB_WIRE(Nodes));
    field(m.members, TRIB_WIRE(Members));
    field(m.rank_states, TRIB_WIRE(RankStates), AtMost{kMaxRankStates, "the list of the ranks' states"},
          AtMost{kMaxRankState, "a rank's state"});
    field(m.first_state, TRIB_WIRE(FirstState), AtMost{kMaxRankState, "the first rank's state"});
    field(m.giver, TRIB_WIRE(Giver));
    field(m.model_ranks, TRIB_WIRE(ModelRanks), AtMost{kMaxRanks, "the list of model ranks"});
    field(m.server_keys, TRIB_WIRE(ServerKeys), AtMost{kMaxShards, "the list of servers' keys"},
          AtMost{kMaxNameBytes, "a server's key"});
    field(m.plain, TRIB_WIRE(Plain), AtMost{kMaxShards, "the list of servers that do not encrypt"});
    field(m.join, TRIB_WIRE(Join));
    field(m.values_from, TRIB_WIRE(ValuesFrom));
  }
};
struct JobWaits {  // coordinator -> workers that have joined, now and then: the members that their job waits for
  std::string name;
  std::string missing;
  std::uint64_t progress = 0;  // grows with every step forward

  static constexpr auto kWire = TRIB_WIRE(JobWaits);
  static void fields(auto& m, auto&& field) {
    field(m.name, TRIB_WIRE(Name), AtMost{kMaxNameBytes, "the job's name"});
    field(m.missing, TRIB_WIRE(Missing), CutAt{});
    field(m.progress, TRIB_WIRE(Progress));
  }
};
inline constexpr std::size_t kMaxPeerAddressBytes = 256u << 10;
// Worker -> coordinator (all-reduce): an address or key that the view's other nodes need to connect to this one.
struct PeerAddress {
  JobId job;
  ViewId view;
  NodeRank node;  // the author
  std::string key;
  std::vector<std::byte> value;  // at most kMaxPeerAddressBytes
  bool for_all = false;          // else the value is for the author's two neighbours; the others receive the key alone

  static constexpr auto kWire = TRIB_WIRE(PeerAddress);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field(m.node, TRIB_WIRE(Node));
    field(m.key, TRIB_WIRE(Key), AtMost{kMaxNameBytes, "the key of the peer's address"});
    field(m.value, TRIB_WIRE(Value), AtMost{kMaxPeerAddressBytes, "the peer's address"});
    field(m.for_all, TRIB_WIRE(ForAll));
  }
};
struct PeerAddresses {  // coordinator -> the view's workers: those of other nodes
  std::vector<PeerAddress> addresses;

  static constexpr auto kWire = TRIB_WIRE(PeerAddresses);
  static void fields(auto& m, auto&& field) {
    field(m.addresses, TRIB_WIRE(Addresses), AtMost{kMaxRanks, "the list of addresses"});
  }
};
struct PrepareSnapshot {  // coordinator -> servers: get memory for the copy-on-write of the next snapshot, whose round
                          // is named when heartbeats report that memory (JobProgress::prepared)
  JobId job;
  ViewId view;

  static constexpr auto kWire = TRIB_WIRE(PrepareSnapshot);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
  }
};
struct SnapshotAt {  // coordinator -> servers: keep the state of every chunk at this round; -> workers: that of ranks
  JobId job;
  ViewId view;
  Round round;

  static constexpr auto kWire = TRIB_WIRE(SnapshotAt);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field(m.round, TRIB_WIRE(Round));
  }
};
// Worker -> coordinator. Coordinator -> the view's workers: the state of its giver.
struct NodeRankState {
  JobId job;
  ViewId view;
  NodeRank node;  // by which the job knows it
  std::uint32_t local_rank = 0;
  RankState kept;

  static constexpr auto kWire = TRIB_WIRE(NodeRankState);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field(m.node, TRIB_WIRE(Node));
    field(m.local_rank, TRIB_WIRE(LocalRank));
    RankState::fields(m.kept, field);
  }
};
// Worker or server <-> coordinator: requests the bytes of a large part at an offset (common/wire/part_fetch.h).
struct WantPart {
  JobId job;
  LargePart large;
  std::uint64_t offset = 0;

  static constexpr auto kWire = TRIB_WIRE(WantPart);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.large, TRIB_WIRE(Large));
    field(m.offset, TRIB_WIRE(Offset));
  }
  void check() const {
    if (large.bytes > kMaxLargePart || (offset != 0 && offset >= large.bytes))
      throw Malformed{"a part of a state lies outside of it"};
    if (offset % kPartBytes != 0) throw Malformed{"a part of a state begins within another"};
  }
};
// The answer: empty if the part is not there (any more), or still on its way to the sender.
struct StatePart {
  WantPart part;
  std::vector<std::byte> data;
  bool comes = false;  // the latter: the receiver requests it again

  static constexpr auto kWire = TRIB_WIRE(StatePart);
  static void fields(auto& m, auto&& field) {
    WantPart::fields(m.part, field);
    field(m.data, TRIB_WIRE(Data), AtMost{kPartBytes, "a part of a state"});
    field(m.comes, TRIB_WIRE(Comes));
  }
  void check() const {
    part.check();
    if (comes && !data.empty()) throw Malformed{"a part of a state is there, and on its way"};
    if (!data.empty() && data.size() != std::min<std::uint64_t>(kPartBytes, part.large.bytes - part.offset))
      throw Malformed{"a part of a state has another size than was asked for"};
  }
};
struct SnapshotDone {  // server -> coordinator, and from there to workers at a job's end: durable, or why it is not
  JobId job;
  ViewId view;
  Round round;
  bool ok = true;
  std::uint64_t bytes = 0;
  std::string message;
  ErrorCode code = ErrorCode::kInternal;  // if not ok. kStopped: given up, by order or because the round was over

  static constexpr auto kWire = TRIB_WIRE(SnapshotDone);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field(m.round, TRIB_WIRE(Round));
    field(m.ok, TRIB_WIRE(Ok));
    field(m.bytes, TRIB_WIRE(Bytes));
    field(m.message, TRIB_WIRE(Message), CutAt{});
    field(m.code, TRIB_WIRE(Code));
  }
};
// Coordinator -> servers and workers: durable everywhere; older ones, and pushes up to this round, may go.
struct SnapshotCommit {
  JobId job;
  Round round;
  Round superseded;  // servers: the snapshot of this later round goes, too; 0: none does

  static constexpr auto kWire = TRIB_WIRE(SnapshotCommit);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.round, TRIB_WIRE(Round));
    field(m.superseded, TRIB_WIRE(Superseded));
  }
};
// ---- The round gate (server/coordinator/round/round_gate.h). ----

struct ChunkFacts {
  ChunkIndex chunk;
  GateFacts facts;
  bool operator==(const ChunkFacts&) const = default;

  static void fields(auto& m, auto&& field) {
    field(m.chunk, TRIB_WIRE(Chunk));
    field(m.facts.finite, TRIB_WIRE(Finite));
    field(m.facts.sum_squares, TRIB_WIRE(SumSquares));
    field(m.facts.weight, TRIB_WIRE(Weight));
  }
  void check() const {
    if (facts.finite && !(std::isfinite(facts.sum_squares) && facts.sum_squares >= 0.0)) {
      throw Malformed{"the sum of squares of finite gradients is negative or not finite"};
    }
  }
};
// Server -> coordinator: facts of this round in a lane's chunks; or, with `decided`, the decision about it, from a lane
// whose chunks have it already. Repeated until RoundDecision comes.
struct RoundFacts {
  JobId job;
  ViewId view;
  Round round;
  GateDecision before;   // of the round before
  GateDecision decided;  // of this one, or kNone
  std::vector<ChunkFacts> chunks;

  static constexpr auto kWire = TRIB_WIRE(RoundFacts);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field(m.round, TRIB_WIRE(Round));
    field(m.before, TRIB_WIRE(Before));
    field(m.decided, TRIB_WIRE(Decided));
    field(m.chunks, TRIB_WIRE(Chunks));
  }
};
// Coordinator -> servers.
struct RoundDecision {
  JobId job;
  ViewId view;
  Round round;
  GateDecision decision;

  static constexpr auto kWire = TRIB_WIRE(RoundDecision);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field(m.round, TRIB_WIRE(Round));
    field(m.decision, TRIB_WIRE(Decision));
  }
};

// Coordinator -> workers: finish the open round, then leave. Sent on a graceful stop of any member.
struct StopRequest {
  JobId job;
  ViewId view;
  std::string reason;

  static constexpr auto kWire = TRIB_WIRE(StopRequest);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field(m.reason, TRIB_WIRE(Reason), CutAt{});
  }
};
struct LeaveJob {  // worker -> coordinator
  JobId job;
  ViewId view;
  NodeRank node;
  LeaveKind kind = LeaveKind::kFinished;
  Round round;  // the last round whose answers this node has received in full
  std::string message;
  std::string name;  // the job's: a worker that leaves before its JobWelcome knows no id (then job and view are 0)
  Figures figures;   // its trainers' last ones

  static constexpr auto kWire = TRIB_WIRE(LeaveJob);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field(m.node, TRIB_WIRE(Node));
    field(m.kind, TRIB_WIRE(Kind));
    field(m.round, TRIB_WIRE(Round));
    field(m.message, TRIB_WIRE(Message), CutAt{});
    field(m.name, TRIB_WIRE(Name), AtMost{kMaxNameBytes, "the job's name"});
    field(m.figures, TRIB_WIRE(Figures));
  }
};
struct StopJob {  // coordinator -> servers and workers: this view is over
  JobId job;
  ViewId view;
  StopKind kind = StopKind::kRestart;
  Round round;
  std::string reason;

  static constexpr auto kWire = TRIB_WIRE(StopJob);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field(m.kind, TRIB_WIRE(Kind));
    field(m.round, TRIB_WIRE(Round));
    field(m.reason, TRIB_WIRE(Reason), CutAt{});
  }
};
struct DrainRequest {  // any daemon -> coordinator: I am to stop; first stop my jobs at a round boundary
  std::uint64_t incarnation = 0;

  static constexpr auto kWire = TRIB_WIRE(DrainRequest);
  static void fields(auto& m, auto&& field) { field(m.incarnation, TRIB_WIRE(Incarnation)); }
};
struct DrainDone {  // coordinator -> that daemon: none of its jobs is open any more
  static constexpr auto kWire = TRIB_WIRE(DrainDone);
};
struct ControlError {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::string job;         // name of the job that it is about; empty: none in particular
  std::uint64_t join = 0;  // JoinJob::number of the join that is refused; 0: none in particular

  static constexpr auto kWire = TRIB_WIRE(Error);
  static void fields(auto& m, auto&& field) {
    field(m.code, TRIB_WIRE(Code));
    field(m.message, TRIB_WIRE(Message), CutAt{});
    field(m.job, TRIB_WIRE(Job), CutAt{});
    field(m.join, TRIB_WIRE(Join));
  }
};

// In the order of the union in schema/control.capnp.
using ControlVariant =
    std::variant<ServerHello, WorkerHello, HelloReply, Heartbeat, HeartbeatReply, JoinJob, OpenJob, ShardReady,
                 JobWelcome, SnapshotAt, SnapshotDone, SnapshotCommit, StopRequest, LeaveJob, StopJob, DrainRequest,
                 DrainDone, ControlError, PeerAddress, ShardKept, WriteCheckpoint, SealCheckpoint, LoadCheckpoint,
                 DropCheckpoint, CheckpointDone, RoundFacts, RoundDecision, NodeRankState, PrepareSnapshot, JobWaits,
                 TraceRounds, TracePart, ClusterQuestion, ClusterFacts, Diagnose, Diagnosed, WantPart, StatePart,
                 RankValues, PeerAddresses, JobRecordCopy, WantRecord, HeldRecord, ServerBook, CopySnapshot,
                 SnapshotCopied, WantChunk, CopiedChunk, CopyParts, HeldParts, SeatReport, DealChunks>;

// One control message. A type of its own, whose copies, moves and end are compiled once (messages.cc): each is code for
// all alternatives, which every file that has a message would compile.
struct ControlMessage : ControlVariant {
  using ControlVariant::ControlVariant;
  ControlMessage();
  ControlMessage(const ControlMessage& other);
  ControlMessage(ControlMessage&& other) noexcept;
  ControlMessage& operator=(const ControlMessage& other);
  ControlMessage& operator=(ControlMessage&& other) noexcept;
  ~ControlMessage();
};

// The std::variant that a kind of message is.
template <class Message>
struct VariantOf {
  using Type = Message;
};
template <>
struct VariantOf<ControlMessage> {
  using Type = ControlVariant;
};

}  // namespace tributary
