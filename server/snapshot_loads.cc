#include "server/snapshot_loads.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/config/job_json.h"

namespace tributary {

bool SnapshotLoad::serves(const ViewPlan& other) const {
  return view->start == other.start && view->nodes == other.nodes && view->layout->hash() == other.layout->hash() &&
         std::ranges::equal(view->layout->owners(), other.layout->owners()) &&
         view->model_ranks.by_rank() == other.model_ranks.by_rank() &&
         to_canonical_json(view->plan->config) == to_canonical_json(other.plan->config);
}

SnapshotLoads::SnapshotLoads(const StoredRounds& stored, SnapshotFetches& fetches, ShardIndex own, Logger logger,
                             Ended ended)
    : stored_(stored), fetches_(fetches), own_(own), logger_(std::move(logger)), ended_(std::move(ended)) {}

void SnapshotLoads::start(std::vector<LaneCommands*> lanes, StoreOrders* orders) {
  lanes_ = std::move(lanes);
  orders_ = orders;
}

void SnapshotLoads::begin(const Load& load, const SnapshotInfo& snapshot, const ServerEntry& copy) {
  if (!copy.copy_endpoint.empty() && !stored_.has(snapshot.job, snapshot.round)) return fill(load, snapshot, copy);
  orders_->load(snapshot, into_lanes(load), [this, load, snapshot, copy](const Status& status) {
    const bool damaged = !status && status.error().code == ErrorCode::kStore;
    if (!damaged || copy.copy_endpoint.empty() || !load->wanted) return ended_(load, status);
    logger_->error("{}", status.error().message);
    fill(load, snapshot, copy);
  });
}

void SnapshotLoads::fill(const Load& load, const SnapshotInfo& snapshot, const ServerEntry& copy) {
  const CopySnapshot order{snapshot.job, snapshot.round, snapshot.shard, copy, load->view->view, false};
  fetches_.fill(order, [this, load, snapshot](const Status& there) {
    if (!load->wanted) return ended_(load, fail(ErrorCode::kStopped, "nobody wants it any more"));
    if (there) return orders_->load(snapshot, into_lanes(load), [this, load](const Status& all) { ended_(load, all); });
    // Soon it may be there.
    ended_(load,
           fail(ErrorCode::kUnavailable, "server " + std::to_string(own_.value) + "'s store lacks its part of round " +
                                             std::to_string(snapshot.round.value) + " of job '" + snapshot.job_name +
                                             "', and a copy cannot be had: " + there.error().message));
  });
}

// On the store's thread. Chunks that a lane has are not given to it again.
EachChunk SnapshotLoads::into_lanes(const Load& load) const {
  const std::vector<bool> none(load->view->layout->chunks(), false);
  if (load->given.empty()) load->given = none;
  return [load, seen = none, lanes = lanes_, own = own_](ChunkIndex chunk, ChunkState state) mutable -> Status {
    const ViewPlan& view = *load->view;
    if (!load->wanted) return fail(ErrorCode::kStopped, "nobody wants it any more");
    const std::uint32_t index = chunk.value;
    const bool ours = index < seen.size() && view.layout->owner(chunk).shard == own;
    // With clocks the version counts pushes; the lane checks the clocks.
    const bool other_round = !view.plan->has_clocks() && state.version.value != view.start.value;
    if (!ours || seen[index] || other_round) {
      return fail(ErrorCode::kStore, "the snapshot of round " + std::to_string(view.start.value) + " of job '" +
                                         view.name() + "' has chunk " + std::to_string(index) + " at version " +
                                         std::to_string(state.version.value) +
                                         (!ours         ? ", which does not belong to this server"
                                          : seen[index] ? " twice"
                                                        : ", which is another round") +
                                         "; start the server with the store it had");
    }
    seen[index] = true;
    if (load->given[index]) return {};
    load->given[index] = true;
    const std::uint64_t bytes = state.bytes();
    lanes[view.layout->owner(chunk).lane.value]->restore(view.job, view.view, chunk, std::move(state));
    load->bytes += bytes;
    return {};
  };
}

}  // namespace tributary
