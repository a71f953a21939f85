// The messages as plain structs. common/codec.h turns them into Cap'n Proto (schema/data.capnp, schema/control.capnp)
// and back; the cores see only these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/compute_kinds.h"
#include "common/gate_decision.h"
#include "common/ids.h"
#include "common/layout.h"
#include "common/result.h"

namespace tributary {

// Both wires and the attach protocol carry it first; another version is refused with a message that names both.
inline constexpr std::uint16_t kProtocolVersion = 10;

// ---- The data path: worker lane <-> server lane. Frames: header, then the raw payload where noted. ----

// Identifies what a data message is about. A push names (job, view, node, round, chunk):
// receiving it twice changes nothing.
struct ChunkKey {
  JobId job;
  ViewId view;
  NodeRank node;
  ChunkIndex chunk;
  bool operator==(const ChunkKey&) const = default;
};

// What a push brings of its author's residual (encodings with error feedback; schema/data.capnp).
enum class ResidualUse : std::uint8_t { kNone = 0, kBehind = 1, kAlone = 2 };

// Where the residual begins in a payload that carries one behind its frame.
constexpr std::size_t residual_offset(std::size_t frame_bytes) {
  constexpr std::size_t kAlign = 64;
  return (frame_bytes + kAlign - 1) / kAlign * kAlign;
}

// Largest payload of a data message: a chunk's frame (at most 1.5 times its values: top-k of all of them), with its
// residual behind it.
inline constexpr std::size_t kMaxDataPayload = 3 * kMaxChunkBytes;

// Node-summed gradient of one chunk for one round. + payload (encoded).
struct Push {
  ChunkKey key;
  Round round;
  std::uint64_t weight = 0;  // samples (or any additive weight) behind the sum; the server divides by the total
  EncodingId encoding = EncodingId::kFp32;
  ResidualUse residual = ResidualUse::kNone;
  bool last = false;  // clocks: the author's last; its answer is to hold every node's pushes up to this round
  bool redo = false;  // of a round that this server lost: Receipt::applied instead of an answer
  GateDecision gate;  // redo, in a job with a gate: what was decided about that round
};
// Initial parameters of a chunk of a fresh job, from node 0. + payload (fp32). Answered with version 0.
struct Init {
  ChunkKey key;
};
// "Give me the parameters of this chunk at `version`": at the start of a view, which begins there. Held until the chunk
// is initialised and at that version.
struct Pull {
  ChunkKey key;
  Version version;
};
// "What became of my push?": sent instead of the payload when an answer is overdue.
// Replied with Answer, Receipt or Resend.
struct Query {
  ChunkKey key;
  Round round;
  bool redo = false;  // of a push with redo
};
// The push has arrived and waits for the other nodes. Frees the sender's window, not its buffer.
struct Receipt {
  ChunkKey key;
  Round round;
  bool residual_kept = false;  // of a residual alone; a late receipt of the same round's gradient must not pass for it
  bool applied = false;        // of a push with redo: the round is complete, the next one may come
};
// The chunk's parameters at `version`. + payload (encoded). Where nodes have clocks (modes ssp and async) the version
// is the clock of the reader's own that is answered, and slowest says what the reader may rely on.
struct Answer {
  ChunkKey key;
  Version version;
  EncodingId encoding = EncodingId::kFp32;
  Round snapshot_round;        // the push of this round must bring its residual; 0: none
  bool residual_sent = false;  // a Residual went before this answer
  Round slowest;               // clocks: every node's pushes up to this one are in the parameters; else the version
  GateDecision gate;           // in a job with a gate: about the round that made this version
};
// The node's residual of a resumed chunk, before its first answer. + payload (fp32).
struct Residual {
  ChunkKey key;
  Version version;
};
// The server does not have this push (it was lost, or the server came back): send it again.
struct Resend {
  ChunkKey key;
  Round round;
};
// To the author of a message that could not be accepted.
struct ErrorReply {
  ChunkKey key;
  Round round;
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};

// Beside a data message between two lanes on one machine that share memory (common/local_link.h): where the payload
// lies, instead of the payload frame. bytes 0: the message has no payload, or has it in a frame.
struct PayloadPlace {
  std::uint32_t link = 0;    // the pair of lanes, by the server's number; 0: they share nothing
  std::uint32_t region = 0;  // of the sender's memories; a server has one: the buffers of the job
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  // From a server: the places that it tells over a link count 1, 2, ... From a worker, in every message that names a
  // link: the newest that it has read; it looks at no older one any more.
  std::uint64_t ticket = 0;
};

using DataMessage = std::variant<Push, Init, Pull, Query, Receipt, Answer, Residual, Resend, ErrorReply>;

// ---- The control path: every daemon <-> the coordinator. One frame. ----

struct StoredJob {  // a job found in a server's store
  JobId job;
  std::string name;
  std::uint64_t layout_hash = 0;
  std::vector<Round> snapshots;  // complete consistent snapshots, ascending
};
struct KeptJob {  // state of a job's last view that a server has in memory
  JobId job;
  Version min_version, max_version;  // of its chunks
  bool pending = false;              // its lanes have not let go of the view yet: ShardKept follows
};
struct ServerHello {
  ShardIndex shard;
  std::uint16_t servers = 1;      // how many this server believes the cluster has
  std::uint64_t incarnation = 0;  // random per process: a restarted daemon is a new one
  double bandwidth = 1.0;
  std::vector<std::string> lane_endpoints;
  std::vector<StoredJob> stored;
  std::string host;                      // the machine, as common/host_identity.h names it
  std::vector<std::string> lane_locals;  // per lane: name under which a worker on this machine finds it; empty: none
  std::vector<KeptJob> kept;
  bool store = false;  // it has one
  // What one process at a time can hold (its store, locked): another process with the same has outlived this one.
  // Empty: nothing.
  std::string exclusive;
};
struct WorkerHello {
  std::string name;
  std::uint64_t incarnation = 0;
  std::string host;        // as in ServerHello
  double bandwidth = 1.0;  // of its link, relative to those of the other hosts
  std::string exclusive;   // as in ServerHello: its socket
};
struct HelloReply {
  std::uint64_t coordinator_incarnation = 0;
};
struct JobProgress {
  JobId job;
  ViewId view;
  Version min_version;
  Version max_version;
  bool prepared = false;  // servers: what the last PrepareSnapshot asked for is there
  bool writing = false;   // servers: a snapshot of the job has been asked for here, and has not ended
};
// Where a node's time went, in total since the view began: its own, not that in which it waited for others.
struct NodePace {
  JobId job;
  ViewId view;
  NodeRank node;
  std::uint64_t rounds = 0;
  std::uint64_t compute_ns = 0;  // from the last answer of a round to the last gradient of the next
  std::uint64_t reduce_ns = 0;   // summing and encoding
  std::uint64_t network_ns = 0;  // from then until a server has the last of it
  std::uint64_t samples = 0;     // that its gradients were sums over (any weight)
  std::uint64_t answers = 0;     // grows with every answer that the node takes
};
struct Heartbeat {
  std::uint64_t incarnation = 0;
  std::vector<JobProgress> progress;  // from servers
  std::vector<NodePace> paces;        // from workers
};
struct HeartbeatReply {
  std::uint64_t coordinator_incarnation = 0;  // differs from the known one: say hello again
};
// A worker whose local ranks have all attached.
struct JoinJob {
  std::string job_json;  // canonical JobConfig
  std::vector<TensorSpec> tensors;
  NodeRank node;            // by which the job knows it, in all views
  std::uint32_t nodes = 1;  // as its trainers say; an elastic job begins with that many
  std::uint32_t local_world_size = 1;
  std::uint32_t world_size = 1;
  Round checkpoint_round;  // all-reduce: the newest checkpoint of this job that the node holds; 0: none
  // The node's pushes that it still has (worker/redo_ring.h): of this job, of all rounds from first to last (last <
  // first: none), and of how many rounds there can be some (0: it keeps none).
  JobId redo_job;
  Round redo_first, redo_last;
  std::uint32_t redo_capacity = 0;
  std::uint64_t redo_members = 0;  // JobWelcome::members of the views that they were pushed in
  // Encodings with error feedback: the rounds after which it knows what it has not said yet (last < first: none).
  Round residual_first{1}, residual_last;
  ComputeKinds computes_with;  // its ranks
  bool on_devices = false;     // its ranks' gradients are on GPUs, which add them up
};
// Coordinator -> server: own your chunks of this job in this view.
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
  bool kept = false;  // go on with what is in memory; resume and resume_round then say what is in the store
};
// Server -> coordinator: reply to StopJob(kRestart): what it has in memory to go on from.
struct ShardKept {
  JobId job;
  ViewId view;
  bool any = false;
  Version min_version, max_version;
};
struct ShardReady {  // server -> coordinator: reply to OpenJob; code/message if it failed
  JobId job;
  ViewId view;
  bool ok = true;
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
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
  // [shard]: the version that it has, if less than resume_round: later pushes to its chunks are wanted again. Empty:
  // none.
  std::vector<Version> redo_after;
  Round committed;    // the last committed snapshot
  bool redo = false;  // keep pushes until a snapshot covers them
  // Whom this is for: in this view it is node `node` of `nodes`, which decides its ranks.
  NodeRank node;
  std::uint32_t nodes = 1;
  std::uint64_t members = 0;  // says which nodes those are (members_hash())
  // Of the node's ranks, by local rank, if the view begins where it was kept. Missing or empty: none.
  std::vector<std::vector<std::byte>> rank_states;
};
// Worker -> coordinator -> the view's other workers (all-reduce): something they need to connect to each other.
struct PeerAddress {
  JobId job;
  ViewId view;
  NodeRank node;  // the author
  std::string key;
  std::vector<std::byte> value;  // at most kMaxPeerAddressBytes
};
inline constexpr std::size_t kMaxPeerAddressBytes = 256u << 10;
struct PrepareSnapshot {  // coordinator -> servers: get memory for the copy-on-write of the next snapshot, whose round
                          // is named when heartbeats say that it is there (JobProgress::prepared)
  JobId job;
  ViewId view;
};
struct SnapshotAt {  // coordinator -> servers: keep the state of every chunk at this round. And to workers: that of
                     // ranks
  JobId job;
  ViewId view;
  Round round;
};
// What a rank gave to be kept with the state after `round` (Session::keep): generators of random numbers, a sampler.
// Trainer -> worker (RankState) -> coordinator (NodeRankState), and back when the job goes on from there.
inline constexpr std::size_t kMaxRankState = 256u << 10;  // bytes
inline constexpr std::size_t kMaxRankStates = 256;        // of a node
struct RankState {
  Round round;
  std::vector<std::byte> state;
};
struct NodeRankState {
  JobId job;
  ViewId view;
  NodeRank node;  // by which the job knows it
  std::uint32_t local_rank = 0;
  RankState kept;
};
struct SnapshotDone {  // server -> coordinator, and from there to workers at a job's end: durable, or why it is not
  JobId job;
  ViewId view;
  Round round;
  bool ok = true;
  std::uint64_t bytes = 0;
  std::string message;
};
// Coordinator -> servers and workers: durable everywhere; older ones, and pushes up to this round, may go.
struct SnapshotCommit {
  JobId job;
  Round round;
};
// ---- The round gate (server/round_gate.h). ----

