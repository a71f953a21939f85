#include "server/coordinator/cluster/registry_copies.h"

#include "server/coordinator/cluster/job_record_seal.h"

namespace tributary {

RegistryCopies::RegistryCopies(std::map<JobId, std::uint64_t> known, bool others)
    : known_(std::move(known)), all_(known_.empty()), searching_(others) {}

void RegistryCopies::meet(std::uint16_t server, const std::vector<HeldRecord>& has) {
  lose(server);
  for (const HeldRecord& copy : has) held_[server][copy.job] = copy.edition;
}

void RegistryCopies::lose(std::uint16_t server) {
  held_.erase(server);
  wanted_.reset();
  std::erase_if(sent_, [&](const auto& entry) { return entry.first.first == server; });
  if (asked_ && asked_->server == server) asked_.reset();
}

void RegistryCopies::forget(JobId job) {
  for (auto& [server, copies] : held_) copies.erase(job);
  std::erase_if(sent_, [&](const auto& entry) { return entry.first.second == job; });
}

bool RegistryCopies::lacks(std::uint16_t server, const JobFacts& record, std::uint64_t now_ms) const {
  const auto copies = held_.find(server);
  const auto copy = copies == held_.end() ? decltype(copies->second.end())() : copies->second.find(record.job);
  const bool has = copies != held_.end() && copy != copies->second.end() && copy->second >= record.edition;
  if (has) return false;
  const auto sent = sent_.find({server, record.job});
  return sent == sent_.end() || sent->second.first < record.edition || now_ms >= sent->second.second + kRepeatMs;
}

void RegistryCopies::sent(std::uint16_t server, const JobFacts& record, std::uint64_t now_ms) {
  sent_[{server, record.job}] = {record.edition, now_ms};
}

// The newest copies of jobs whose records are older, or lost.
const std::map<JobId, RegistryCopies::Wanted>& RegistryCopies::wanted() {
  if (wanted_) return *wanted_;
  wanted_.emplace();
  for (const auto& [server, copies] : held_) {
    for (const auto& [job, edition] : copies) {
      const auto known = known_.find(job);
      if (known == known_.end() ? !all_ : edition <= known->second) continue;
      const auto [best, first] = wanted_->try_emplace(job, Wanted{server, edition});
      if (!first && edition > best->second.edition) best->second = {server, edition};
    }
  }
  return *wanted_;
}

std::optional<std::pair<std::uint16_t, WantRecord>> RegistryCopies::question(std::uint64_t now_ms) {
  if (!searching_ || (asked_ && now_ms < asked_->repeat_ms)) return std::nullopt;
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
  const std::string_view bytes(reinterpret_cast<const char*>(copy.record.data()), copy.record.size());
  Result<JobRecord> record = records::unseal_job(bytes, what);
  if (record && record->job != copy.job) {
    record = fail(ErrorCode::kStore, what + " is that of job id " + std::to_string(record->job.value));
  }
  if (!record) {
    held_[server].erase(copy.job);  // another server may have one
    wanted_.reset();
    return tl::unexpected(record.error());
  }
  if (wanted_) wanted_->erase(copy.job);
  known_[copy.job] = held_[server][copy.job] = record->edition;
  found_.insert_or_assign(copy.job, std::move(*record));
  return {};
}

void RegistryCopies::end_search() {
  searching_ = false;
  wanted_.reset();
  found_.clear();
}

}  // namespace tributary
