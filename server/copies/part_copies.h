// PartCopies: a server's copies of the large parts of what ranks keep (docs/copies.md), in its own store. The store of the
// coordinator's server has the parts themselves, which the coordinator takes care of. Pure. A part of ControlJobs.
//
//   CopyParts  missing parts are fetched from the coordinator, one after the other; all others of the job go -> HeldParts
//   WantPart   the store's thread reads a piece -> StatePart
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "common/daemon/log.h"
#include "common/wire/messages.h"
#include "server/coordinator/cluster/stored_fetch.h"
#include "server/store/store_thread.h"

namespace tributary {

class PartCopies {
 public:
  static constexpr std::size_t kReads = 64;  // that are under way; the asker of another asks again

  using Send = std::function<void(ControlMessage)>;
  using Now = std::function<std::uint64_t()>;
  // store: null if there is none; then copies are not kept.
  PartCopies(LargePartStore* store, Logger logger, Send send, Now now_ms);
  void start(StoreOrders* orders) { orders_ = orders; }  // null without a store
  void registry_is_here(bool here);                      // as RecordCopies

  std::vector<HeldParts> held() const;
  void on(const CopyParts& m);
  void on(const StatePart& m);
  void on(const WantPart& m);
  void forget(JobId job) { keep_only(job, {}); }
  void tick();

 private:
  using Key = std::pair<JobId, LargePart>;
  void keep_only(JobId job, const std::set<LargePart>& wanted);
  void begin_next();
  void ended(StoredFetch::End end, const Status& status);
  void leave(bool success);
  void drop_others(JobId job);
  bool has(const Key& key) const;
  void report(JobId job) const;

  LargePartStore* const store_;
  Logger logger_;
  const Send send_;
  const Now now_ms_;
  StoreOrders* orders_ = nullptr;
  LargePartStore::Complete held_;
  bool here_ = false;                       // the registry
  std::map<JobId, std::uint32_t> numbers_;  // of the last orders
  std::deque<Key> queue_;                   // its first is being fetched
  std::unique_ptr<StoredFetch> coming_;     // null: none is
  std::set<std::tuple<JobId, LargePart, std::uint64_t>> reading_;
  bool failing_ = false;  // the last one could not be had, and that was logged
};

}  // namespace tributary
