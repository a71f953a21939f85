// The registry and its copies on servers (docs/recovery.md, "The registry"): what is lost is looked for, and who lacks a
// copy gets it.
#include <algorithm>
#include <set>
#include <utility>

#include "common/config/job_json.h"
#include "server/coordinator/coordinator_core.h"

namespace tributary {
namespace {

// A record from a copy is newer than any that was lost, and its next view later than any that was given out. Another
// coordinator may have begun with the same copy: the time of day tells them apart.
constexpr std::uint64_t kEditionsApart = 1u << 20;
constexpr std::size_t kCopiesAtOnce = 16;  // of records, to a server that lacks more
constexpr std::uint64_t kCopiesEveryMs = 1000;

}  // namespace

// Stored jobs that the registry does not know: no other node will name them.
void CoordinatorCore::report_strangers(std::uint16_t index, const ServerHello& m) {
  for (const StoredJob& stored : m.stored) {
    const auto known = jobs_.find(stored.name);
    if (stored.snapshots.empty() || (known != jobs_.end() && known->second.knows(stored.job))) continue;
    context_.output.log("server " + std::to_string(index) + "'s store has " + newest_in_words(stored) + " of job '" +
                        stored.name + "' (job id " + std::to_string(stored.job.value) +
                        "), which the registry does not know; if it is not wanted, `tributary job remove " +
                        stored.name + "` deletes it");
  }
}

void CoordinatorCore::on(PeerId from, const HeldRecord& m, std::uint64_t) {
  const Peers::Server* server = context_.peers.server_at(from);
  if (!server) return;
  context_.copies.holds(server->hello.shard.value, m);
  if (CoordinatedJob* job = job_with(m.job)) job->drop_older();
}

void CoordinatorCore::on(PeerId from, const JobRecordCopy& m, std::uint64_t now_ms) {
  const Peers::Server* server = context_.peers.server_at(from);
  if (!server || !context_.copies.searching()) return;
  if (const Status taken = context_.copies.take(server->hello.shard.value, m); !taken) {
    context_.output.log("a copy is left out: " + taken.error().message, LogLevel::kWarning);
  }
  search(now_ms);
}

// The newest snapshot that may have been committed, by what stores have: of each server's part there is the part, or a
// copy. The coordinator's server has lost its part with the registry: where no round has a copy of that, the others'
// parts decide.
std::optional<Round> CoordinatorCore::newest_committed(const JobRecord& record) const {
  const Peers& peers = context_.peers;
  std::set<std::uint16_t> shards = shards_of(record);
  const auto newest_of_all = [&]() -> std::optional<Round> {
    std::set<Round> common = peers.snapshots_or_copies(*shards.begin(), record.job);
    for (const std::uint16_t shard : shards) {
      const std::set<Round> rounds = peers.snapshots_or_copies(shard, record.job);
      std::erase_if(common, [&](Round round) { return !rounds.contains(round); });
    }
    return common.empty() ? std::nullopt : std::optional(*common.rbegin());
  };
  if (const auto newest = shards.empty() ? std::nullopt : newest_of_all()) return newest;
  shards.erase(peers.home().value);
  return shards.empty() ? peers.newest_stored(record.job) : newest_of_all();
}

// Is each server's part of the record's snapshot there, or a copy of it?
bool CoordinatorCore::is_whole(const JobRecord& record) const {
  return std::ranges::all_of(shards_of(record), [&](std::uint16_t shard) {
    return context_.peers.snapshots_or_copies(shard, record.job).contains(record.committed);
  });
}

// Without a server that stays away, if a job of the registry is to go on without: each view's servers have its record. A
// registry without jobs may be a lost one.
bool CoordinatorCore::enough_to_search(std::uint64_t now_ms) const {
  const Peers& peers = context_.peers;
  if (peers.all_servers(context_.given_up)) return true;
  if (!context_.may_decide() || (context_.options.moved && context_.options.term == Term())) return false;
  for (std::uint16_t index = 0; index < context_.options.servers; ++index) {
    if (peers.alive(index) || context_.given_up.contains(index)) continue;
    if (now_ms < context_.since_ms(index) + context_.options.peer_timeout_ms) return false;
  }
  return std::ranges::any_of(jobs_, [](const auto& entry) {
    const CoordinatedJob& job = entry.second;
    return job.record().job.value != 0 && job.config().membership.on_server_loss == OnLoss::kContinue;
  });
}

// Looks for records that are newer than the registry's, when all servers have said which copies they have.
void CoordinatorCore::search(std::uint64_t now_ms) {
  RegistryCopies& copies = context_.copies;
  if (!copies.searching() || adopting_ || !enough_to_search(now_ms)) return;
  if (const auto asked = copies.question(now_ms)) {
    return context_.output.send(context_.peers.servers().at(asked->first).peer, asked->second);
  }
  if (!copies.complete()) return;
  std::map<JobId, JobRecord> newest = copies.found();
  if (context_.options.moved) {
    for (const auto& [name, job] : jobs_) {
      if (on_servers(job.config()) && job.record().job.value != 0) newest.try_emplace(job.record().job, job.record());
    }
  }
  if (newest.empty() && !context_.options.moved) return end_search(now_ms);
  std::vector<JobRecord> records;
  for (const auto& [id, record] : newest) records.push_back(renewed(record));
  // Two records of one name keep their order: the one with the later view counts.
  std::ranges::sort(records, {}, [&](const JobRecord& record) { return newest.at(record.job).view; });
  for (std::size_t i = 1; i < records.size(); ++i) {
    records[i].view = std::max(records[i].view, records[i - 1].view.next());
  }
  const std::string jobs = std::to_string(records.size()) + (records.size() == 1 ? " job" : " jobs");
  context_.output.log(context_.options.moved
                          ? "the coordinator has moved here, with the newest records of " + jobs
                          : "the registry in " + context_.peers.home_in_words() + "'s store lacks the records of " +
                                jobs + ", or has older ones; it gets the copies of other servers",
                      LogLevel::kWarning);
  adopting_ = true;
  context_.output.adopt(std::move(records));
}

void CoordinatorCore::end_search(std::uint64_t now_ms) {
  context_.copies.end_search();
  drop_unnamed_parts();
  for (const auto& [index, server] : context_.peers.servers()) {
    if (!server.hello.copies.empty()) report_strangers(index, server.hello);
  }
  for (auto& [name, job] : jobs_) open_if_complete(job, now_ms);
}

// A record that the registry did not have, or that another coordinator had last.
JobRecord CoordinatorCore::renewed(JobRecord record) const {
  const std::uint64_t clock_ms = context_.output.wall_ms();
  record.edition = std::max(record.edition + kEditionsApart, clock_ms);
  record.view = std::max(record.view.next(), ViewId(static_cast<std::uint32_t>(clock_ms / 1000)));
  // A copy may be older than the newest snapshot. Then the job asks for that, and does not begin anew.
  // With on_state_lost = "rewind" a snapshot counts with what ranks kept alone, which no record has then: the job goes
  // back to the record's, or is refused, if that is gone.
  const auto newest = newest_committed(record);
  const auto config = job_from_json(record.job_json);
  const bool rewinds = config && config->membership.on_state_lost == OnStateLost::kRewind;
  if (newest && !rewinds && (!has_progress(record) || !is_whole(record))) {
    record.rank_states.clear();  // of another round
    record.initialised = true;
    record.committed = *newest;
  }
  return record;
}

void CoordinatorCore::not_adopted(const Error& error) {
  adopting_ = false;  // and again, in a while
  context_.output.log("cannot save the registry, and tries again: " + error.message, LogLevel::kError);
}

// To servers that were away, or whose copies were lost on their way; a few at a time.
void CoordinatorCore::spread_copies(std::uint64_t now_ms) {
  if (context_.copies.searching()) return;
  context_.parts.holders().keep_known([&](JobId id) {
    const auto has_copy = [&](const auto& entry) {
      return std::ranges::find(entry.second.hello.copies, id, &HeldRecord::job) != entry.second.hello.copies.end();
    };
    return context_.checkpoints.restores(id) || context_.peers.stores(id) ||
           std::ranges::any_of(context_.peers.servers(), has_copy) ||
           std::ranges::any_of(jobs_, [&](const auto& entry) { return entry.second.knows(id); });
  });
  std::map<std::uint16_t, std::size_t> sent;
  for (const auto& [name, job] : jobs_) {
    const JobRecord* record = job.copied_record();
    for (const auto& [index, server] : context_.peers.servers()) {
      if (!record || !context_.keeps_copies(server) || sent[index] == kCopiesAtOnce) continue;
      if (!context_.copies.lacks(index, *record, now_ms)) continue;
      context_.copy_to(server, *record, now_ms);
      ++sent[index];
    }
  }
}

void CoordinatorCore::tick_copies(std::uint64_t now_ms) {
  if (now_ms < copies_due_ms_) return;
  copies_due_ms_ = now_ms + kCopiesEveryMs;
  search(now_ms);
  spread_copies(now_ms);
}

}  // namespace tributary
