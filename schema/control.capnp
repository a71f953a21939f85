# The control path: every daemon <-> the coordinator (server 0). One frame a message. The rules are those of data.capnp.
@0xcd64dbd244030766;

using Cxx = import "/capnp/c++.capnp";
using Records = import "records.capnp";
$Cxx.namespace("tributary::wire");

struct ControlMessage {
  protocol @0 :UInt16;
  union {
    serverHello @1 :ServerHello;
    workerHello @2 :WorkerHello;
    helloReply @3 :HelloReply;
    heartbeat @4 :Heartbeat;
    heartbeatReply @5 :HeartbeatReply;
    joinJob @6 :JoinJob;
    openJob @7 :OpenJob;
    shardReady @8 :ShardReady;
    jobWelcome @9 :JobWelcome;
    snapshotAt @10 :SnapshotAt;
    snapshotDone @11 :SnapshotDone;
    snapshotCommit @12 :SnapshotCommit;
    stopRequest @13 :StopRequest;
    leaveJob @14 :LeaveJob;
    stopJob @15 :StopJob;
    drainRequest @16 :DrainRequest;
    drainDone @17 :Void;  # coordinator -> a draining daemon: none of its jobs is open any more
    error @18 :ControlError;
    peerAddress @19 :PeerAddress;
    shardKept @20 :ShardKept;
    writeCheckpoint @21 :WriteCheckpoint;
    sealCheckpoint @22 :SealCheckpoint;
    loadCheckpoint @23 :LoadCheckpoint;
    dropCheckpoint @24 :DropCheckpoint;
    checkpointDone @25 :CheckpointDone;
    roundFacts @26 :RoundFacts;
    roundDecision @27 :RoundDecision;
    nodeRankState @28 :NodeRankState;
    prepareSnapshot @29 :PrepareSnapshot;
    jobWaits @30 :JobWaits;
    traceRounds @31 :TraceRounds;
    tracePart @32 :TracePart;
    clusterQuestion @33 :Void;  # any admitted peer -> coordinator: what is there? The answer is clusterFacts
    clusterFacts @34 :ClusterFacts;
    diagnose @35 :Diagnose;
    diagnosed @36 :Diagnosed;
    wantPart @37 :WantPart;
    statePart @38 :StatePart;
    rankValues @39 :RankValues;
    peerAddresses @40 :PeerAddresses;
    jobRecordCopy @41 :JobRecordCopy;
    wantRecord @42 :WantRecord;
    heldRecord @43 :HeldRecord;
    serverBook @44 :ServerBook;
    copySnapshot @45 :CopySnapshot;
    snapshotCopied @46 :SnapshotCopied;
    wantChunk @47 :WantChunk;
    copiedChunk @48 :CopiedChunk;
    copyParts @49 :CopyParts;
    heldParts @50 :HeldParts;
    seatReport @51 :SeatReport;
    dealChunks @52 :DealChunks;
  }
}

struct StoredJob {  # a job found in a server's store
  job @0 :UInt64;
  name @1 :Text;
  layoutHash @2 :UInt64;
  snapshots @3 :List(UInt64);  # rounds of complete snapshots, ascending
  copyOf @4 :UInt16 = 0xffff;  # a copy of this other server's part of them; 0xffff: the server's own part
}

struct KeptJob {  # state of a job's last view that a server has in memory
  job @0 :UInt64;
  minVersion @1 :UInt64;  # of its chunks
  maxVersion @2 :UInt64;
  pending @3 :Bool;  # its lanes have not closed the view yet: shardKept follows
}

struct ServerHello {  # server -> coordinator
  shard @0 :UInt16;
  servers @1 :UInt16 = 1;  # how many this server believes the cluster has
  incarnation @2 :UInt64;  # random per process
  bandwidth @3 :Float64 = 1;  # weight in the assignment of chunks
  laneEndpoints @4 :List(Text);
  stored @5 :List(StoredJob);
  host @6 :Text;  # the machine, as common/system/host_identity.h names it
  laneLocals @7 :List(Text);  # per lane: name under which a worker on this machine finds it; empty: none
  kept @8 :List(KeptJob);
  store @9 :Bool;  # it has one
  # Names a thing that one process at a time can hold (its locked store); empty: none. A later hello with it proves this one gone.
  exclusive @10 :Text;
  key @11 :Text;  # in a cluster with keys: its public one, which its connections and lanes have
  plain @12 :Bool;  # in a cluster with keys: its lanes do not encrypt, and take one-time tokens
  copies @13 :List(HeldRecord);  # of job records
  copyEndpoint @14 :Text;  # at which other servers read its snapshots; empty: it has no store
  parts @15 :List(HeldParts);  # copies of large parts of what ranks keep
  promised @16 :UInt64;  # the highest term of a coordinator that it has obeyed
}

