// LargeParts: the large parts of what ranks keep (common/wire/state_head.h) in the coordinator: fetched from the
// workers that have them into server 0's store, and sent from there to the workers that lack them. Pure: messages and
// ticks in, messages and records out. Lives in the coordinator's context; jobs say which they want.
//
// The store takes its time (CoordinatorOutput::on_disk()), and nobody waits for it here: of what a worker sends more is
// asked for when the store has what came.
//
// A large part is known by its size and checksum: ranks that keep the same thing keep it once. Whoever of them is lost,
// or has it no more, another one is asked. Where there is no store, parts are passed on from worker to worker.
//
// Invariants: what is complete here had the right checksum; at most kFetches are on their way, kQueued wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/wire/part_fetch.h"
#include "server/coordinator/coordinator_output.h"
#include "server/coordinator/large_part_store.h"
#include "server/coordinator/peers.h"

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
  // Or a worker that is there says that it has it.
  bool to_be_had(JobId job, const LargePart& large) const;
  std::vector<JobId> jobs() const;
  // Looks for the parts of a restored job, which came into the store past this.
  void restored(JobId job);
  std::uint64_t taken() const { return taken_; }  // bytes, of all jobs: grows while something comes

  // ---- What is wanted ----
  // This worker has it. job_in_words: for the log.
  void announce(JobId job, const std::string& job_in_words, const LargePart& large, std::uint64_t worker);
  // It is to be in the store. False: it cannot be had.
  bool want(JobId job, const LargePart& large, std::uint64_t now_ms);
  // Nobody wants others of this job any more.
  void keep_only(JobId job, const std::set<LargePart>& wanted);

  // ---- What workers say ----
  // A worker lacks a piece. It gets it, or an empty answer if nobody has it. As long as it comes it is told so, and
  // asks again by itself: how long that may take is measured here, by what comes from who has it.
  void answer(std::uint64_t worker, const WantPart& m, std::uint64_t now_ms);
  // A piece from a worker.
  void take(std::uint64_t worker, const StatePart& m, std::uint64_t now_ms);
  void worker_lost(std::uint64_t worker, std::uint64_t now_ms);
  void tick(std::uint64_t now_ms);

 private:
  using Key = std::pair<JobId, LargePart>;
  struct Announced {
    std::vector<std::uint64_t> workers;  // in the order in which they are asked
    std::string job;                     // in words
  };
  struct Fetch {
    PartFetch parts;
    std::uint64_t worker = 0;
    std::uint64_t number = 0;  // of a later one of the same part it is another
    std::uint64_t orders = 0;  // to the store, for it, that have not ended
  };
  struct Passing {  // a piece to those that have asked for it
    std::set<std::uint64_t> to;
    std::uint64_t from = 0, since_ms = 0;
  };
  using Fetches = std::map<Key, Fetch>;

  std::string in_words(const Key& key) const;
  void send(std::uint64_t worker, const ControlMessage& message) const;
  void begin_fetch(const Key& key, std::uint64_t now_ms);
  void begin_next(std::uint64_t now_ms);
  // Its source has it no more: another one is asked.
  void lost(Fetches::iterator at, const std::string& why, std::uint64_t now_ms);
  // The store cannot keep it.
  void leave_out(const Key& key, const Error& error);
  // The store does this for a fetch, which then goes on; if it cannot, the part is left out.
  void order(Fetches::iterator at, CoordinatorOutput::Work work, bool last, std::uint64_t now_ms);
  void finish(Fetches::iterator at, std::uint64_t now_ms);
  void forget_source(const Key& key, std::uint64_t worker);
  // Where there is no store.
  void ask_for_another(const WantPart& m, std::uint64_t asker, std::uint64_t now_ms);
  void pass_on(std::uint64_t worker, const StatePart& m);

  CoordinatorOutput& output_;
  const Peers& peers_;
  const Told told_;
  LargePartStore* const store_;  // null: there is none; what it does, it does on_disk()
  LargePartStore::Complete complete_;
  std::map<Key, Announced> announced_;
  std::deque<Key> queue_;
  Fetches fetches_;
  std::map<std::pair<Key, std::uint64_t>, Passing> passing_;
  std::uint64_t taken_ = 0;
  std::uint64_t fetched_ = 0;  // fetches that have begun
  bool full_ = false;          // too many are announced, or wait, and that was logged
};

}  // namespace tributary
