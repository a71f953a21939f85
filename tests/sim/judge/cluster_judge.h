// Judges a simulated cluster event by event (cluster_simulation.h has the list of checks).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/wire/messages.h"
#include "server/shard/shard_core.h"
#include "tests/sim/cluster_simulation.h"
#include "tests/sim/judge/clocks_judge.h"
#include "tests/sim/judge/judge.h"
#include "tests/sim/judge/losses_judge.h"
#include "tests/sim/judge/members_judge.h"
#include "tests/sim/judge/replicas_judge.h"
#include "tests/sim/judge/rounds_judge.h"
#include "worker/node/job.h"

namespace tributary::sim {

struct Disk;

class ClusterJudge {
 public:
  using Broken = std::function<void(const std::string&)>;
  // The version that an open shard has of a chunk in its memory; none: its server is away.
  using Held = std::function<std::optional<Version>(const ChunkOwner& owner, JobId job, ViewId view, ChunkIndex chunk)>;
  // replicas: the judge of all-reduce jobs, which is asked instead; else null.
  ClusterJudge(const ClusterScenario& scenario, const std::vector<Disk>& disks, ClusterOutcome& outcome, Held held,
               Broken broken, ReplicasJudge* replicas);

  // The coordinator's messages. nodes: the nodes of the view, by place.
  // The coordinator has saved this.
  void recorded(std::uint64_t coordinator, const JobRecord& record);
  void opens(std::uint64_t coordinator, const OpenJob& open, std::uint16_t shard,
             const std::vector<std::uint32_t>& nodes);
  // Chunks go to other servers, as the state of another job id.
  void deals(const DealChunks& deal);
  void welcome(const JobWelcome& welcome, std::uint32_t node);
  void committed(Round round);
  void decides(const RoundDecision& decision);
  // The coordinator learns what a store has.
  void hears_stored(std::uint16_t shard, const std::vector<StoredJob>& stored) { losses_.hears_stored(shard, stored); }

  // The servers' actions.
  void push_arrives(const ShardCore& core, const Push& push, std::span<const std::byte> frame);
  void push_handled(const ShardCore& core, const Push& push);
  void query_handled(const ShardCore& core, const Query& query);
  void decided(const ShardCore& core);
  void answers(const Answer& answer, std::span<const std::byte> payload);
  // Out of the store.
  void restores(const ShardCore& core, ChunkIndex chunk, const ChunkState& state);
  void captured(const ChunkSnapshot& snapshot);
  void snapshot_read(const ChunkSnapshot& snapshot);

  // The nodes' actions, and their results. A push is made once, and may be sent any number of times.
  void made(std::uint32_t node, ChunkIndex chunk, Round round, std::uint64_t weight, std::span<const std::byte> frame);
  // A rank takes part in a view, with the state that it kept for the round before. own: out of its own memory.
  void begins(const NodeJobSpec& view, std::uint32_t rank, std::span<const std::byte> state, bool own);
  void gives(std::uint32_t rank, Round round) { given_.emplace(rank, round.value); }
  // The rank is to give the state in its memory for that round, of which it has none.
  void makes_up(std::uint32_t rank, Round round) { made_up_.emplace(rank, round.value); }
  static std::vector<std::byte> state_of(std::uint32_t rank, Round round, ViewId view);
  // The large part of a rank's state; and which ranks of a view need no more than their own state.
  static std::vector<std::byte> large_of(std::uint32_t rank, Round round);
  static bool keeps_whole(std::uint32_t view_rank) { return view_rank % 3 != 1; }
  // A rank gets its own or the first rank's state, with the large part. large: null if it is lost.
  void gets_large(const NodeJobSpec& view, std::uint32_t rank, std::span<const std::byte> body,
                  const std::vector<std::byte>* large);
  void gets_first(const NodeJobSpec& view, std::uint32_t rank, std::span<const std::byte> state,
                  const std::vector<std::byte>* large);
  void delivered(std::uint32_t node, const NodeJobSpec& view, ChunkIndex chunk, Version version,
                 std::span<const float> params);
  void trained(std::uint32_t node, std::uint32_t local_rank, const NodeJobSpec& spec, std::span<const float> params);

  // The job was restored to its state of that round, under another id.
  void restored(Round round);
  // The right parameters of a chunk at that version, in that view's history; none: there is no one right state.
  std::optional<std::span<const float>> right(ViewId view, ChunkIndex chunk, Round version) const;

  // Losses.
  void server_died() {
    server_lost_ = true;
    ++deaths_;
  }
  // A last state could not be written, and the servers end: the state is lost, as finished trainers take their rings
  // with them.
  void last_state_failed(std::uint16_t shard);
  // A server was stopped and shuts down cleanly. said: it reports that some state of a job is not saved.
  void server_ends(std::uint16_t shard, bool said);
  void server_ended();
  // The view may end in the middle of a round.
  void node_disturbed() { disturbed_ = newest_ ? newest_->open.view : ViewId(); }
  // A node that comes while others train ends their view.
  void joins(std::uint32_t node);
  // All servers get the order to stop the job at this round; or a rank reports that it has stopped after it.
  void stops_at(Round round);
  void store_lost(std::uint16_t shard);
  void ring_lost();
  // A chunk of that round's snapshot on that server's disk is damaged.
  void chunk_damaged(std::uint16_t shard, Round round) { losses_.damaged(shard, round); }
  // committed: the snapshot may be.
  void record_lost(std::uint16_t shard, Round round, bool committed) { losses_.record_lost(shard, round, committed); }
  void stores_replaced() {  // by empty ones: a join that was under way to the old coordinator opens a job there
    losses_ = {};
    replaced_ = true;
  }
  bool disk_hurt() const { return replicas_ ? replicas_->is_lost() : losses_.any(); }
  // A view begins: all servers that are there, but server 0, have copies of its record, or disks that have been full.
  void look_at_copies(JobId job, ViewId view, const std::set<std::uint16_t>& servers) const;
  bool may_refuse(const Error& error) const {
    return replicas_ ? replicas_->may_refuse(error)
                     : losses_.may_refuse(error, has_copy(), [this](std::uint16_t shard, Round round) {
                         return part_is_somewhere(shard, round);
                       });
  }
  bool began_anew() const { return began_anew_; }
  // Rounds since the last snapshot.
  // Rounds since the newest snapshot that a view can begin with.
  std::uint64_t uncovered() const { return complete_ - std::min(complete_, std::max(committed_, written()).value); }

