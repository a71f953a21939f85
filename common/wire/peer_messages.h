// Daemons' hellos and heartbeats to the coordinator, and its replies (schema/control.capnp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/message_fields.h"
#include "common/math/figures.h"
#include "common/wire/record_messages.h"

namespace tributary {

// A server's part of a job's snapshots, found in its store; or a copy of another server's part.
struct StoredJob {
  JobId job;
  std::string name;
  std::uint64_t layout_hash = 0;
  std::vector<Round> snapshots;   // complete consistent snapshots, ascending
  ShardIndex copy_of = kNoShard;  // whose part; kNoShard: its own

  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.name, TRIB_WIRE(Name), AtMost{kMaxNameBytes, "a stored job's name"});
    field(m.layout_hash, TRIB_WIRE(LayoutHash));
    field(m.snapshots, TRIB_WIRE(Snapshots), AtMost{kMaxStoredSnapshots, "a stored job's list of snapshots"});
    field(m.copy_of, TRIB_WIRE(CopyOf));
  }
  bool own() const { return copy_of == kNoShard; }
};
struct KeptJob {  // state of a job's last view that a server has in memory
  JobId job;
  Version min_version, max_version;  // of its chunks
  bool pending = false;              // its lanes have not closed the view yet: ShardKept follows

  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.min_version, TRIB_WIRE(MinVersion));
    field(m.max_version, TRIB_WIRE(MaxVersion));
    field(m.pending, TRIB_WIRE(Pending));
  }
};
struct ServerHello {
  ShardIndex shard;
  std::uint16_t servers = 1;      // how many this server believes the cluster has
  std::uint64_t incarnation = 0;  // random per process: a restarted daemon is a new one
  double bandwidth = 1.0;
  std::vector<std::string> lane_endpoints;
  std::vector<StoredJob> stored;
  std::string host;                      // the machine, as common/system/host_identity.h names it
  std::vector<std::string> lane_locals;  // per lane: name under which a worker on this machine finds it; empty: none
  std::vector<KeptJob> kept;
  bool store = false;  // it has one
  // Names a thing that one process at a time can hold (its locked store). A hello with the same name proves that this
  // process is gone. Empty: none.
  std::string exclusive;
  std::string key;                 // in a cluster with keys: its public one, which its connections and lanes have
  bool plain = false;              // then: its lanes do not encrypt, and take one-time tokens
  std::vector<HeldRecord> copies;  // of job records
  std::string copy_endpoint;       // at which other servers read its snapshots; empty: it has no store
  std::vector<HeldParts> parts;    // copies of large parts of what ranks keep
  Term promised;                   // the highest of a coordinator that it has obeyed

  static constexpr auto kWire = TRIB_WIRE(ServerHello);
  static void fields(auto& m, auto&& field) {
    field(m.shard, TRIB_WIRE(Shard));
    field(m.servers, TRIB_WIRE(Servers));
    field(m.incarnation, TRIB_WIRE(Incarnation));
    field(m.bandwidth, TRIB_WIRE(Bandwidth));
    field(m.lane_endpoints, TRIB_WIRE(LaneEndpoints), AtMost{kMaxLaneEndpoints, "the list of lane endpoints"},
          AtMost{kMaxNameBytes, "an endpoint of a lane"});
    field(m.stored, TRIB_WIRE(Stored), AtMost{kMaxStoredJobs, "the list of stored jobs"});
    field(m.host, TRIB_WIRE(Host), AtMost{kMaxNameBytes, "the server's host"});
    field(m.lane_locals, TRIB_WIRE(LaneLocals), AtMost{kMaxLaneEndpoints, "the list of the lanes' local names"},
          AtMost{kMaxNameBytes, "a lane's local name"});
    field(m.kept, TRIB_WIRE(Kept), AtMost{kMaxJobs, "the list of jobs that are kept in memory"});
    field(m.store, TRIB_WIRE(Store));
    field(m.exclusive, TRIB_WIRE(Exclusive), AtMost{kMaxNameBytes, "what the server holds"});
    field(m.key, TRIB_WIRE(Key), AtMost{kMaxNameBytes, "the server's key"});
    field(m.plain, TRIB_WIRE(Plain));
    field(m.copies, TRIB_WIRE(Copies), AtMost{kMaxJobs, "the list of copies of records"});
    field(m.copy_endpoint, TRIB_WIRE(CopyEndpoint), AtMost{kMaxNameBytes, "the server's endpoint for copies"});
    field(m.parts, TRIB_WIRE(Parts), AtMost{kMaxJobs, "the list of jobs with copies of large parts"});
    field(m.promised, TRIB_WIRE(Promised));
  }
  void check() const { must_be_finite(bandwidth, "the server's bandwidth"); }
};
struct WorkerHello {
  std::string name;
  std::uint64_t incarnation = 0;
  std::string host;        // as in ServerHello
  double bandwidth = 1.0;  // of its link, relative to those of the other hosts
  std::string exclusive;   // as in ServerHello: its socket
  std::string key;         // as in ServerHello

