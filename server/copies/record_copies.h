// RecordCopies: a server's copies of the coordinator's job records (docs/recovery.md, "The registry"), in its own store.
// A coordinator that has lost records asks for them. Pure. A part of ControlJobs.
//
//   JobRecordCopy  a thread for the disk saves it -> HeldRecord
//   WantRecord     that thread reads it -> JobRecordCopy
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "common/daemon/log.h"
#include "common/wire/messages.h"
#include "server/store/store_thread.h"

namespace tributary {

class RecordCopies {
 public:
  using Send = std::function<void(ControlMessage)>;
  // store: null if there is none; then copies are dropped, and there are none.
  RecordCopies(Store* store, Logger logger, Send send);
  // Here: the store has the coordinator's registry now, which the coordinator takes care of. At first it has copies.
  void registry_is_here(bool here);
  void start(StoreOrders* orders) { orders_ = orders; }  // null without a store

  std::vector<HeldRecord> held() const;
  void save(const JobRecordCopy& copy);
  bool saving(JobId job) const { return saving_.contains(job); }  // a copy of that job's record
  // Calls it when no copy of that job's record is being saved any more: now, or when all are saved, or cannot be.
  void after(JobId job, std::function<void()> what);
  void answer(const WantRecord& question);
  void forget(JobId job);

 private:
  void ended(const HeldRecord& held, const Status& saved);
  void list();

  Store* const store_;
  Logger logger_;
  const Send send_;
  StoreOrders* orders_ = nullptr;
  bool here_ = false;                    // the registry
  bool failing_ = false;                 // the last one could not be saved, and that was logged
  std::map<JobId, std::uint64_t> held_;  // editions
  std::multiset<JobId> saving_;
  std::multimap<JobId, std::function<void()>> after_;
};

}  // namespace tributary