struct WorkerHello {  # worker -> coordinator
  name @0 :Text;
  incarnation @1 :UInt64;
  host @2 :Text;  # as in ServerHello
  bandwidth @3 :Float64 = 1;  # of its link, relative to those of the other hosts
  exclusive @4 :Text;  # as in ServerHello: its socket
  key @5 :Text;  # as in ServerHello
}

struct HelloReply {
  coordinatorIncarnation @0 :UInt64;
  term @1 :UInt64;  # of the coordinator (docs/failover.md); 0: it is the only one
}

struct SeatReport {  # between servers that may have the coordinator; and to a daemon, from one that has not
  place @0 :UInt16;  # the sender's server index
  term @1 :UInt64;  # the highest that it knows
  holder @2 :UInt16 = 0xffff;  # the server that has the coordinator in this term; 0xffff: nobody is known to
  silentMs @3 :UInt64;  # since the sender last heard the holder; 0: it is the holder
  admin @4 :Text;  # from the holder: its admin address
}

struct JobProgress {
  job @0 :UInt64;
  view @1 :UInt32;
  minVersion @2 :UInt64;
  maxVersion @3 :UInt64;
  prepared @4 :Bool;  # servers: the memory for the last prepareSnapshot is there
  writing @5 :Bool;  # servers: a snapshot was ordered, and has not ended
  loaded @6 :UInt64;  # servers, before the view runs: bytes that have been read of the state it begins with
}

struct NodePace {  # where a node's time went, in total since the view began
  job @0 :UInt64;
  view @1 :UInt32;
  node @2 :UInt32;
  rounds @3 :UInt64;
  computeNs @4 :UInt64;  # from the last answer of a round to the last gradient of the next
  reduceNs @5 :UInt64;  # summing and encoding
  networkNs @6 :UInt64;  # from then until a server has the last of it
  samples @7 :UInt64;  # that its gradients were sums over
  answers @8 :UInt64;  # grows with every answer that the node takes
  figures @9 :Figures;  # its trainers' last ones
  said @10 :List(UInt64);  # by local rank: the round of which it has given all gradients
}

struct Figure {  # a mean over samples; also travels in attach messages
  name @0 :Text;
  mean @1 :Float64;
  samples @2 :UInt64;
}

struct Figures {
  round @0 :UInt64;  # the newest that they are of
  values @1 :List(Figure);
}

struct Heartbeat {  # daemon -> coordinator
  incarnation @0 :UInt64;
  progress @1 :List(JobProgress);  # from servers
  paces @2 :List(NodePace);  # from workers
  # Payload of all jobs since the daemon started: what has come to it, and what has left it.
  bytesIn @3 :UInt64;
  bytesOut @4 :UInt64;
  clockMs @5 :UInt64;  # its time of day, ms since 1970
  moved @6 :UInt64;  # servers: bytes read and written for checkpoints
}

struct HeartbeatReply {
  coordinatorIncarnation @0 :UInt64;  # differs from the known one: the daemon sends hello again
}

struct JoinJob {  # worker -> coordinator, when its local ranks have all attached
  jobJson @0 :Text;
  tensors @1 :List(Records.Tensor);
  node @2 :UInt32;
  nodes @3 :UInt32 = 1;
  localWorldSize @4 :UInt32 = 1;
  worldSize @5 :UInt32 = 1;
  checkpointRound @6 :UInt64;  # all-reduce: the newest checkpoint of this job that the node holds; 0: none
  # The node's pushes that it still has: of this job, of all rounds from the first to the last (less: none), and how many there can be.
  redoJob @7 :UInt64;
  redoFirst @8 :UInt64;
  redoLast @9 :UInt64;
  redoCapacity @10 :UInt32;  # 0: it keeps none
  redoMembers @11 :UInt64;  # JobWelcome.members of the views that they were pushed in
  residualFirst @14 :UInt64 = 1;  # the rounds after which it has the residual (last < first: none)
  residualLast @15 :UInt64;
  computesWith @12 :List(Text);  # what its ranks compute gradients with, each once
  onDevices @13 :Bool;  # its ranks' gradients are on GPUs, which add them up
  modelRanks @16 :List(UInt32);  # of its ranks, by local rank; empty: each holds the whole model
  heldJob @17 :UInt64;  # of this job it knows what some of its ranks kept:
  heldRounds @18 :List(UInt64);  # of which rounds it has it whole
  heldRanks @19 :List(UInt32);  # of whom, by local rank
  living @20 :List(UInt32);  # local ranks whose processes have lived through its last view
  number @21 :UInt64;  # another one whenever other trainers join; welcome and refusal say it again
  checkpointFlaw @22 :Text;  # all-reduce: why none of the node's checkpoints can be read; empty: it has none, or one that can
}

