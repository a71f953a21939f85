#include "tests/sim/operator_sim.h"

#include <algorithm>

#include "common/base/checksum.h"
#include "tests/sim/cluster_world.h"

namespace tributary::sim {
namespace {

constexpr std::uint64_t kOperatorLookNs = 50 * kMs;
constexpr std::uint64_t kOperatorPatienceNs = 120'000 * kMs;  // several saves on a slow disk, of schedules, too
constexpr std::uint64_t kDealPatienceNs = 10'000 * kMs;       // where it is refused
constexpr char kDirectory[] = "/checkpoints";

}  // namespace

void OperatorSim::save(bool committed) {
  saves_.push_back({.committed = committed, .begun_ns = world_.clock.now_ns()});
  look_soon();
}

void OperatorSim::restore() {
  if (restoring_) return;
  restoring_ = Restoring::kNoCheckpoint;
  restore_ = {.begun_ns = world_.clock.now_ns()};
  look_soon();
}

void OperatorSim::deal(std::set<std::uint16_t> without) {
  deals_.push_back({std::move(without), world_.clock.now_ns()});
  look_soon();
}

void OperatorSim::look_soon() {
  if (std::exchange(looks_, true)) return;
  world_.clock.after(kOperatorLookNs, [this] {
    looks_ = false;
    look();
    if (!idle()) look_soon();
  });
}

void OperatorSim::look() {
  std::erase_if(saves_, [this](Order& save) { return !look_at(save); });
  std::erase_if(deals_, [this](Deal& deal) { return !look_at(deal); });
  if (restoring_) go_on();
}

CoordinatorCore* OperatorSim::coordinator() const {
  const ServerSim* server = world_.cluster.chief();
  return server ? server->coordinator() : nullptr;
}

std::uint64_t OperatorSim::coordinator_id() const {
  return world_.cluster.chief()->coordinator_id();
}

void OperatorSim::check_patience(std::uint64_t begun_ns, const std::string& what) const {
  if (world_.clock.now_ns() > std::max(begun_ns, world_.cluster.faults_over_ns()) + kOperatorPatienceNs) {
    world_.broken(what + " does not come to its end: " + refused_);
  }
}

bool OperatorSim::look_at(Order& save) {
  CoordinatorCore* core = coordinator();
  if (save.id == 0) {
    if (!core || keeps_trainers()) return !world_.over();  // while there is something to save
    const std::uint64_t now_ms = world_.clock.now_ns() / kMs;
    const Result<std::uint64_t> id =
        core->save_checkpoint({world_.scenario.job, kDirectory, "now", save.committed}, now_ms);
    if (!id) {
      refused_ = id.error().message;
      return !world_.over();  // there is no state yet, or another order is under way
    }
    save.id = *id;
    save.coordinator = coordinator_id();
    save.begun_ns = world_.clock.now_ns();
    return true;
  }
  if (!core || coordinator_id() != save.coordinator) return false;  // nobody knows of it any more
  const std::optional<CheckpointStatus> status = core->checkpoint(save.id);
  if (!status) world_.broken("the coordinator has forgotten an order");
  if (!status) return false;
  if (!status->over()) {
    check_patience(save.begun_ns, "a save");
    return true;
  }
  if (status->step == CheckpointStep::kDone) {
    ++saved_;
    world_.say("operator", "has '" + status->path + "'");
    world_.checkpoints_judge.saved(*status, world_.cluster.checkpoints);
    if (const auto* directory = world_.cluster.checkpoints.whole(status->path))
      saved_parts_ += directory->large_parts.size();
    newest_ = status->path;
  } else {
    ++failed_;
    world_.say("operator", "has no checkpoint: " + status->message);
    if (status->message.empty()) world_.broken("a save failed for no reason");
  }
  return false;
}

bool OperatorSim::look_at(Deal& deal) {
  CoordinatorCore* core = coordinator();
  const std::uint64_t started = world_.cluster.servers_started();
  if (world_.over()) return false;
  if (deal.coordinator == 0) {
    if (!core) return true;
    const Result<std::uint64_t> servers =
        core->deal_job(world_.scenario.job, deal.without, world_.clock.now_ns() / kMs);
    if (!servers) {
      refused_ = servers.error().message;
      return world_.clock.now_ns() < deal.begun_ns + kDealPatienceNs;  // perhaps a server is away
    }
    deal.coordinator = coordinator_id();
    deal.servers_started = started;
    deal.begun_ns = world_.clock.now_ns();
    world_.say("operator", "has ordered that chunks go to others");
    return true;
  }
  if (!core || coordinator_id() != deal.coordinator || started != deal.servers_started) return false;
  if (&deal != &deals_.back() && deals_.back().coordinator != 0) return false;  // the last one counts
  const JobRecord* record = core->record(world_.scenario.job);
  const bool done = record && std::ranges::none_of(record->owners, [&](const ChunkOwner& owner) {
                      return deal.without.contains(owner.shard.value);
                    });
  if (!done) {
    check_patience(deal.begun_ns, "an order to deal chunks");
    return true;
  }
  if (!deal.without.empty()) ++world_.cluster.outcome().ordered;
  return false;
}

void OperatorSim::go_on() {
  CoordinatorCore* core = coordinator();
  switch (*restoring_) {
    case Restoring::kNoCheckpoint:
      if (newest_.empty() && world_.over()) {  // it has come to its end before
        restoring_.reset();
      } else if (newest_.empty()) {
        if (saves_.empty()) save(false);
      } else if (saves_.empty()) {
        restoring_ = Restoring::kStopping;
        world_.say("operator", "stops the trainers");
        world_.stop_trainers();
        if (world_.cluster.changes_servers()) begin_anew();
      }
      return;
    case Restoring::kStopping: {
      check_patience(restore_.begun_ns, "a restore");
      if (!core) return;
      return give_restore(*core);
    }
    case Restoring::kRestoring: {
      check_patience(restore_.begun_ns, "a restore");
      restoring_ = Restoring::kStopping;  // unless it is still under way, or done
      if (!core || coordinator_id() != restore_.coordinator) return;
      const std::optional<CheckpointStatus> status = core->checkpoint(restore_.id);
      if (!status) return world_.broken("the coordinator has forgotten an order");
      if (!status->over()) {
        restoring_ = Restoring::kRestoring;
        return;
      }
      refused_ = status->message;
      if (status->step == CheckpointStep::kFailed) return;
      world_.say("operator", "has restored '" + newest_ + "', and starts the trainers");
      ++restored_;
      world_.judge.restored(status->round);
      world_.parts_judge.restored();
      restoring_.reset();
      world_.start_trainers();
    }
  }
}

void OperatorSim::give_restore(CoordinatorCore& core) {
  const CheckpointFiles::Directory* directory = world_.cluster.checkpoints.whole(newest_);
  if (!directory) return world_.broken("'" + newest_ + "' is no checkpoint any more");
  RestoreOrder order;
  const Result<Manifest> manifest = manifest_from_json(directory->manifest);
  if (!manifest) return world_.broken(manifest.error().message);
  order.manifest = *manifest;
  order.manifest_checksum = checksum_hex(directory->manifest);
  order.directory = newest_;
  order.name = world_.scenario.job;
  order.force = true;
  const Result<std::uint64_t> id = core.restore_checkpoint(order, world_.clock.now_ns() / kMs);
  if (!id) {  // its nodes have not left yet, servers are away
    refused_ = id.error().message;
    return;
  }
  restore_.id = *id;
  restore_.coordinator = coordinator_id();
  restoring_ = Restoring::kRestoring;
}

void OperatorSim::begin_anew() {
  world_.say("operator", "starts other servers");
  world_.cluster.replace_servers();
}

}  // namespace tributary::sim