  std::uint64_t complete() const { return complete_; }  // rounds that every chunk has been through
  // Returns how often a node got a round's parameters of a chunk.
  std::uint64_t deliveries() const { return replicas_ ? replicas_->deliveries() : deliveries_; }
  void ended();

 private:
  struct View {
    std::uint64_t number = 0;  // as they opened
    std::uint64_t coordinator = 0;
    OpenJob open;
    std::vector<std::uint32_t> nodes;
    // The judge of its states: `clocks`, or `sync`, which is `members` or the judge of all rounds.
    std::unique_ptr<ClocksJudge> clocks;
    std::unique_ptr<MembersJudge> members;
    SyncJudge* sync = nullptr;
    Judge& judge() const { return clocks ? static_cast<Judge&>(*clocks) : *sync; }
    bool welcomed = false;
    std::uint64_t start = 0;
    std::uint64_t deaths = 0;                         // of servers, until it opened
    std::set<std::uint16_t> kept;                     // shards that continue with their state in memory
    std::map<std::uint32_t, std::uint64_t> versions;  // by chunk, as their servers have them
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> at;  // by node and chunk, delivered
  };
  static std::string in_words(const char* what, std::uint64_t value) {
    return std::string(what) + " " + std::to_string(value);
  }
  View* view(JobId job, ViewId id);
  void check_cut(JobId job, Round round, const std::string& what) const;
  void set_up(const OpenJob& open);
  void begin(View& view);
  void begin_clocks(View& view);
  bool has_part(std::uint16_t shard) const;
  // A server other than server 0 has a copy of the job's record.
  bool has_copy() const;
  Round written() const;                                           // newest round that all servers have their parts of
  bool part_is_somewhere(std::uint16_t shard, Round round) const;  // on a disk, undamaged
  bool is_behind(std::uint16_t shard) const;
  bool synchronous() const { return scenario_.mode == Mode::kSync || scenario_.mode == Mode::kLocalSgd; }
  bool keeps_residual() const;
  void check_rings(const View& begun, std::uint64_t name, bool others);
  void look_at(View& of, const ShardCore& core, ChunkIndex chunk);
  void reach(std::uint32_t chunk, std::uint64_t version);
  std::uint64_t floor(const View& view) const;

  const ClusterScenario& scenario_;
  const std::vector<Disk>& disks_;
  std::set<std::uint16_t> emptied_;  // servers that have lost their stores since the last view was opened there
  ClusterOutcome& outcome_;
  const Held held_;
  const Broken broken_;
  ReplicasJudge* const replicas_;
  LossesJudge losses_;
  JudgeSetup setup_;
  std::unique_ptr<RoundsJudge> rounds_;
  std::map<std::pair<JobId, ViewId>, View> views_;
  View* newest_ = nullptr;
  std::vector<std::uint32_t> began_with_;    // the nodes of the last view that ran
  std::uint64_t began_as_ = 0;               // the name of its rounds' rings, as nodes got it (JobWelcome::members)
  std::set<std::uint64_t> called_;           // all of these
  std::set<std::uint64_t> others_recorded_;  // coordinators whose record has since had a view of other nodes
  std::uint64_t began_under_ = 0;            // its coordinator
  std::vector<std::uint64_t> reached_;       // by chunk
  std::vector<std::uint64_t> stepped_in_;    // by chunk: the newest view
  std::uint64_t complete_ = 0, deliveries_ = 0;
  Round committed_, recorded_;  // the newest snapshot that the coordinator told of, and that its record has
  bool any_commit_ = false;
  bool went_back_ = false;    // the newest view begins before what nodes had, for want of what ranks keep
  bool server_lost_ = false;  // since the last view that ran was opened
  std::uint64_t deaths_ = 0;
  bool began_anew_ = false;
  bool replaced_ = false;
  bool restored_ = false;  // no view of the job that was restored has opened yet
  std::map<JobId, Round> dealt_;
  std::set<std::pair<std::uint32_t, std::uint64_t>> given_, made_up_;                      // ranks' states
  std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t>> made_;  // node, chunk, round, hash
  std::set<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>> residuals_;  // in snapshots: chunk, version, hash
  bool last_failed_ = false;
  bool told_lost_ = false;           // a server has ended, and reported it
  std::optional<ViewId> disturbed_;  // by the loss of a node, and no later view has made a round since
  std::optional<Round> stopped_;     // where the last view ended, if cleanly
  std::set<std::uint32_t> behind_;   // chunks that are being brought up to where the last view that ran began
  bool ring_gap_ = false;            // some node lacks pushes after the last snapshot
  bool residuals_lost_ = false;      // some node lost its residuals since the last view began
  bool lost_before_ = false;         // the same of views before, until every node has been seen to make a round
  std::optional<Round> gap_until_;   // a snapshot of this round makes up for it
};

}  // namespace tributary::sim
