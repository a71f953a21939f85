// SnapshotFetches: the parts of snapshots that this server reads from other servers (docs/copies.md): copies
// that it keeps for them, its own part where its store has lost that, and a part that it is to have where a job's chunks
// go to other servers (docs/failover.md). Pure. A part of ControlJobs.
//
//   CopySnapshot  FetchOrders reads the part into the store -> SnapshotCopied
//   fill()        the same with this server's own part, for a view that opens
//   DealChunks    the same with the chunks of several servers' parts, as a new job's -> CheckpointDone
//
// Thread rule: one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "common/daemon/log.h"
#include "common/wire/messages.h"
#include "server/store/store.h"

namespace tributary {

// A part that is being read. Any thread: the atomics.
struct Fetch {
  JobId job;
  Round round;
  ShardIndex shard;                     // whose part
  ServerEntry from;                     // the server that has it; or, without one,
  std::optional<DealChunks> deal;       // it is put together of these
  std::atomic<bool> paced{true};        // training goes on: its messages go first
  std::atomic<bool> wanted{true};       // false: it is to end
  std::atomic<bool> begun{false};       // by a thread
  std::atomic<bool> unreadable{false};  // the server that has it cannot read it, or it is damaged
  std::atomic<std::uint64_t> bytes{0};
};

// Every fetch ends in exactly one call of Done, later than the call that orders it: the part is complete in the store,
// or cannot be had. Nothing is called once the server is being stopped.
class FetchOrders {
 public:
  using Done = std::function<void(const Status&)>;
  virtual ~FetchOrders() = default;
  virtual void fetch(std::shared_ptr<Fetch> fetch, Done done) = 0;
  // One that is not paced any more goes before those that are.
  virtual void hurry(const std::shared_ptr<Fetch>& fetch) = 0;
  // One that is not wanted any more ends now, if it waits behind others; else as soon as it can.
  virtual void withdraw(const std::shared_ptr<Fetch>& fetch) = 0;
  virtual std::uint64_t dealt() const = 0;  // bytes so far, of chunks that go to other servers
};

class SnapshotFetches {
 public:
  using Send = std::function<void(ControlMessage)>;
  using Done = FetchOrders::Done;
  // Something of this job has ended. unwanted: a part of this round is in the store, and nobody wants it.
  using Ended = std::function<void(JobId job, std::optional<Round> unwanted)>;

  // store: null if there is none.
  SnapshotFetches(const Store* store, ShardIndex own, Logger logger, Send send, Ended ended);
  void start(FetchOrders* orders) { orders_ = orders; }  // null without a store

  void on(const CopySnapshot& m);
  // Reads this server's own part, and calls `done`.
  void fill(const CopySnapshot& m, Done done);
  void on(const DealChunks& m);
  // Gives up what is read from a server at an address that it does not have any more: the coordinator orders it again.
  void on(const ServerBook& m);

  // Gives up what is read of the job's rounds from `first` on. Returns whether something has yet to end.
  bool give_up(JobId job, Round first);
  void give_up_deals();                  // whose coordinator is gone
  bool ending(JobId job) const;          // something that was given up has not ended
  std::uint64_t bytes(JobId job) const;  // that were read for its fetches under way

 private:
  using Key = std::tuple<JobId, Round, ShardIndex>;
  struct UnderWay {
    std::shared_ptr<Fetch> fetch;
    std::optional<CopySnapshot> order;  // the newest; none: a deal
    std::vector<Done> waits;
  };
  void fetch(const CopySnapshot& m, Done done);
  void unwant(const UnderWay& it) const;
  FetchOrders::Done ends(const Key& key) {
    return [this, key](const Status& status) { ended(key, status); };
  }
  void ended(const Key& key, const Status& status);
  void reply(const CopySnapshot& m, const Status& status, bool unreadable = false) const;

  const Store* const store_;
  const ShardIndex own_;
  Logger logger_;
  const Send send_;
  const Ended ended_;
  FetchOrders* orders_ = nullptr;
  std::map<Key, UnderWay> under_way_;
};

}  // namespace tributary
