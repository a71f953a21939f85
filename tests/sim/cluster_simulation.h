// A whole cluster under a virtual clock: servers with their coordinator and stores, workers with their redo
// rings, and trainers, each a process that can be killed at any event, several at once, server 0 too; connections that
// break, cuts between machines, processes that are held up, disks that are slow or full, power that fails with writes
// unsynced, machines that are gone with their rings, and stores that are lost. In elastic jobs nodes also come late,
// leave cleanly, come back, and go for ever, also where rounds have a gate, or encodings leave something to say
// later. Snapshots go bad on disks; checkpoints are saved, and a job goes on from one. All-reduce jobs have no part on
// servers, and node 0's checkpoints.
//
// In one of five clusters a second job, as another seed has it, shares servers, lanes, stores, coordinator and network
// with the first one (job_world.h). It has nodes and judges of its own. Faults of servers, disks and connections befall
// both jobs, those of nodes one.
//
// The classes that decide are the daemons' own: CoordinatorCore, ControlJobs, LaneJobs with ShardCore, NodeJobs with
// RedoKeeper and RedoRing, WorkerLaneJob with ClientCore, NodeGather, HostReducer, ReplicaState.
//
// Checked at every event (cluster_judge.h): what nodes are given are the bits of one process that adds the gradients in
// tree order, or, where nodes have clocks, of a replay of the order of arrival, with the bound kept and the reader's
// own pushes in, or, in elastic jobs, those of the nodes of each round's view, under a decision that follows from them
// (with model parallelism of the ranks that hold each tensor);
// no node takes part in a view that has other nodes, or repeats what it pushed before one; a rank gets back
// the state that it kept for the round that its view begins at; ranks get the same values of all of them under a key;
// each push is applied once; versions grow by one, and a view begins no earlier than what was durable, or, where pushes
// are kept, than the round that was open; no view is given out twice; no job begins anew while a store has something of
// it, or with parts of snapshots of different views; queues keep their bounds; what a worker reads where it was told is
// what was answered, however late; snapshots have the bits that they had; where daemons are stopped in good
// order and nothing else befalls servers, the last round is committed before they end, or said to be lost, and the job
// goes on at the very round that the stop said; a job that nothing befalls has one view, whatever befalls the other one;
// and when the faults are over, the training goes on soon and comes to
// its end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "tests/sim/mutation.h"
#include "tests/sim/wires.h"