struct ChunkFacts {
  ChunkIndex chunk;
  GateFacts facts;
  bool operator==(const ChunkFacts&) const = default;
};
// Server -> coordinator: what a lane's chunks have of this round; or, with `decided`, what was decided about it, told
// by a lane whose chunks have it already. Repeated until RoundDecision comes.
struct RoundFacts {
  JobId job;
  ViewId view;
  Round round;
  GateDecision before;   // of the round before
  GateDecision decided;  // of this one, or kNone
  std::vector<ChunkFacts> chunks;
};
// Coordinator -> servers.
struct RoundDecision {
  JobId job;
  ViewId view;
  Round round;
  GateDecision decision;
};

// Coordinator -> workers: finish the open round, then leave. Sent on a graceful stop of any member.
struct StopRequest {
  JobId job;
  ViewId view;
  std::string reason;
};
enum class LeaveKind : std::uint8_t {
  kFinished = 0,  // training is complete
  kStopped = 1,   // asked to stop; may come back
  kFailed = 2,    // a trainer or the node is lost
};
struct LeaveJob {  // worker -> coordinator
  JobId job;
  ViewId view;
  NodeRank node;
  LeaveKind kind = LeaveKind::kFinished;
  Round round;  // the last round whose answers this node has received in full
  std::string message;
  std::string name;  // the job's: a worker that leaves before its JobWelcome knows no id (then job and view are 0)
};
enum class StopKind : std::uint8_t {
  kFinished = 0,  // every node finished: keep the final state as a snapshot of `round`
  kStopped = 1,   // stopped at a round boundary: likewise
  kRestart = 2,   // a member was lost: drop what is open; members may attach again and go on from the last snapshot
};
struct StopJob {  // coordinator -> servers and workers: this view is over
  JobId job;
  ViewId view;
  StopKind kind = StopKind::kRestart;
  Round round;
  std::string reason;
};
struct DrainRequest {  // any daemon -> coordinator: I was told to stop; stop my jobs in good order first
  std::uint64_t incarnation = 0;
};
struct DrainDone {};  // coordinator -> that daemon: nothing of yours is open any more
// ---- Checkpoints: coordinator -> servers, each answered with CheckpointDone (server/checkpoints.h). ----