struct OpenJob {  # coordinator -> server: own your chunks of this job in this view
  job @0 :UInt64;
  view @1 :UInt32;
  jobJson @2 :Text;
  layout @3 :Records.Layout;
  nodes @4 :UInt32 = 1;
  resume @5 :Bool;  # load the snapshot of resumeRound; else wait for Init
  resumeRound @6 :UInt64;
  kept @7 :Bool;  # continue with the state in memory; resume and resumeRound then describe the store's
  modelRanks @8 :List(UInt32);  # of all ranks of the view; empty: each holds the whole model
  workerKeys @9 :List(Text);  # in a cluster with keys: of the view's nodes; empty: there are none
  copy @10 :ServerEntry;  # a server that has a copy of the receiver's part of resumeRound; without an endpoint: none
}

struct ShardKept {  # server -> coordinator: reply to StopJob(restart): its state in memory to continue from
  job @0 :UInt64;
  view @1 :UInt32;
  any @2 :Bool;
  minVersion @3 :UInt64;
  maxVersion @4 :UInt64;
}

struct ShardReady {  # server -> coordinator: reply to OpenJob
  job @0 :UInt64;
  view @1 :UInt32;
  ok @2 :Bool = true;
  code @3 :UInt16;  # ErrorCode, if not ok
  message @4 :Text;
}

struct JobWelcome {  # coordinator -> workers: begin
  job @0 :UInt64;
  view @1 :UInt32;
  layout @2 :Records.Layout;  # without tensors: the workers declared them
  endpoints @3 :List(List(Text));  # [shard][lane]
  resume @4 :Bool;
  resumeRound @5 :UInt64;
  name @6 :Text;  # the job's
  locals @7 :List(List(Text));  # [shard][lane], as in ServerHello; empty: none
  redoAfter @8 :List(UInt64);  # [shard]: the version it has, if less than resumeRound: its chunks' later pushes are wanted again
  committed @9 :UInt64;  # round of the last committed snapshot
  redo @10 :Bool;  # keep pushes until a snapshot covers them
  node @11 :UInt32;  # which node of the view the receiver is, of how many
  nodes @12 :UInt32 = 1;
  members @13 :UInt64;  # hash of the ranks that they are known by
  rankStates @14 :List(Data);  # by local rank: its own state of resumeRound; empty: none
  modelRanks @15 :List(UInt32);  # of all ranks of the view; empty: each holds the whole model
  serverKeys @16 :List(Text);  # in a cluster with keys: by shard; empty: there are none
  plain @17 :List(UInt16);  # shards whose lanes do not encrypt, and take one-time tokens
  firstState @18 :Data;  # what the first rank that did gave to be kept with resumeRound
  giver @19 :UInt32 = 0xffffffff;  # the rank that is to give it, if it is not known yet; else none
  join @20 :UInt64;  # number of the JoinJob that it answers
  valuesFrom @21 :UInt32;  # all-reduce: the node that has the values where the view begins, and passes them on
}

struct JobWaits {  # coordinator -> workers that have joined: for whom their job waits
  name @0 :Text;  # the job's
  missing @1 :Text;
  progress @2 :UInt64;  # grows with every step forward, which restarts the waiters' time-outs
}

struct PeerAddress {  # worker -> coordinator (all-reduce): something that the view's other nodes need to connect
  job @0 :UInt64;
  view @1 :UInt32;
  node @2 :UInt32;  # the author
  key @3 :Text;
  value @4 :Data;
  forAll @5 :Bool;  # else the value is for the author's two neighbours; the others receive the key alone
}