namespace tributary::sim {

// The part of a scenario that all jobs of the cluster share.
struct ServersScenario {
  std::uint32_t servers = 1, lanes = 1;
  std::uint32_t coordinators = 1;  // servers that may have the coordinator
  // The numbers of servers before a restore and after it (on empty stores if they differ). `servers` is the maximum.
  std::uint32_t first_servers = 0, later_servers = 0;
  bool spoils_uncommitted = false;  // the snapshot that goes bad is complete everywhere, but not committed
  bool prepares = false;            // shards get memory for a snapshot first, however little it is
  std::uint64_t disk_step_ns = 1'000'000;
  std::uint64_t load_step_ns = 1'000'000;  // for a chunk of the state that a view begins with
  bool fixed_ports = false;
  bool goes_on = false;  // membership.on_server_loss = "continue": chunks go to the servers that are there
  Disorder disorder;     // of what lanes and workers send each other
  // Workers learn where answers lie in servers' memory, and read them when their turn comes.
  bool shares_memory = false;
  bool gentle = false;        // faults are such that nothing is lost that anybody has said
  bool refuses_last = false;  // nodes often take no answer just then, of rounds that their view ends with
  bool calm = false;          // servers end cleanly alone: what a stop ends with is saved, or said not to be
};

struct ClusterScenario : ServersScenario {
  std::uint64_t seed = 0;
  std::string job = "job";  // its name
  // At most one other job of the same servers. It has the cluster's facts, and no faults: those are this one's.
  std::vector<ClusterScenario> beside;
  std::uint32_t nodes = 1, ranks = 1;
  std::uint64_t parameters = 0, rounds = 0;
  std::string optimizer, push = "fp32", pull = "fp32";
  Mode mode = Mode::kSync;
  std::uint64_t staleness = 0;
  // Ranks keep states with large parts, some of them need what the first rank keeps as well, and who has nothing waits
  // for that. rewinds: membership.on_state_lost = "rewind".
  bool large_states = false, rewinds = false;
  bool one_ends = false;  // rank 0 alone knows the last round, and finishes for all
  // Ranks give each other values between rounds: that many after one.
  bool gathers = false;
  std::uint32_t values_after(Round round) const;
  bool deadline = false;  // sync: ranks sum up what they manage, which is something else every time
  // Tensors are of two groups in turns, with another weight decay each. The trainers say settings in each round.
  bool says_settings = false;
  // Two ranks may hold a replica of the model together: a tensor belongs to one of them, or to both. Neighbours are two
  // slices of the same replica, or the first half of the ranks has one stage and the second half the other.
  enum class Split { kWhole, kSlices, kStages } split = Split::kWhole;
  std::vector<std::uint32_t> model_ranks() const;  // by rank; empty: kWhole
  // common/config/gate_rules.h; 0 and "none": no gate.
  double clip_norm = 0.0;
  std::string loss_scale = "none";
  GateConfig gate() const;
  float first_scale() const { return loss_scale == "dynamic" ? 262144.0f : 1.0f; }  // too large for fp16
  bool redo = true;                                                                 // nodes keep what they pushed
  std::uint32_t ring_rounds = 16;
  bool gradients_move = false;  // the only rank of a node may write them into the ring
  std::uint64_t snapshot_rounds = 0;
  std::uint32_t snapshot_s = 0;
  std::uint32_t checkpoint_s = 0;  // the coordinator orders checkpoints that rotate, by [checkpoint]; 0: none
  // Snapshots by rounds are rarer than what rings keep, and nothing keeps those that rings need from being in time.
  bool rare_snapshots = false;
  std::uint64_t window_bytes = 0;
  std::uint64_t work_ns = 10'000'000;
  // membership.on_worker_loss = "continue"; `nodes` is how many there are at most.
  bool elastic = false;
  std::uint32_t first_nodes = 0;  // of them, at the beginning
  std::uint32_t min_nodes = 1, rejoin_ms = 10'000;
  MembershipConfig membership() const;
  struct Fault {
    enum class Kind {
      kKill,
      kPower,
      kMachine,
      kStore,
      kLost,      // a server's machine and disk for good; another machine has its index
      kDamage,    // the first of these servers finds a chunk damaged on its disk; all are killed
      kUnrecord,  // the same of the record that makes a snapshot complete: it is gone
      kBreak,
      kCut,
      kHold,
      kDiskFull,
      kJoin,           // a node that was not there yet
      kLeave,          // its worker is stopped cleanly
      kGone,           // a machine that does not come back
      kSave,           // nothing wrong: a checkpoint is ordered, of a round from now
      kSaveCommitted,  // of the newest snapshot
      kRestore,        // the job goes on from a checkpoint
      kPermute,        // all trainers are started again, on other machines: ranks are dealt out anew
      kHalfOpen,       // connections that the network has forgotten
      kDrain,          // daemons are stopped cleanly, and started again when they have ended
      kDeal,           // nothing wrong: chunks are to go to the servers that are there, but for these
    } kind = Kind::kKill;
    std::uint64_t at_ns = 0;
    static constexpr std::uint64_t kForEver = ~0ull;
    std::uint64_t lasts_ns = 0;      // until it is started again, healed, released
    std::vector<std::uint32_t> who;  // processes: servers, then workers and trainers, then the other job's
    const char* name() const;
  };
  std::vector<Fault> faults;     // by time
  double kill_at_message = 0.0;  // somebody dies right after a control message
  std::uint64_t slowness(std::uint32_t node) const { return node == slow_node ? slow_factor : 1; }
  std::uint32_t slow_node = ~0u;
  std::uint64_t slow_factor = 1;
  std::string describe() const;
};

struct ClusterOutcome {
  bool ok = false;
  std::string failure;  // the first broken invariant
  ClusterScenario scenario;
  std::uint64_t events = 0, virtual_ns = 0, packets = 0;
  std::uint64_t kills = 0, views = 0, commits = 0;
  std::uint64_t kept = 0;      // shards that went on with what they had in memory
  std::uint64_t restored = 0;  // that loaded a snapshot
  std::uint64_t redone = 0;    // views that begin after the snapshot with pushes that nodes kept
  std::uint64_t resends = 0;
  std::uint64_t longest_pause_ns = 0;                        // from the end of the faults to the next complete round
  bool refused = false;                                      // it cannot go on without what a disk has lost
  bool began_anew = false;                                   // nobody had anything of the job any more
  std::uint64_t joins = 0, leaves = 0;                       // of nodes while the job runs
  std::uint64_t drained = 0, kept_saved = 0, unsaved = 0;    // servers that ended cleanly; what came of kept state
  std::uint64_t moves = 0;                                   // of the coordinator, to a server that takes it
  std::uint64_t dealt = 0;                                   // views whose chunks have gone to other servers
  std::uint64_t ordered = 0;                                 // orders for that which were carried out
  std::uint64_t copied_parts = 0;                            // large parts whose last disk but one was lost
  std::uint64_t states = 0;                                  // that ranks got back
  std::uint64_t large_parts = 0, first_states = 0;           // of those, and of the first rank, that ranks got
  std::uint64_t memberships = 0;                             // views that begin with other nodes than the one before
  std::uint64_t saved = 0, not_saved = 0, brought_back = 0;  // checkpoints; jobs out of one
  std::uint64_t saved_parts = 0;                             // large parts that checkpoints have
  std::uint64_t scheduled = 0;                               // checkpoints by [checkpoint]
  std::uint64_t from_memory = 0;                             // shards' parts of checkpoints that no store has had
  std::uint64_t inherited = 0;  // rounds that were decided about in an earlier view (elastic, with a gate)
  std::uint64_t gathered = 0;   // chunks whose residuals went to another number of nodes
  std::uint64_t values = 0, values_again = 0;  // answers that ranks got, and of these in another view than the first
};

ClusterScenario cluster_scenario_of(std::uint64_t seed);
// trace: every process's words, and the faults, on standard output.
// To plant another bug: a name in Mutation, what it does (a line in plant.py, or in the simulated shells), and a case
// in test_cluster_mutations.cc.
ClusterOutcome run_cluster(std::uint64_t seed, Mutation mutation = Mutation::kNone, bool trace = false);

}  // namespace tributary::sim