// Your part of this complete snapshot goes into `directory`, which every server sees.
struct WriteCheckpoint {
  std::uint64_t operation = 0;
  JobId job;
  Round round;
  std::string directory;  // PATH/NAME-round-R.partial
};
// To server 0: all parts are there; make them the checkpoint `target`.
struct SealCheckpoint {
  std::uint64_t operation = 0;
  std::string directory, target;
  std::string manifest;
};
// The chunks that you own become a snapshot of this job in your store, from the files of the checkpoint `directory`.
struct LoadCheckpoint {
  std::uint64_t operation = 0;
  JobId job;
  std::string name;      // the job's, which the checkpoint's may not be
  std::string manifest;  // checksum of the manifest that the coordinator saw
  std::string directory;
  std::vector<ChunkOwner> owners;
};
// Nobody needs these any more: the state of a job that was replaced or never became one (0: none), and what you wrote
// into a directory (empty: none). Not answered.
struct DropCheckpoint {
  JobId job;
  std::string directory;
};
struct CheckpointDone {  // server -> coordinator
  std::uint64_t operation = 0;
  bool ok = true;
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::uint64_t bytes = 0;  // written: of the file, and its checksum
  std::string checksum;
  bool unchanged = false;  // written: the file of an earlier checkpoint was taken; sealed: the checkpoint was there
};

