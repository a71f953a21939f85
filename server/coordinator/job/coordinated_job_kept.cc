// State that servers keep of a job between two views: who is asked for it, and how it becomes a snapshot before one of
// them goes.
#include <algorithm>
#include <utility>

#include "server/coordinator/job/coordinated_job.h"
#include "server/coordinator/round/snapshots_asked.h"

namespace tributary {
namespace {

// Servers without chunks do not count.
Round least_of(const BetweenViews& between, const std::set<std::uint16_t>& shards) {
  Version least{~0ull};
  for (const auto& [server, kept] : between.kept) {
    if (shards.contains(server)) least = std::min(least, kept.min_version);
  }
  return Round(least.value);
}

}  // namespace

// Servers that have not said what they keep are asked again: the question may have been dropped. While nodes wait for
// others, those that keep something hear that it is still wanted.
void CoordinatedJob::ask_again(std::uint64_t now_ms) {
  const BetweenViews* between = this->between();
  if (!between) asked_ms_ = now_ms;  // they are asked when the view ends
  if (servers() == 0 || record().job.value == 0 || now_ms < asked_ms_ + kAskAgainMs) return;
  asked_ms_ = now_ms;
  std::set<std::uint16_t> whom = between->asked;
  if (!members().empty()) {
    for (const auto& [server, kept] : between->kept) whom.insert(server);
  }
  for (const auto& [index, server] : ledger_.context.peers.servers()) {
    if (server.alive && whom.contains(index)) ledger_.context.output.send(server.peer, ledger_.cut_message());
  }
}

void CoordinatedJob::on(std::uint16_t server, const ShardKept& m, std::uint64_t now_ms) {
  BetweenViews* between = this->between();
  if (!between) return;  // of a view before
  const auto had = between->kept.find(server);
  const bool repeated = had == between->kept.end() ? !m.any
                                                   : m.any && had->second.min_version == m.min_version &&
                                                         had->second.max_version == m.max_version;
  if (!repeated) reconsider();  // servers that are asked again repeat their answer
  between->asked.erase(server);
  if (m.any) {
    between->kept[server] = {m.job, m.min_version, m.max_version, false};
  } else if (between->kept.erase(server) != 0) {
    ledger_.log(in_words() + ": server " + std::to_string(server) + " keeps its state of the last view no longer",
                LogLevel::kWarning);
  }
  look_at_kept(now_ms);
}

// It says what it has.
void CoordinatedJob::on(const ServerHello& hello, bool known, std::uint64_t now_ms) {
  if (!known) ledger_.placed.comes(hello.shard.value);
  // A view began without this server. The next one has it: what it has of rounds since is not this job's.
  if (!known && servers() != 0 && in_view()) {
    const std::string comes = "server " + std::to_string(hello.shard.value) + " is there";
    if (is<OpeningView>()) gather_again(comes, now_ms);
    if (RunningView* running = std::get_if<RunningView>(&phase_); running && !running->ends()) restart(comes, now_ms);
  }
  if (known) drop_older();
  BetweenViews* between = this->between();
  if (!between) return;
  reconsider();
  const std::uint16_t server = hello.shard.value;
  if (!known) {
    between->kept.erase(server);
    between->asked.erase(server);
  }
  const auto kept = std::ranges::find(hello.kept, record().job, &KeptJob::job);
  if (kept != hello.kept.end() && record().job.value != 0) {
    if (kept->pending) {
      between->asked.insert(server);
    } else {
      between->kept[server] = *kept;
      between->asked.erase(server);  // what it said of that before may not have arrived
    }
  }
  look_at_kept(now_ms);
}

// Somebody goes who keeps a part of it. When all servers have said what they keep, that becomes a snapshot.
void CoordinatedJob::save_kept(const std::string& who, std::uint64_t now_ms) {
  BetweenViews* between = this->between();
  if (!between || servers() == 0 || loading() || removing()) return;
  between->going = who;
  look_at_kept(now_ms);
}

void CoordinatedJob::look_at_kept(std::uint64_t now_ms) {
  BetweenViews* between = this->between();
  if (!between || between->going.empty() || !between->asked.empty() || ledger_.keeper.saves_view()) return;
  if (ledger_.context.checkpoints.writes_from_memory(config().name)) return;  // then it is
  const std::string who = std::exchange(between->going, {}) + " was told to stop";
  Round round = least_of(*between, shards());
  // A server that was still being brought up to the others has nothing to save, and hides no loss of theirs.
  if (round <= record().committed) round = std::max(round, ledger_.reached);
  if (between->kept.empty() || round <= record().committed || kept_tried_ == record().view) return;
  kept_tried_ = record().view;
  if (const std::string why = why_not_saved(*between, round); !why.empty()) {
    if (!ledger_.context.peers.all_have_stores() && declines_snapshots(config().snapshot)) return;
    ledger_.not_saved = who + ", and " + why;
    return ledger_.log("the state of " + in_words() + " at round " + std::to_string(round.value) +
                           " is not saved: " + ledger_.outcome(round, false).message,
                       LogLevel::kError);
  }
  ledger_.last_stop = who;
  ledger_.log(in_words() + " has round " + std::to_string(round.value) +
              " in its servers' memory, which becomes a snapshot: " + who);
  phase_.emplace<StoppingView>(ledger_, JobView{}, StopKind::kStopped, round, now_ms).begin(now_ms);
}

std::optional<Round> CoordinatedJob::round_in_memory() const {
  const BetweenViews* between = this->between();
  if (!between || !store_broken() || !between->asked.empty() || between->kept.empty()) return std::nullopt;
  const Round round = least_of(*between, shards());
  if (round <= record().committed || !why_not_saved(*between, round).empty()) return std::nullopt;
  return ledger_.rewinds() && !ledger_.keeper.has_whole_state(round) ? std::nullopt : std::optional(round);
}

// Empty: what servers keep can be written as the state of this round.
std::string CoordinatedJob::why_not_saved(const BetweenViews& between, Round round) const {
  if (!ledger_.context.peers.all_have_stores()) return "not all servers have a store";
  for (const std::uint16_t shard : shards()) {
    const auto kept = between.kept.find(shard);
    const std::string server = "server " + std::to_string(shard);
    if (kept == between.kept.end()) return server + " has nothing of it in memory";
    if (kept->second.min_version.value < round.value)
      return server + " was still being brought up to it, from round " + std::to_string(kept->second.min_version.value);
    if (kept->second.max_version.value != round.value)
      return server + " has some chunks of round " + std::to_string(kept->second.max_version.value) + " already";
  }
  if (!ledger_.plan().push->keeps_residual()) return {};
  return "what nodes have yet to say (push = \"" + ledger_.plan().push->name() + "\") is in their memory alone";
}

}  // namespace tributary