  static constexpr auto kWire = TRIB_WIRE(WorkerHello);
  static void fields(auto& m, auto&& field) {
    field(m.name, TRIB_WIRE(Name), AtMost{kMaxNameBytes, "the worker's name"});
    field(m.incarnation, TRIB_WIRE(Incarnation));
    field(m.host, TRIB_WIRE(Host), AtMost{kMaxNameBytes, "the worker's host"});
    field(m.bandwidth, TRIB_WIRE(Bandwidth));
    field(m.exclusive, TRIB_WIRE(Exclusive), AtMost{kMaxNameBytes, "what the worker holds"});
    field(m.key, TRIB_WIRE(Key), AtMost{kMaxNameBytes, "the worker's key"});
  }
  void check() const { must_be_finite(bandwidth, "the worker's bandwidth"); }
};
struct HelloReply {
  std::uint64_t coordinator_incarnation = 0;
  Term term;  // the coordinator's; 0: it is the only one that there is

  static constexpr auto kWire = TRIB_WIRE(HelloReply);
  static void fields(auto& m, auto&& field) {
    field(m.coordinator_incarnation, TRIB_WIRE(CoordinatorIncarnation));
    field(m.term, TRIB_WIRE(Term));
  }
};
// Between the servers that may have the coordinator (docs/failover.md); and to a daemon, from one that has not.
struct SeatReport {
  ShardIndex place;              // the sender
  Term term;                     // the highest that it knows
  ShardIndex holder = kNoShard;  // has the coordinator in this term; kNoShard: nobody is known to
  std::uint64_t silent_ms = 0;   // since the sender last heard the holder; 0: it is the holder
  std::string admin;             // from the holder: its admin address

  static constexpr auto kWire = TRIB_WIRE(SeatReport);
  static void fields(auto& m, auto&& field) {
    field(m.place, TRIB_WIRE(Place));
    field(m.term, TRIB_WIRE(Term));
    field(m.holder, TRIB_WIRE(Holder));
    field(m.silent_ms, TRIB_WIRE(SilentMs));
    field(m.admin, TRIB_WIRE(Admin), AtMost{kMaxNameBytes, "the coordinator's admin address"});
  }
};
struct JobProgress {
  JobId job;
  ViewId view;
  Version min_version;
  Version max_version;
  bool prepared = false;     // servers: the memory for the last PrepareSnapshot is there
  bool writing = false;      // servers: a snapshot of the job has been ordered here, and has not ended
  std::uint64_t loaded = 0;  // servers, before the view runs: bytes of the state it begins with that have been read

  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field(m.min_version, TRIB_WIRE(MinVersion));
    field(m.max_version, TRIB_WIRE(MaxVersion));
    field(m.prepared, TRIB_WIRE(Prepared));
    field(m.writing, TRIB_WIRE(Writing));
    field(m.loaded, TRIB_WIRE(Loaded));
  }
};
inline constexpr std::size_t kMaxLocalRanks = 256;  // of a node
// A node's progress. Its times are totals since the view began: its own, without its waits for others.
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
  Figures figures;               // its trainers' last ones
  std::vector<Round> said;       // by local rank: the round of which it has given all gradients

  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field(m.node, TRIB_WIRE(Node));
    field(m.rounds, TRIB_WIRE(Rounds));
    field(m.compute_ns, TRIB_WIRE(ComputeNs));
    field(m.reduce_ns, TRIB_WIRE(ReduceNs));
    field(m.network_ns, TRIB_WIRE(NetworkNs));
    field(m.samples, TRIB_WIRE(Samples));
    field(m.answers, TRIB_WIRE(Answers));
    field(m.figures, TRIB_WIRE(Figures));
    field(m.said, TRIB_WIRE(Said), AtMost{kMaxLocalRanks, "the list of the ranks' rounds"});
  }
};
struct Heartbeat {
  std::uint64_t incarnation = 0;
  std::vector<JobProgress> progress;  // from servers
  std::vector<NodePace> paces;        // from workers
  // Payload of all jobs since the daemon started: what has come to it, and what has left it.
  std::uint64_t bytes_in = 0, bytes_out = 0;
  std::uint64_t clock_ms = 0;  // its time of day, since 1970
  std::uint64_t moved = 0;     // servers: bytes read and written for checkpoints

  static constexpr auto kWire = TRIB_WIRE(Heartbeat);
  static void fields(auto& m, auto&& field) {
    field(m.incarnation, TRIB_WIRE(Incarnation));
    field(m.progress, TRIB_WIRE(Progress), AtMost{kMaxJobs, "the progress report"});
    field(m.paces, TRIB_WIRE(Paces), AtMost{kMaxJobs, "the list of paces"});
    field(m.bytes_in, TRIB_WIRE(BytesIn));
    field(m.bytes_out, TRIB_WIRE(BytesOut));
    field(m.clock_ms, TRIB_WIRE(ClockMs));
    field(m.moved, TRIB_WIRE(Moved));
  }
};
struct HeartbeatReply {
  std::uint64_t coordinator_incarnation = 0;  // differs from the known one: the daemon sends hello again

  static constexpr auto kWire = TRIB_WIRE(HeartbeatReply);
  static void fields(auto& m, auto&& field) { field(m.coordinator_incarnation, TRIB_WIRE(CoordinatorIncarnation)); }
};

}  // namespace tributary