struct ControlError {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::string job;  // name of the job that it is about; empty: none in particular
};

using ControlMessage =
    std::variant<ServerHello, WorkerHello, HelloReply, Heartbeat, HeartbeatReply, JoinJob, OpenJob, ShardReady,
                 JobWelcome, PrepareSnapshot, SnapshotAt, SnapshotDone, SnapshotCommit, StopRequest, LeaveJob, StopJob,
                 DrainRequest, DrainDone, ControlError, PeerAddress, ShardKept, NodeRankState, RoundFacts,
                 RoundDecision, WriteCheckpoint, SealCheckpoint, LoadCheckpoint, DropCheckpoint, CheckpointDone>;

inline constexpr std::size_t kMaxControlBytes = 64u << 20;  // a layout of a million chunks fits; bounds ZMQ_MAXMSGSIZE

// ---- The attach path: trainer <-> worker over a Unix socket (SOCK_SEQPACKET). ----

struct AttachRequest {
  std::string job_json;
  std::uint32_t rank = 0, local_rank = 0, world_size = 1, local_world_size = 1, node_rank = 0;
  std::int32_t pid = 0;
  std::vector<TensorSpec> tensors;
  std::string device;           // UUID of the GPU with this rank's gradients; empty: they are in host memory
  bool gradients_move = false;  // the trainer can write each round's gradient elsewhere
  std::string computes_with;    // common/compute_kinds.h; empty: not said
};
// File descriptors travel with it (SCM_RIGHTS), in this order: node region, gradient region, one eventfd per lane.
struct AttachReply {
  JobId job;
  ViewId view;
  // Where the rank stands in this view. In an elastic job it need not be what the request said.
  std::uint32_t rank = 0, world_size = 1, node_rank = 0;
  std::vector<std::byte> state;  // what this rank gave to be kept with resume_round; empty: none
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
  // One more descriptor: what the node has pushed, for the trainer to hold and give back when it attaches again.
  bool redo = false;
  // Where the rank writes its gradients, in that memory: round r's at offset + (r % slots) * slot_bytes, as flat as in
  // a gradient region. slots 0: they are in the gradient region.
  struct RingGradients {
    std::uint64_t offset = 0, slot_bytes = 0;
    std::uint32_t slots = 0;
  } ring;
};
inline constexpr std::size_t kMaxDeviceUuid = 64;
inline constexpr std::size_t kMaxMemoryHandle = 256;  // bytes; CUDA's have 64
struct InitialValues {};  // trainer of rank 0 -> worker: the parameters in the node region are the initial ones
struct Detach {
  LeaveKind kind = LeaveKind::kFinished;
  std::string message;
};
struct DetachReply {};
struct AttachStopped {  // worker -> trainer: the job's view is over (also flagged in the node region)
  StopKind kind = StopKind::kRestart;
  Round round;
  std::string reason;
};
struct AttachError {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};

using AttachMessage =
    std::variant<AttachRequest, AttachReply, InitialValues, RankState, Detach, DetachReply, AttachStopped, AttachError>;

inline constexpr std::size_t kMaxAttachBytes = 8u << 20;

}  // namespace tributary
