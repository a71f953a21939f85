// LargeParts: the large parts of ranks' states (common/wire/state_head.h) in the coordinator: fetched from the workers
// that have them into server 0's store, and sent from there to the workers that lack them. Pure: messages and ticks in,
// messages and records out. Lives in the coordinator's context; jobs request parts.
//
// The store takes its time (CoordinatorOutput::on_disk()), and no call waits for it: the next piece of a worker's part is
// requested when the store has the last one.
//
// A large part is known by its size and checksum: ranks that keep equal parts share one. If a worker is lost or has
// dropped the part, another worker is asked. Without a store, parts are passed on from worker to worker.
//
// Servers have copies of the store's parts (server/coordinator/orders/part_holders.h). The coordinator fetches a part back
// from there if the store has lost it.
//
// Invariants: a complete part has had the right checksum; at most kFetches parts are on their way, kQueued wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "server/coordinator/cluster/coordinator_output.h"
#include "server/coordinator/cluster/large_part_store.h"
#include "server/coordinator/cluster/peers.h"
#include "server/coordinator/cluster/stored_fetch.h"
#include "server/coordinator/orders/part_holders.h"

namespace tributary {

class LargeParts {
 public:
  static constexpr std::size_t kFetches = 4;       // at a time
  static constexpr std::size_t kQueued = 1024;     // that wait
  static constexpr std::size_t kAnnounced = 8192;  // that workers have
  static constexpr std::size_t kPassedOn = 1024;   // pieces that are under way from worker to worker

  // told: hears of each that is complete.
  using Told = std::function<void(JobId job, std::uint64_t now_ms)>;
  LargeParts(CoordinatorOutput& output, const Peers& peers, Told told);

  // ---- What there is ----
  bool has(JobId job, const LargePart& large) const;
  // The same, or a server has a copy.
  bool stored(JobId job, const LargePart& large) const {
    return has(job, large) || !holders_.sources({job, large}).empty();
  }
  // The same, or all of the part has come, or a worker that is there has it.
  bool to_be_had(JobId job, const LargePart& large) const;
  // Pieces still have to come from this daemon, or copies to go to it, and do so.
  bool needs(std::uint64_t daemon) const;
  PartHolders& holders() { return holders_; }
  const PartHolders& holders() const { return holders_; }
  std::vector<JobId> jobs() const;
  // Looks for the parts of a restored job, which came into the store past this.
  void restored(JobId job);
  std::uint64_t taken() const { return taken_; }  // bytes, of all jobs: grows while something comes

  // ---- What is wanted ----
  // Notes that this worker has the part. job_in_words: for the log.
  void announce(JobId job, const std::string& job_in_words, const LargePart& large, std::uint64_t worker);
  // Requests the part for the store. False: no source has it.
  bool want(JobId job, const LargePart& large, std::uint64_t now_ms);
  // Drops the job's other parts, which are not needed any more.
  void keep_only(JobId job, const std::set<LargePart>& wanted);
  // The job is gone, with its parts.
  void forget(JobId job);

  // ---- What workers say ----
  // Sends a daemon the piece that it lacks, or an empty answer if nobody has it. While the piece is on its way, the
  // daemon gets a note and asks again; the patience is measured here, by the bytes that come from the source.
  void answer(std::uint64_t daemon, const WantPart& m, std::uint64_t now_ms);
  // Takes a piece from a worker, or from a server's copy.
  void take(std::uint64_t source, const StatePart& m, std::uint64_t now_ms);
  void worker_lost(std::uint64_t worker, std::uint64_t now_ms);
  void server_lost(std::uint64_t server, std::uint64_t now_ms);
  void tick(std::uint64_t now_ms);

 private:
  using Key = std::pair<JobId, LargePart>;
  struct Announced {
    std::vector<std::uint64_t> workers;  // in the order in which they are asked
    std::string job;                     // in words
  };
  struct Fetch {
    std::unique_ptr<StoredFetch> parts;
    std::uint64_t source = 0;  // a worker, or a server
  };
  struct Passing {  // a piece to those that have asked for it
    std::set<std::uint64_t> to;
    std::uint64_t from = 0, since_ms = 0;
  };
  using Fetches = std::map<Key, Fetch>;

  std::string in_words(const Key& key) const;
  void send(std::uint64_t daemon, const ControlMessage& message) const;
  void begin_fetch(const Key& key, std::uint64_t now_ms);
  void begin_next(std::uint64_t now_ms);
  // Its source has it no more: another one is asked.
  void lost(Fetches::iterator at, const std::string& why, std::uint64_t now_ms);
  // The store cannot keep it.
  void leave_out(const Key& key, const Error& error, std::uint64_t now_ms);
  void fetched(const Key& key, StoredFetch::End end, const Status& status, std::uint64_t now_ms);
  void forget_source(const Key& key, std::uint64_t source);
  void source_lost(std::uint64_t source, const char* why, std::uint64_t now_ms);
  // Where there is no store.
  void ask_for_another(const WantPart& m, std::uint64_t asker, std::uint64_t now_ms);
  void pass_on(std::uint64_t worker, const StatePart& m);

  CoordinatorOutput& output_;
  const Peers& peers_;
  const Told told_;
  LargePartStore* const store_;  // null: there is none; what it does, it does on_disk()
  LargePartStore::Complete complete_;
  PartHolders holders_;
  std::map<Key, Announced> announced_;
  std::deque<Key> queue_;
  Fetches fetches_;
  std::set<std::tuple<std::uint64_t, Key, std::uint64_t>> reading_;  // worker, part, offset: the store's answer comes
  std::map<std::pair<Key, std::uint64_t>, Passing> passing_;
  std::uint64_t taken_ = 0;
  bool full_ = false;  // too many are announced, or wait, and that was logged
};

}  // namespace tributary
