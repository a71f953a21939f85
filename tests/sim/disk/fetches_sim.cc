#include "tests/sim/disk/fetches_sim.h"

#include <algorithm>

#include "server/chunk/chunk_record.h"

namespace tributary::sim {

void FetchesSim::fetch(std::shared_ptr<Fetch> fetch, Done done) {
  orders_.push_back({std::move(fetch), std::move(done)});
  if (orders_.size() == 1) work_soon();
}

void FetchesSim::withdraw(const std::shared_ptr<Fetch>& fetch) {
  const auto found = std::ranges::find(orders_, fetch, &Order::fetch);
  if (found == orders_.end() || found == orders_.begin()) return;  // the first one is under way
  post_([done = std::move(found->done)] { done(fail(ErrorCode::kStopped, "nobody wants it any more")); });
  orders_.erase(found);
}

void FetchesSim::work_soon() {
  owner_.after(chunk_ns_, [this] { work(); });
}

void FetchesSim::work() {
  Order& order = orders_.front();
  Status status;
  if (!step(order, status)) return work_soon();
  if (!status && order.into) store_.discard(*order.into);
  if (order.fetch->deal && (!status || !order.fetch->wanted)) (void)store_.large_parts().drop(order.fetch->job, {});
  post_([done = std::move(order.done), status = std::move(status)] { done(status); });
  orders_.pop_front();
  if (!orders_.empty()) work_soon();
}

Status FetchesSim::begin(Order& order) {
  const Fetch& fetch = *order.fetch;
  const auto open = [&](ShardIndex server, JobId job, ShardIndex shard) -> Status {
    StoreSim* source = source_(server);
    if (!source) return fail(ErrorCode::kUnavailable, "the server cannot be reached");
    Result<PinnedSnapshot> from = source->pin(job, fetch.round, shard);
    if (!from) return tl::unexpected(from.error());
    order.view = source->view_of(job, fetch.round, shard);
    order.from.emplace(shard, std::move(*from));
    return {};
  };
  if (!fetch.deal) {
    if (const Status opened = open(fetch.from.shard, fetch.job, fetch.shard); !opened) return opened;
    const PinnedSnapshot& from = order.from.begin()->second;
    for (std::size_t place = 0; place < from.chunks.size(); ++place) order.chunks.emplace_back(fetch.shard, place);
    order.into = store_.create(from.info);
    return {};
  }
  const DealChunks& deal = *fetch.deal;
  for (const DealtPart& part : deal.parts) {
    if (const Status opened = open(part.from.shard, deal.before, part.shard); !opened) return opened;
  }
  std::map<ShardIndex, std::size_t> places;
  for (std::size_t c = 0; c < deal.owners.size(); ++c) {
    const ShardIndex shard = deal.owners_before[c].shard;
    const std::size_t place = places[shard]++;
    if (deal.owners[c].shard == fetch.shard) order.chunks.emplace_back(shard, place);
  }
  SnapshotInfo info = order.from.begin()->second.info;
  info.job = deal.job;
  info.chunks = static_cast<std::uint32_t>(order.chunks.size());
  info.shard = fetch.shard;
  if (!order.chunks.empty()) order.into = store_.create(info);
  return {};
}

bool FetchesSim::step(Order& order, Status& status) {
  const Fetch& fetch = *order.fetch;
  const auto over = [&](Status how) {
    status = std::move(how);
    return true;
  };
  if (!fetch.wanted) return over(fail(ErrorCode::kStopped, "nobody wants it any more"));
  if (order.from.empty()) {
    Status begun;
    for (const LargePart& large : fetch.deal ? fetch.deal->large : std::vector<LargePart>()) {
      const auto goes_on = [](std::size_t) { return Status(); };
      if (begun) begun = store_.large_parts().take_along(fetch.deal->before, fetch.job, large, goes_on);
    }
    if (begun) begun = begin(order);
    if (!begun) return over(begun);
  }
  if (order.copied < order.chunks.size()) {
    const auto [shard, place] = order.chunks[order.copied];
    const ShardIndex server =
        fetch.deal ? std::ranges::find(fetch.deal->parts, shard, &DealtPart::shard)->from.shard : fetch.from.shard;
    const StoreSim* source = source_(server);
    const JobId job = fetch.deal ? fetch.deal->before : fetch.job;
    if (!source || !source->has(job, fetch.round, shard)) {
      return over(fail(ErrorCode::kUnavailable, "the server cannot be reached, or has it no longer"));
    }
    const Status read = order.from.at(shard).read_one(place, [&](const StoredChunk& stored) {
      StoredChunk chunk = stored;
      std::string sealed;
      const Status renamed = fetch.deal ? records::rename_job(chunk, fetch.job, sealed) : Status();
      return renamed ? store_.write(*order.into, order.view, chunk.chunk, Disk::Piece::of(chunk)) : renamed;
    });
    ++order.copied;
    ++moved_;
    return read ? false : over(read);
  }
  if (order.chunks.empty()) return over({});
  if (syncs_) store_.sync(*order.into);
  return over(store_.record(*order.into));
}

}  // namespace tributary::sim
