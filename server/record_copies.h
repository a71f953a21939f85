// RecordCopies: a server's copies of the coordinator's job records (docs/recovery.md, "The registry"), in its own store.
// A coordinator that has lost them asks for them. Pure. A part of ControlJobs.
//
//   JobRecordCopy  the store's thread saves it
//   WantRecord     it reads the next one -> JobRecordCopy
//
// Thread rule: one thread.
#pragma once

#include <functional>
#include <set>

#include "common/daemon/log.h"
#include "common/wire/record_messages.h"
#include "server/store/store_thread.h"

namespace tributary {

class RecordCopies {
 public:
  // store: null if there is none; then copies are dropped, and there are none.
  RecordCopies(Store* store, Logger logger);
  void start(StoreOrders* orders) { orders_ = orders; }  // null without a store

  bool any() const { return any_; }                                   // may be
  bool saving(JobId job) const { return saving_.contains(job); }      // a copy of that job's record
  void save(const JobRecordCopy& copy, std::function<void()> ended);  // called when it is saved, or cannot be
  void answer(const WantRecord& question, std::function<void(JobRecordCopy)> reply);
  void forget(JobId job);

 private:
  Store* const store_;
  Logger logger_;
  StoreOrders* orders_ = nullptr;
  bool any_ = false;
  bool failing_ = false;  // the last one could not be saved, and that was logged
  std::multiset<JobId> saving_;
};

}  // namespace tributary
