#include "server/coordinator/cluster/registry_copies.h"

#include "server/coordinator/cluster/job_record_seal.h"

namespace tributary {

void RegistryCopies::meet(std::uint16_t server, const std::vector<HeldRecord>& has) {
  lose(server);
  for (const HeldRecord& copy : has) holds(server, copy);
}

void RegistryCopies::lose(std::uint16_t server) {
  copies_.erase(server);
  wanted_.reset();
  if (asked_ && asked_->server == server) asked_.reset();
}

void RegistryCopies::forget(JobId job) {
  for (auto& [server, copies] : copies_) copies.erase(job);
}

bool RegistryCopies::has(std::uint16_t server, JobId job) const {
  const auto copies = copies_.find(server);
  if (copies == copies_.end()) return false;
  const auto copy = copies->second.find(job);
  return copy != copies->second.end() && copy->second.held;
}

bool RegistryCopies::lacks(std::uint16_t server, const JobFacts& record, std::uint64_t now_ms) const {
  const auto copies = copies_.find(server);
  if (copies == copies_.end() || !copies->second.contains(record.job)) return true;
  const Copy& copy = copies->second.at(record.job);
  return copy.held < record.edition && (copy.sent < record.edition || now_ms >= copy.sent_ms + kRepeatMs);
}

void RegistryCopies::sent(std::uint16_t server, const JobFacts& record, std::uint64_t now_ms) {
  Copy& copy = copies_[server][record.job];
  copy.sent = record.edition;
  copy.sent_ms = now_ms;
}

// The newest copies of jobs whose records are older, or lost. If the registry was empty, or is another server's now,
// those of any job are wanted.
const std::map<JobId, RegistryCopies::Wanted>& RegistryCopies::wanted() {
  if (wanted_) return *wanted_;
  wanted_.emplace();
  for (const auto& [server, copies] : copies_) {
    for (const auto& [job, copy] : copies) {
      const auto found = found_.find(job);
      const auto known = known_.find(job);
      const bool newer = found != found_.end()   ? copy.held > found->second.edition
                         : known != known_.end() ? copy.held > known->second
                                                 : none_on_servers_ || moved_;
      if (!copy.held || !newer) continue;
      const auto [best, first] = wanted_->try_emplace(job, Wanted{server, *copy.held});
      if (!first && *copy.held > best->second.edition) best->second = {server, *copy.held};
    }
  }
  return *wanted_;
}

std::optional<std::pair<std::uint16_t, WantRecord>> RegistryCopies::question(std::uint64_t now_ms) {
  if (!searching_ || (asked_ && now_ms < asked_->repeat_ms)) return std::nullopt;
  if (asked_ && ++asked_->repeats >= kRepeats) {  // it does not come: another server may have one
    copies_[asked_->server].erase(asked_->job);
    wanted_.reset();
    asked_.reset();
  }
  if (!asked_) {
    if (wanted().empty()) return std::nullopt;
    const auto& [job, best] = *wanted().begin();
    asked_ = {best.server, job};
  }
  asked_->repeat_ms = now_ms + kRepeatMs;
  return std::pair(asked_->server, WantRecord{asked_->job});
}

Status RegistryCopies::take(std::uint16_t server, const JobRecordCopy& copy) {
  if (!asked_ || asked_->server != server || asked_->job != copy.job) return {};  // answered twice
  if (copy.record.empty() && ++asked_->tries < kTries) return {};                 // it is asked again, in a while
  asked_.reset();
  const std::string what =
      "server " + std::to_string(server) + "'s copy of the record of job id " + std::to_string(copy.job.value);
  Result<JobRecord> record = records::record_in(copy, what);
  if (!record) {
    copies_[server].erase(copy.job);  // another server may have one
    wanted_.reset();
    return tl::unexpected(record.error());
  }
  copies_[server][copy.job].held = record->edition;
  found_.insert_or_assign(copy.job, std::move(*record));
  if (wanted_) wanted_->erase(copy.job);
  return {};
}

void RegistryCopies::end_search() {
  searching_ = false;
  wanted_.reset();
  found_.clear();
}

}  // namespace tributary