struct PeerAddresses {  # coordinator -> the view's workers: those of other nodes
  addresses @0 :List(PeerAddress);
}

# worker -> coordinator: a rank's own state, to be kept with the state after a round. To workers: that of the view's giver.
struct NodeRankState {
  job @0 :UInt64;
  view @1 :UInt32;
  node @2 :UInt32;
  localRank @3 :UInt32;
  round @4 :UInt64;
  state @5 :Data;
}

# The large part of a rank's state (common/wire/state_head.h) travels in parts, each requested. A worker has those of its ranks, the
# coordinator those of its snapshots.
struct LargePart {
  bytes @0 :UInt64;
  high @1 :UInt64;
  low @2 :UInt64;
}

struct WantPart {  # worker or server <-> coordinator
  job @0 :UInt64;
  large @1 :LargePart;
  offset @2 :UInt64;
}

struct StatePart {  # worker or server <-> coordinator: the bytes at the offset
  job @0 :UInt64;
  large @1 :LargePart;
  offset @2 :UInt64;
  data @3 :Data;  # empty: it is not there (any more), or
  comes @4 :Bool;  # it is on its way: ask again
}

struct RankValue {
  rank @0 :UInt32;  # in its view
  data @1 :Data;
}

# Worker -> coordinator: values of its node's ranks under a key, and answers that it knows. Coordinator -> workers: an answer, or a
# message with the reason why there can be none.
struct RankValues {
  job @0 :UInt64;
  view @1 :UInt32;
  round @2 :UInt64;
  index @3 :UInt32;
  complete @4 :Bool;  # the values of all ranks, by rank
  values @5 :List(RankValue);
  code @6 :UInt16;  # ErrorCode, if there is a message
  message @7 :Text;
}

struct PrepareSnapshot {  # coordinator -> servers: get memory for the copy-on-write of the next snapshot
  job @0 :UInt64;
  view @1 :UInt32;
}

struct SnapshotAt {  # coordinator -> servers: keep the state of every chunk at this round
  job @0 :UInt64;
  view @1 :UInt32;
  round @2 :UInt64;
}

struct SnapshotDone {  # server -> coordinator: durable here, or missed or failed
  job @0 :UInt64;
  view @1 :UInt32;
  round @2 :UInt64;
  ok @3 :Bool = true;
  bytes @4 :UInt64;
  message @5 :Text;
  code @6 :UInt16;  # ErrorCode, if not ok
}

struct SnapshotCommit {  # coordinator -> servers and workers: durable everywhere; older ones, and pushes up to it, may go
  job @0 :UInt64;
  round @1 :UInt64;
  superseded @2 :UInt64;  # servers: the snapshot of this later round goes, too; 0: none does
}

struct StopRequest {  # coordinator -> workers: finish the open round, then leave
  job @0 :UInt64;
  view @1 :UInt32;
  reason @2 :Text;
}

struct ChunkFacts {
  chunk @0 :UInt32;
  finite @1 :Bool = true;
  sumSquares @2 :Float64;
  weight @3 :UInt64;
}

struct RoundFacts {  # server -> coordinator: what a lane's chunks have of this round
  job @0 :UInt64;
  view @1 :UInt32;
  round @2 :UInt64;
  before @3 :Records.GateDecision;  # of the round before
  decided @4 :Records.GateDecision;  # of this one, by a lane whose chunks have it already
  chunks @5 :List(ChunkFacts);
}

struct RoundDecision {  # coordinator -> servers
  job @0 :UInt64;
  view @1 :UInt32;
  round @2 :UInt64;
  decision @3 :Records.GateDecision;
}

enum LeaveKind {
  finished @0;  # training is complete
  stopped @1;  # asked to stop; may come back
  failed @2;  # a trainer or the node is lost
  finishesAll @3;  # training is complete, for those that have not left, too
}

struct LeaveJob {  # worker -> coordinator
  job @0 :UInt64;
  view @1 :UInt32;
  node @2 :UInt32;
  kind @3 :LeaveKind;
  round @4 :UInt64;  # the last one whose answers this node has received in full
  message @5 :Text;
  name @6 :Text;  # the job's: before JobWelcome its id is not known
  figures @7 :Figures;  # its trainers' last ones
}

enum StopKind {
  finished @0;  # every node finished, or one for all: keep the final state as a snapshot
  stopped @1;  # stopped at a round boundary: likewise
  restart @2;  # a member was lost: drop open rounds
}

