#include "server/coordinator/job/stopping_view.h"

#include <algorithm>
#include <utility>

#include "server/coordinator/round/snapshot_schedule.h"
#include "server/coordinator/round/snapshots_asked.h"

namespace tributary {

StoppingView::StoppingView(JobLedger& ledger, JobView ended, StopKind kind, Round round, std::uint64_t now_ms)
    : view(std::move(ended)),
      ledger_(ledger),
      kind_(kind),
      round_(round),
      since_ms_(now_ms),
      answers_(kAnswersPatienceMs, now_ms) {
  for (const auto& [node, member] : view.members) {
    const bool there = !member.left && ledger_.context.peers.worker(member.worker);
    if (there && ledger_.servers() != 0) lacking_.insert(node);
  }
}

StopJob StoppingView::message() const {
  return {ledger_.record().job, ledger_.record().view, kind_, round_, ledger_.last_stop};
}

void StoppingView::begin(std::uint64_t now_ms) {
  if (lacking_.empty()) order_servers(now_ms);
  ledger_.send(view.members, message());
}

void StoppingView::order_servers(std::uint64_t now_ms) {
  ordered_ = true;
  since_ms_ = now_ms;
  if (!view.members.empty()) return ledger_.send_servers(message());
  // Between views those that have a part of it alone know of it.
  for (const std::uint16_t shard : ledger_.shards()) {
    const Peers::Server* server = ledger_.context.peers.alive(shard);
    if (server) ledger_.context.output.send(server->peer, message());
  }
}

void StoppingView::needs_nothing(std::uint32_t node, std::uint64_t now_ms) {
  const bool lacked = lacking_.erase(node) != 0;
  if (ordered_) return still_going();
  if (lacked && lacking_.empty()) order_servers(now_ms);
}

void StoppingView::still_going() const {
  if (ordered_) ledger_.send_servers(message());
}

StoppingView::Over StoppingView::on(std::uint16_t server, const SnapshotDone& m, std::uint64_t now_ms) {
  const std::set<std::uint16_t> parts = ledger_.shards();
  // A server's report from before the stop's order is repeated after the order.
  if (recording_ || !ordered_ || round_ != m.round || !parts.contains(server)) return std::nullopt;
  if (!m.ok) {
    ledger_.snapshot_failed(server, m);
    failed_ = true;
  }
  done_.insert(server);
  return look_for_copies(now_ms);
}

StoppingView::Over StoppingView::look_for_copies(std::uint64_t now_ms) {
  if (!ordered_ || recording_ || awaited_ || ledger_.servers() == 0) return std::nullopt;
  const bool copied = failed_ || ledger_.copied(round_, false, now_ms);
  if (!std::ranges::includes(done_, ledger_.shards())) return std::nullopt;
  if (failed_) return end_unsaved();
  if (!copied) return std::nullopt;
  if (!waits(now_ms)) return commit(now_ms);
  awaited_.emplace(round_, now_ms);
  return std::nullopt;
}

StoppingView::Over StoppingView::commit(std::uint64_t now_ms) {
  ledger_.commit(round_, kind_ == StopKind::kFinished, now_ms);
  awaited_.reset();
  recording_.emplace(kWritingPatienceMs, now_ms);
  return std::nullopt;
}

StoppingView::Over StoppingView::recorded(std::uint64_t now_ms) {
  if (!recording_) return std::nullopt;
  const JobRecordKeeper& keeper = ledger_.keeper;
  const bool over = (keeper.failing() && !keeper.saves()) || recording_->over(0, now_ms);
  // All-reduce: the state is where it was to be, and the record follows.
  if (keeper.saved() || (over && ledger_.servers() == 0)) {
    tell_saved(true);
    return BetweenViews{};
  }
  if (!over) return std::nullopt;
  ledger_.not_saved =
      ledger_.context.peers.home_in_words() + " cannot record the snapshot, and tries again while it runs";
  failed_ = true;
  return end_unsaved();
}

StoppingView::Over StoppingView::look_for_state(std::uint64_t now_ms) {
  if (!awaited_) return std::nullopt;
  if (!waits(now_ms)) return commit(now_ms);
  const bool nobody_left = std::ranges::none_of(
      view.members, [&](const auto& entry) { return ledger_.context.peers.worker(entry.second.worker); });
  if (!awaited_->over(ledger_, now_ms) && !nobody_left) return std::nullopt;
  if (!ledger_.lacks_state(round_, now_ms)) return commit(now_ms);  // without what did not come
  ledger_.not_saved = awaited_->why();
  ledger_.context.peers.forget_snapshots(ledger_.record().job, [&](Round of) { return of == round_; });
  failed_ = true;
  return end_unsaved();
}

// A final snapshot may take as long as servers that have yet to write their part say with every heartbeat that they
// still have the job. One that says so no more (what it was told, or its answer, was lost) is waited for so long.
StoppingView::Over StoppingView::tick(std::uint64_t now_ms) {
  if (recording_) return recorded(now_ms);
  if (awaited_) return look_for_state(now_ms);
  if (!ordered_) {
    if (answers_.over(answers_of(view.members), now_ms)) order_servers(now_ms);
    return std::nullopt;
  }
  if (const Over over = look_for_copies(now_ms); over || std::ranges::includes(done_, ledger_.shards())) return over;
  if (now_ms <= since_ms_ + kWritingPatienceMs ||
      !ledger_.paces.silent(ledger_.shards(), done_, JobPaces::Sign::kHasJob, kWritingPatienceMs, now_ms)) {
    return std::nullopt;
  }
  if (ledger_.not_saved.empty()) ledger_.not_saved = kNotInTime;
  return end_unsaved();
}

StoppingView::Over StoppingView::kept_by_node_zero(const SnapshotDone& m, std::uint64_t now_ms) {
  if (recording_) return std::nullopt;
  if (!m.ok || m.round < round_) {
    failed_ = !m.ok || m.round.value != 0;
    ledger_.not_saved = !m.ok                ? m.message
                        : m.round.value == 0 ? "node 0 keeps no checkpoints; set [store] path in its worker.toml"
                                             : "node 0 stopped at round " + std::to_string(m.round.value);
    return end_unsaved();
  }
  ledger_.not_saved.clear();
  ledger_.keeper.end(m.round, kind_ == StopKind::kFinished);
  recording_.emplace(kWritingPatienceMs, now_ms);
  return std::nullopt;
}

StoppingView::Over StoppingView::node_zero_lost(const std::string& reason) {
  if (recording_) return std::nullopt;  // it had said so
  failed_ = true;
  ledger_.not_saved = reason + ", and had not said that its last checkpoint is written";
  return end_unsaved();
}

// The state that the job stopped with is not durable everywhere. It is in the servers' memory still, and the next view
// can begin with it.
BetweenViews StoppingView::end_unsaved() {
  const JobConfig& config = ledger_.config();
  const std::string round = std::to_string(round_.value);
  // Where there is no store and nobody asked for one, a job that has come to its end has given all it was to give; one
  // that was to keep nothing has so wherever it stops.
  const bool stores =
      ledger_.servers() != 0 ? ledger_.context.peers.all_have_stores() : failed_;  // else node 0 has none
  const bool wanted =
      kind_ == StopKind::kFinished ? asks_for_snapshots(config.snapshot) : !declines_snapshots(config.snapshot);
  const bool missed = stores || wanted;
  if (missed) {
    ledger_.log("the state of " + ledger_.in_words() + " at round " + round +
                    " is not saved: " + ledger_.outcome(round_, false).message,
                LogLevel::kError);
  } else {
    ledger_.not_saved.clear();
  }
  tell_saved(!missed);
  if (!has_rounds(config)) return {};
  ledger_.send_servers(StopJob{ledger_.record().job, ledger_.record().view, StopKind::kRestart,
                               ledger_.record().committed, "the state of round " + round + " could not be written"});
  return ledger_.ask_kept();
}

}  // namespace tributary
