#include "server/stored_rounds.h"

#include <algorithm>
#include <utility>

namespace tributary {

StoredRounds::StoredRounds(Store* store, ShardIndex own, Logger logger)
    : store_(store), own_(own), logger_(std::move(logger)) {}

std::vector<StoredJob> StoredRounds::all() const {
  if (!store_) return {};
  std::vector<StoredJob> jobs = store_->jobs();
  for (const Dropping& dropping : dropping_) {
    for (StoredJob& of : jobs) {
      std::erase_if(of.snapshots, [&](Round round) { return dropping.covers(of.job, round); });
    }
  }
  std::erase_if(jobs, [](const StoredJob& of) { return of.snapshots.empty(); });
  return jobs;
}

bool StoredRounds::has(JobId job, Round round) const {
  return store_ && store_->has(job, round, own_) &&
         std::ranges::none_of(dropping_, [&](const Dropping& dropping) { return dropping.covers(job, round); });
}

bool StoredRounds::any_from(JobId job, Round first) const {
  const auto from = [&](const StoredJob& stored) {
    return stored.job == job && std::ranges::any_of(stored.snapshots, [&](Round round) { return round >= first; });
  };
  return store_ && std::ranges::any_of(store_->jobs(), from);
}

void StoredRounds::drop_before(JobId job, Round round) {
  if (store_ && round.value != 0) drop(job, Round(0), Round(round.value - 1));
}

void StoredRounds::drop(JobId job, Round first, Round last) {
  if (!store_) return;
  drop(job, first, last, [this, last](const Status& dropped) {
    if (!dropped) logger_->warn("cannot drop snapshots up to round {}: {}", last.value, dropped.error().message);
  });
}

void StoredRounds::drop(JobId job, Round first, Round last, StoreOrders::Done done) {
  const auto entry = dropping_.insert(dropping_.end(), {job, first, last});
  const auto ended = [this, entry, done = std::move(done)](const Status& dropped) {
    dropping_.erase(entry);
    done(dropped);
  };
  orders_->run([store = store_, job, first, last] { return store->drop(job, first, last); }, ended);
}

}  // namespace tributary
