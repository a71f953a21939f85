// Checkpoints: saves and restores that people have ordered, and deals, under way and over. Pure. Lives in the
// coordinator.
//
// save:     a snapshot is named soon (the job trains on), or the newest committed one is taken; where a store is broken,
//           what servers have in memory, of a round that is named soon, or of a view that is over
//           -> WriteCheckpoint to the job's shards -> SealCheckpoint to server 0, whose store has the large parts of
//           what ranks keep -> done
// restore:  the chunks are dealt to the servers that there are -> LoadCheckpoint to all of them, which makes a snapshot
//           of a new job id in their stores, and large parts in server 0's -> the job's record -> done. From then on it
//           is like any stopped job.
// deal:     the same out of the servers' stores: DealChunks to the servers that are to have chunks.
//
// Whatever fails leaves the jobs as they were; what was written for it is dropped. Invariant: at most one is under way
// for a job, and kMaxUnderWay in all.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/patience.h"
#include "common/wire/messages.h"
#include "server/coordinator/cluster/coordinator_output.h"
#include "server/coordinator/cluster/peers.h"
#include "server/coordinator/orders/checkpoint_orders.h"

namespace tributary {

// The jobs as saves and restores see them.
class CheckpointJobs {
 public:
  virtual ~CheckpointJobs() = default;
  // As it is now; nullptr: there is no such job.
  virtual const JobRecord* record_of(const std::string& job) const = 0;
  virtual bool takes_snapshot(const std::string& job) const = 0;
  // Does it train, and has not come to this round yet?
  virtual bool has_yet_to_reach(const std::string& job, Round round) const = 0;
  // Its ranks' states of this round, as far as they are there.
  virtual RankStates rank_states_at(const std::string& job, Round round) const = 0;
  // Is a large part of what its ranks keep in the store?
  virtual bool has_part(JobId job, const LargePart& large) const = 0;
  // Is something on its way that ranks keep with this round? whole: a whole state of it is there.
  virtual bool state_comes(const std::string& job, Round round, bool whole, std::uint64_t now_ms) = 0;
  // Grows while that comes.
  virtual std::uint64_t state_taken(const std::string& job) const = 0;
  // A large part has come.
  virtual void part_is_there(JobId job, std::uint64_t now_ms) = 0;
  // All servers have their parts of a deal. Has each part its copy, or can none be had? Orders what is missing.
  virtual bool dealt_is_copied(const std::string& job, const JobRecord& record, std::uint64_t now_ms) = 0;
  // All servers have loaded it, and its record is saved.
  virtual void loaded(const std::string& job, const JobRecord& record) = 0;
  virtual void not_loaded(const std::string& job, const std::string& why, std::uint64_t now_ms) = 0;
};

class Checkpoints {
 public:
  static constexpr std::size_t kMaxUnderWay = 8;
  static constexpr std::uint64_t kOrdersOfSeries = 100'000, kSeries = 1u << 30;  // numbers are whole in JSON, too
  static constexpr std::size_t kMaxScheduled = 4;  // are begun by schedules: people's orders have room
  static constexpr std::size_t kKept = 32;         // that are over and can still be asked for

  // series: of the coordinator, whose numbers of orders are not those of another one.
  Checkpoints(Peers& peers, CoordinatorOutput& output, CheckpointJobs& jobs, std::uint64_t series)
      : peers_(peers), output_(output), jobs_(jobs), last_id_(series % kSeries * kOrdersOfSeries) {}

  // Their ids, to ask status() with, or why not. A save waits for its job's next snapshot until write() names it.
  Result<std::uint64_t> save(const SaveOrder& order, std::uint64_t now_ms);
  // record: what the job will be.
  Result<std::uint64_t> restore(const RestoreOrder& order, const JobRecord& record, std::uint64_t now_ms);
  // Could one begin for this job now?
  Status room_for(const std::string& job) const;
  // record: what the job will be; before: what it is, with the state of the same round. parts: of that, by shard.
  Status deal(const std::string& job, const JobRecord& record, const JobRecord& before,
              const std::vector<DealtPart>& parts, std::uint64_t now_ms);
  std::optional<CheckpointStatus> status(std::uint64_t id) const;

