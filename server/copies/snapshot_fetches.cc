#include "server/copies/snapshot_fetches.h"

#include <algorithm>
#include <utility>

namespace tributary {
namespace {

std::string in_words(const CopySnapshot& m) {
  return "server " + std::to_string(m.shard.value) + "'s part of round " + std::to_string(m.round.value) +
         " of job id " + std::to_string(m.job.value) + ", which server " + std::to_string(m.from.shard.value) + " has";
}

}  // namespace

SnapshotFetches::SnapshotFetches(const Store* store, ShardIndex own, Logger logger, Send send, Ended ended)
    : store_(store), own_(own), logger_(std::move(logger)), send_(std::move(send)), ended_(std::move(ended)) {}

void SnapshotFetches::reply(const CopySnapshot& m, const Status& status, bool unreadable) const {
  SnapshotCopied done{m.job, m.round, m.shard, m.view, status.has_value()};
  if (!status) {
    done.code = status.error().code;
    done.message = status.error().message;
    done.unreadable = unreadable;
  }
  send_(std::move(done));
}

void SnapshotFetches::on(const CopySnapshot& m) {
  if (!store_ || !orders_) {
    return reply(m, fail(ErrorCode::kStore, "server " + std::to_string(own_.value) + " has no store for copies"));
  }
  if (store_->has(m.job, m.round, m.shard)) return reply(m, {});
  fetch(m, {});
}

// REQUIRES: there is a store.
void SnapshotFetches::fill(const CopySnapshot& m, Done done) {
  logger_->warn("the store lacks {}: it is read from there", in_words(m));
  fetch(m, std::move(done));
}

void SnapshotFetches::fetch(const CopySnapshot& m, Done done) {
  // Nobody asks any more for an older round.
  for (const auto& [other, it] : under_way_) {
    if (it.order && it.order->job == m.job && it.order->shard == m.shard && it.order->round < m.round &&
        it.waits.empty()) {
      unwant(it);
    }
  }
  const Key key{m.job, m.round, m.shard};
  const auto [at, begins] = under_way_.try_emplace(key);
  UnderWay& it = at->second;
  it.order = m;
  if (done) it.waits.push_back(std::move(done));
  if (!begins) {
    if (!m.paced && it.fetch->paced.exchange(false)) orders_->hurry(it.fetch);
    return;
  }
  it.fetch = std::make_shared<Fetch>();
  it.fetch->job = m.job;
  it.fetch->round = m.round;
  it.fetch->shard = m.shard;
  it.fetch->from = m.from;
  it.fetch->paced = m.paced;
  orders_->fetch(it.fetch, ends(key));
}

void SnapshotFetches::unwant(const UnderWay& it) const {
  it.fetch->wanted = false;
  orders_->withdraw(it.fetch);
}

void SnapshotFetches::on(const ServerBook& m) {
  for (const auto& [key, it] : under_way_) {
    if (!it.order) continue;  // a deal, which the coordinator ends with the server
    const ServerEntry& from = it.fetch->from;
    const bool elsewhere = std::ranges::any_of(
        m.servers, [&](const ServerEntry& server) { return server.shard == from.shard && !(server == from); });
    if (elsewhere) unwant(it);
  }
}

void SnapshotFetches::on(const DealChunks& m) {
  const auto reply = [this, operation = m.operation](const std::shared_ptr<Fetch>& fetch, const Status& status) {
    CheckpointDone done;
    done.operation = operation;
    done.ok = status.has_value();
    if (fetch) done.bytes = fetch->bytes;
    if (!status) {
      done.code = status.error().code;
      done.message = status.error().message;
    }
    send_(std::move(done));
  };
  const std::string me = "server " + std::to_string(own_.value);
  if (!store_ || !orders_) return reply(nullptr, fail(ErrorCode::kStore, me + " has no store"));
  const Key key{m.job, m.round, own_};
  const auto [at, begins] = under_way_.try_emplace(key);
  if (!begins) return reply(nullptr, fail(ErrorCode::kInvalidArgument, me + " reads its part of that job already"));
  UnderWay& it = at->second;
  it.fetch = std::make_shared<Fetch>();
  it.fetch->job = m.job;
  it.fetch->round = m.round;
  it.fetch->shard = own_;
  it.fetch->deal = m;
  it.fetch->paced = false;
  it.waits.push_back([reply, fetch = it.fetch](const Status& status) { reply(fetch, status); });
  orders_->fetch(it.fetch, ends(key));
}

void SnapshotFetches::ended(const Key& key, const Status& status) {
  const auto found = under_way_.find(key);
  const UnderWay it = std::move(found->second);
  under_way_.erase(found);
  // One that was given up is answered, too: an order for the same may have come since.
  if (it.order) {
    if (!status && it.fetch->wanted) logger_->warn("cannot read {}: {}", in_words(*it.order), status.error().message);
    reply(*it.order, status, it.fetch->unreadable);
  }
  for (const Done& done : it.waits) done(status);
  ended_(it.fetch->job, status && !it.fetch->wanted ? std::optional(it.fetch->round) : std::nullopt);
}

bool SnapshotFetches::give_up(JobId job, Round first) {
  for (const auto& [key, it] : under_way_) {
    if (it.fetch->job == job && it.fetch->round >= first) unwant(it);
  }
  return ending(job);
}

void SnapshotFetches::give_up_deals() {
  for (const auto& [key, it] : under_way_) {
    if (it.fetch->deal) unwant(it);
  }
}

bool SnapshotFetches::ending(JobId job) const {
  return std::ranges::any_of(
      under_way_, [&](const auto& entry) { return entry.second.fetch->job == job && !entry.second.fetch->wanted; });
}

std::uint64_t SnapshotFetches::bytes(JobId job) const {
  std::uint64_t bytes = 0;
  for (const auto& [key, it] : under_way_) {
    if (it.fetch->job == job) bytes += it.fetch->bytes.load(std::memory_order_relaxed);
  }
  return bytes;
}

}  // namespace tributary
