#include "tests/sim/disk/fetches_sim.h"

namespace tributary::sim {

void FetchesSim::fetch(std::shared_ptr<Fetch> fetch, Done done) {
  orders_.push_back({std::move(fetch), std::move(done)});
  if (orders_.size() == 1) work_soon();
}

void FetchesSim::work_soon() {
  owner_.after(chunk_ns_, [this] { work(); });
}

void FetchesSim::work() {
  Order& order = orders_.front();
  Status status;
  if (!step(order, status)) return work_soon();
  if (!status && order.into) store_.discard(*order.into);
  post_([done = std::move(order.done), status = std::move(status)] { done(status); });
  orders_.pop_front();
  if (!orders_.empty()) work_soon();
}

bool FetchesSim::step(Order& order, Status& status) {
  const Fetch& fetch = *order.fetch;
  const auto over = [&](Status how) {
    status = std::move(how);
    return true;
  };
  if (!fetch.wanted) return over(fail(ErrorCode::kStopped, "nobody wants it any more"));
  StoreSim* source = source_(fetch.from.shard);
  if (!source) return over(fail(ErrorCode::kUnavailable, "the server cannot be reached"));
  if (!order.from) {
    Result<PinnedSnapshot> from = source->pin(fetch.job, fetch.round, fetch.shard);
    if (!from) return over(tl::unexpected(from.error()));
    order.from = std::move(*from);
    order.view = source->view_of(fetch.job, fetch.round, fetch.shard);
    order.into = store_.create(order.from->info);
  }
  if (order.copied < order.from->chunks.size()) {
    const Status read = order.from->read_one(order.copied, [&](const StoredChunk& chunk) {
      return store_.write(*order.into, order.view, chunk.chunk, Disk::Piece::of(chunk));
    });
    ++order.copied;
    return read ? false : over(read);
  }
  if (syncs_) store_.sync(*order.into);
  return over(store_.record(*order.into));
}

}  // namespace tributary::sim
