// StoredRounds: the rounds of jobs that a server's store has snapshots of. Snapshots that are being dropped do not count:
// nobody is to begin with them. Pure. A part of ControlJobs.
//
// Thread rule: one thread. (The store's thread drops.)
#pragma once

#include <list>
#include <vector>

#include "common/daemon/log.h"
#include "common/wire/messages.h"
#include "server/store/store_thread.h"

namespace tributary {

class StoredRounds {
 public:
  // store: null if there is none; then there are no rounds.
  StoredRounds(Store* store, ShardIndex own, Logger logger);
  void start(StoreOrders* orders) { orders_ = orders; }  // null without a store

  std::vector<StoredJob> all() const;           // with other servers' parts
  bool has(JobId job, Round round) const;       // this server's part
  bool any_from(JobId job, Round first) const;  // of that round or a later one; here those that are being dropped count

  // Drop snapshots of those rounds, `last` included. If they cannot be dropped, they count again.
  void drop_before(JobId job, Round round);
  void drop(JobId job, Round first, Round last);
  void drop(JobId job, Round first, Round last, StoreOrders::Done done);  // REQUIRES: a store

 private:
  struct Dropping {
    bool covers(JobId of, Round round) const { return of == job && round >= first && round <= last; }
    JobId job;
    Round first, last;
  };

  Store* const store_;
  const ShardIndex own_;
  Logger logger_;
  StoreOrders* orders_ = nullptr;
  std::list<Dropping> dropping_;
};

}  // namespace tributary