  void on(ShardIndex server, const CheckpointDone& m, std::uint64_t now_ms);
  // The record of a restored job is saved, or cannot be.
  void saved(JobId job, const Status& status, std::uint64_t now_ms);
  // A part of this job, which is being dealt, is damaged where it is written.
  void unreadable(JobId job, const std::string& why, std::uint64_t now_ms);
  // Is a job being restored or dealt under this id?
  bool restores(JobId job) const;
  // The name of the job that is dealt under this id; empty: none is.
  std::string dealt_under(JobId job) const;
  // Does a save wait for the job's next snapshot?
  bool awaits_snapshot(const std::string& job) const;
  // Its saves are of this record's round: of the committed snapshot, or, with a view, of what servers have of it in
  // memory. nodes: that made it. shards: that have a part of it.
  void write(const std::string& job, const JobRecord& record, std::uint32_t nodes,
             const std::set<std::uint16_t>& shards, std::uint64_t now_ms, ViewId from_memory = {});
  // Is a state of the job being written from memory?
  bool writes_from_memory(const std::string& job) const;
  // Large parts that saves which are being written name: they stay in the store until then.
  std::set<LargePart> large_parts(JobId job) const;
  // The view ended, and no snapshot of it will be committed any more.
  void view_over(const std::string& job, const std::string& why, std::uint64_t now_ms);
  // So many bytes this server has read and written for checkpoints, since it started.
  void heard(std::uint16_t server, std::uint64_t moved) { moved_[server] = moved; }
  // Ends the orders that wait for this server.
  void server_lost(std::uint16_t server, const std::string& why, std::uint64_t now_ms);
  void tick(std::uint64_t now_ms);

 private:
  struct Checkpoint {
    CheckpointStatus status;
    std::uint64_t order = 0;  // by which servers know it: each attempt has another one
    SaveOrder save;
    JobRecord record;  // save: at the cut; restore: what the job will be
    bool from_memory = false;
    std::uint32_t nodes = 0;
    std::vector<ManifestShard> shards;  // save: written
    std::set<std::uint16_t> read_from;  // deal: servers
    bool recorded = false;              // restore, deal: the record is being saved
    std::optional<Patience> works;      // with servers that read or write
  };
  std::uint64_t progress(const CheckpointStatus& status) const;
  Result<Checkpoint*> begin(Checkpoint checkpoint, std::uint64_t now_ms);
  Result<Checkpoint*> begin_loading(Checkpoint checkpoint, std::uint64_t now_ms);
  // The round was over on some server before its name arrived: the next one is waited for.
  void wait_again(Checkpoint& checkpoint);
  // All servers have loaded it: its record is saved when a deal has its copies, too.
  void record(Checkpoint& checkpoint, std::uint64_t now_ms);
  // Servers give up what they write or load for it, and remove what they have.
  void drop(const Checkpoint& checkpoint) const;
  // All shards have written it: sealed when nothing that ranks kept with it is on its way any more.
  void look_for_parts(Checkpoint& checkpoint, std::uint64_t now_ms);
  void seal(Checkpoint& checkpoint, std::uint64_t now_ms);
  // failure: why; empty: it is done.
  void end(Checkpoint& checkpoint, const std::string& failure, std::uint64_t now_ms);

  Peers& peers_;
  CoordinatorOutput& output_;
  CheckpointJobs& jobs_;
  std::map<std::uint64_t, Checkpoint> checkpoints_;  // by id
  std::map<std::uint16_t, std::uint64_t> moved_;     // bytes, by server
  std::uint64_t last_id_;
};

}  // namespace tributary