struct StopJob {  # coordinator -> servers and workers: this view is over
  job @0 :UInt64;
  view @1 :UInt32;
  kind @2 :StopKind = restart;
  round @3 :UInt64;
  reason @4 :Text;
}

struct DrainRequest {  # daemon -> coordinator: I am to stop; first stop my jobs at a round boundary
  incarnation @0 :UInt64;
}

struct ControlError {
  code @0 :UInt16;  # ErrorCode
  message @1 :Text;
  job @2 :Text;  # name of the job that it is about; empty: none in particular
  join @3 :UInt64;  # number of the JoinJob that is refused; 0: none in particular
}

struct HeldRecord {  # server -> coordinator: this copy of a job's record is durable
  job @0 :UInt64;
  edition @1 :UInt64;
}

struct JobRecordCopy {  # coordinator -> servers: save it; server -> coordinator: reply to wantRecord
  job @0 :UInt64;
  record @1 :Data;  # a JobRecord as it lies on disk (schema/records.capnp); empty, in a reply: it cannot be read
}

struct WantRecord {  # coordinator -> server: your copy of this job's record
  job @0 :UInt64;
}

struct ServerEntry {
  shard @0 :UInt16;
  copyEndpoint @1 :Text;  # as in ServerHello
  key @2 :Text;  # as in ServerHello
}

struct ServerBook {  # coordinator -> servers: the servers that are there, and that read each other's snapshots
  servers @0 :List(ServerEntry);
}

struct CopySnapshot {  # coordinator -> server: keep a copy of this part of a snapshot
  job @0 :UInt64;
  round @1 :UInt64;
  shard @2 :UInt16;  # whose part
  from @3 :ServerEntry;  # the server that has it
  view @4 :UInt32;  # that the order belongs to: a later one ends it
  paced @5 :Bool = true;  # training goes on: its messages go first
}

struct SnapshotCopied {  # server -> coordinator: the answer
  job @0 :UInt64;
  round @1 :UInt64;
  shard @2 :UInt16;
  ok @3 :Bool = true;
  code @4 :UInt16;  # ErrorCode, if not ok
  message @5 :Text;
  view @6 :UInt32;
  unreadable @7 :Bool;  # the part itself is: its server cannot read what it has written
}

struct CopyParts {  # coordinator -> server: of the large parts of what ranks of this job keep, have copies of these alone
  job @0 :UInt64;
  parts @1 :List(LargePart);
  number @2 :UInt32;  # of the order
}

struct HeldParts {  # server -> coordinator: the copies that it has
  job @0 :UInt64;
  parts @1 :List(LargePart);
  coming @2 :Bool;  # it is fetching others, or is about to
  number @3 :UInt32;  # of the last order that it has had
}

struct WantChunk {  # server -> server: of your snapshot of this round, the chunk at this place
  job @0 :UInt64;
  round @1 :UInt64;
  shard @2 :UInt16;  # whose part
  place @3 :UInt32;  # among the snapshot's chunks, in ascending order
}

struct CopiedChunk {  # the answer: frames of values follow, one for each key
  want @0 :WantChunk;
  ok @1 :Bool = true;
  code @2 :UInt16;  # ErrorCode, if not ok
  message @3 :Text;
  jobName @4 :Text;
  layoutHash @5 :UInt64;
  optimizer @6 :Text;
  chunks @7 :UInt32;  # of the snapshot
  chunk @8 :UInt32;
  keys @9 :List(Data);  # of the chunk's entries (server/chunk/stored_chunk.h)
}

struct WriteCheckpoint {  # coordinator -> server: your part of this snapshot goes into `directory`
  operation @0 :UInt64;
  job @1 :UInt64;
  round @2 :UInt64;
  directory @3 :Text;
  view @4 :UInt32;  # not 0: of the state that the server has of this view in memory, at that round
}

struct SealCheckpoint {  # coordinator -> server 0: all parts are there; make them the checkpoint `target`
  operation @0 :UInt64;
  directory @1 :Text;
  target @2 :Text;
  manifest @3 :Text;
  job @4 :UInt64;  # whose large parts, which the manifest names, go into it
  keep @5 :UInt32;  # how many of the job's checkpoints that rotate stay in that folder, with this one; 0: this one does not rotate
}

