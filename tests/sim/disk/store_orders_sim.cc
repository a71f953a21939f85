#include "tests/sim/disk/store_orders_sim.h"

namespace tributary::sim {

void StoreOrdersSim::load(SnapshotInfo info, EachChunk each, Done done) {
  Done ended = [failed = loads_(info.job), done = std::move(done)](const Status& status) {
    if (!status) failed();
    done(status);
  };
  const auto begin = [this, info = std::move(info)](Order& order) {
    order.status = store_.load(info, [&](ChunkIndex chunk, ChunkState state) -> Status {
      order.chunks.emplace_back(chunk, std::move(state));
      return {};
    });
  };
  orders_.push_back({.begin = begin, .step_ns = options_.chunk_ns, .done = std::move(ended), .each = std::move(each)});
  if (orders_.size() == 1) work_soon();
}

void StoreOrdersSim::run(std::function<Status()> work, Done done) {
  const auto begin = [work = std::move(work)](Order& order) { order.status = work(); };
  orders_.push_back({.begin = begin, .step_ns = options_.drop_ns, .done = std::move(done)});
  if (orders_.size() == 1) work_soon();
}

void StoreOrdersSim::work_soon() {
  owner_.after(orders_.front().step_ns, [this] { work(); });
}

void StoreOrdersSim::work() {
  Order& order = orders_.front();
  if (order.begin) std::exchange(order.begin, nullptr)(order);
  if (!order.chunks.empty()) {
    auto [chunk, state] = std::move(order.chunks.front());
    order.chunks.pop_front();
    if (const Status taken = order.each(chunk, std::move(state)); !taken) {
      order.chunks.clear();
      order.status = taken;
    }
    if (!order.chunks.empty()) return work_soon();
  }
  post_([done = std::move(order.done), status = std::move(order.status)] { done(status); });
  orders_.pop_front();
  if (!orders_.empty()) work_soon();
}

}  // namespace tributary::sim
