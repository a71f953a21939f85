// Servers come and go (docs/failover.md): when the job's chunks go to others, and what a server that stops waits for.
#include <utility>

#include "server/coordinator/job/coordinated_job.h"

namespace tributary {

// With membership.on_server_loss = "continue" it goes on with the servers that stay (change_due()).
bool CoordinatedJob::goes_on_without(std::uint16_t server) const {
  const CoordinatorContext& context = ledger_.context;
  const bool others = ledger_.placed.can_change() && !context.draining;
  const bool can = context.peers.all_have_stores() && !store_broken();
  return config().membership.on_server_loss == OnLoss::kContinue && others && can && !idle() && !stopping() &&
         ShardIndex(server) != context.peers.home();
}

bool CoordinatedJob::needs_server(std::uint16_t server) const {
  if (servers() == 0) return false;
  // Its part of a job whose chunks went to other servers stays until these have copies.
  if (ledger_.keeper.has_older_on(server)) return true;
  if (loading()) return true;
  if (record().initialised && !shards().contains(server)) return false;
  return goes_on_without(server) ? record().initialised && shards().contains(server) : needs_servers();
}

// The first time that it is known to stop.
void CoordinatedJob::server_leaves(std::uint16_t server, std::uint64_t now_ms) {
  if (servers() == 0) return;
  reconsider();
  if (is<OpeningView>()) gather_again("server " + std::to_string(server) + " was told to stop", now_ms);
}

// Repeated, until it has ended: a view may have begun or ended since.
void CoordinatedJob::server_stops(std::uint16_t server, std::uint64_t now_ms) {
  if (servers() == 0 || (record().initialised && !shards().contains(server))) return;
  const std::string who = "server " + std::to_string(server);
  if (goes_on_without(server)) {
    // Without a snapshot it would begin anew.
    if (!record().initialised && kept_by_servers() && !ledger_.keeper.saves_view()) save_kept(who, now_ms);
    return;
  }
  request_stop(who + " was told to stop");
  save_kept(who, now_ms);
}

std::optional<JobServers::Change> CoordinatedJob::change_due(std::uint64_t now_ms) const {
  const CoordinatorContext& context = ledger_.context;
  const bool busy = ledger_.keeper.saves() || loading() || removing() || saves_kept();
  if (busy || context.draining || context.copies.searching()) return std::nullopt;
  if (const RunningView* running = std::get_if<RunningView>(&phase_)) {
    return running->may_change_servers() ? ledger_.change(now_ms) : std::nullopt;
  }
  // Without a snapshot it begins anew, with the servers that are there.
  if (!between() || !record().initialised) return std::nullopt;
  const auto change = ledger_.change(now_ms);
  const bool due = change && (ledger_.placed.ordered() || (is<GatheringJob>() && change->lacks));
  return due ? change : std::nullopt;
}

Status CoordinatedJob::leave_servers(const std::string& what, std::uint64_t now_ms) {
  if (is<RunningView>()) restart("it is being " + what, now_ms);
  const Result<bool> newest = take_newest({});
  if (!newest) return tl::unexpected(newest.error());
  if (!*newest) return fail(ErrorCode::kStore, "it has no snapshot yet");
  const auto copy = ledger_.keeper.copy_of_state();
  if (!copy) return {};
  ledger_.keeper.fetch(record().committed, now_ms);
  return fail(ErrorCode::kUnavailable, "large parts of what its ranks keep are being fetched from " + *copy);
}

bool CoordinatedJob::dealt_is_copied(const JobRecord& record, std::uint64_t now_ms) {
  SnapshotCopies& copies = *std::get<IdleJob>(phase_).loading->copies;
  const SnapshotCopies::Snapshot dealt{record.job, record.view, record.committed, shards_of(record)};
  copies.order(config().snapshot, dealt, false, now_ms);
  return copies.settled(config().snapshot, dealt);
}

JobRecord CoordinatedJob::record_on(std::vector<ChunkOwner> owners, JobId id) const {
  JobRecord dealt = record();
  dealt.job = id;
  dealt.owners = std::move(owners);
  dealt.edition = 0;
  dealt.provisional = false;
  // The higher view counts, where two records have one name: a disk may have a record of the view that comes next.
  dealt.view = record().view.next().next();
  return dealt;
}

void CoordinatedJob::drop_older(bool again) {
  if (!ledger_.keeper.has_older()) return;
  const SnapshotCopies::Snapshot newest = ledger_.snapshot(record().committed);
  const bool safe = ledger_.keeper.saved() && ledger_.copies.safe(config().snapshot, newest) &&
                    ledger_.context.record_is_copied(record()) &&
                    !ledger_.context.parts.holders().copies_of(record().job, ledger_.keeper_of_parts());
  if (safe || !record().initialised) ledger_.keeper.drop_older(again);
}

}  // namespace tributary