struct LoadCheckpoint {  # coordinator -> server: the chunks that you own become a snapshot of this job in your store
  operation @0 :UInt64;
  job @1 :UInt64;
  name @2 :Text;  # the job's
  manifest @3 :Text;  # checksum of the manifest that the coordinator saw
  directory @4 :Text;
  owners @5 :Records.Layout;  # without tensors: they are in the manifest
  parts @6 :Bool;  # and the large parts of what ranks keep
}

struct DealtPart {  # a part of a snapshot
  shard @0 :UInt16;  # whose
  from @1 :ServerEntry;  # the server that has it, or a copy
}

struct DealChunks {  # coordinator -> server: the chunks that you own now, out of a snapshot that other servers have parts of
  operation @0 :UInt64;
  job @1 :UInt64;  # that they become a snapshot of, in your store
  name @2 :Text;  # the job's
  before @3 :UInt64;  # the job that it was until now
  round @4 :UInt64;
  ownersBefore @5 :Records.Layout;  # without tensors
  owners @6 :Records.Layout;  # likewise
  parts @7 :List(DealtPart);
  large @8 :List(LargePart);  # of what ranks keep: in your store, and to be there for the new job, too
}

struct DropCheckpoint {  # coordinator -> servers: these are no longer needed
  job @0 :UInt64;  # 0: none
  directory @1 :Text;  # empty: none
}

struct CheckpointDone {  # server -> coordinator: reply to all but the last
  operation @0 :UInt64;
  ok @1 :Bool = true;
  code @2 :UInt16;  # ErrorCode, if not ok
  message @3 :Text;
  bytes @4 :UInt64;
  checksum @5 :Text;
  unchanged @6 :Bool;
}

struct TraceRounds {  # coordinator -> servers and workers: record these rounds, then send the records
  job @0 :UInt64;
  view @1 :UInt32;
  first @2 :UInt64;
  last @3 :UInt64;  # 0: send what there is now
}

struct TraceEvent {
  beginNs @0 :UInt64;
  endNs @1 :UInt64;
  chunk @2 :UInt32;
  peer @3 :UInt32;
  round @4 :UInt16;  # after the first of the trace
  kind @5 :UInt16;  # common/wire/trace_messages.h
}

struct TracePart {  # server or worker -> coordinator: some of what a lane or a trainer recorded
  job @0 :UInt64;
  view @1 :UInt32;
  first @2 :UInt64;
  track @3 :UInt16;
  index @4 :UInt16;
  events @5 :List(TraceEvent);
  lost @6 :UInt64;
  done @7 :Bool;  # nothing more comes from this daemon
}

struct ServerLanes {
  shard @0 :UInt16;
  host @1 :Text;  # as in ServerHello
  endpoints @2 :List(Text);
  key @3 :Text;  # as in ServerHello
  plain @4 :Bool;  # as in ServerHello
}

struct ClusterFacts {  # coordinator -> the asker: facts to compare with its own
  servers @0 :UInt16;  # that it waits for
  version @1 :Text;  # of its program
  clockMs @2 :UInt64;  # its time of day, ms since 1970
  lanes @3 :List(ServerLanes);  # of the servers that are there
  workers @4 :UInt32;  # that are there
}

struct Diagnose {  # coordinator -> daemons: run the doctor's checks
  diagnosis @0 :UInt32;
  over @1 :Bool;  # the diagnosis is over: nothing more is asked
  measure @2 :Bool;  # links to servers, and the store's disk
  paths @3 :List(Text);  # is each of them there?
  cluster @4 :ClusterFacts;
  node @5 :UInt32;  # whose place among workerKeys this is; workers only
  workerKeys @6 :List(Text);  # in a cluster with keys: who may measure
}

struct Setting {  # a key of a daemon's configuration
  key @0 :Text;
  value @1 :Text;
}

struct Check {  # a line of the doctor's
  section @0 :Text;
  name @1 :Text;
  level @2 :UInt16;  # common/wire/doctor_messages.h
  found @3 :Text;
  advice @4 :Text;
}

struct LinkRate {  # a worker's measurement of its way to a server
  shard @0 :UInt16;
  bytesPerS @1 :Float64;  # each way
  roundTripS @2 :Float64;
  local @3 :Bool;  # the server is on the same machine
}

struct Diagnosed {  # daemon -> coordinator
  diagnosis @0 :UInt32;
  settings @1 :List(Setting);
  checks @2 :List(Check);
  rates @3 :List(LinkRate);
}
