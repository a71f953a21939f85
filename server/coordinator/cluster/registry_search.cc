#include "server/coordinator/cluster/registry_search.h"

#include "server/coordinator/cluster/job_record_seal.h"

namespace tributary {
namespace {

bool newer(const JobRecord& a, const JobRecord& b) {
  return std::pair(a.view, a.committed) > std::pair(b.view, b.committed);
}

}  // namespace

bool RegistrySearch::meet(std::uint16_t server, bool has_records, std::uint64_t now_ms) {
  if (!has_records) {
    asked_.erase(server);
    return false;
  }
  asked_[server] = {JobId(), now_ms + kRepeatMs};
  return true;
}

Result<bool> RegistrySearch::on(std::uint16_t server, const JobRecordCopy& copy, std::uint64_t now_ms) {
  const auto asked = asked_.find(server);
  if (asked == asked_.end()) return false;
  if (copy.job.value == 0) {
    asked_.erase(asked);
    return false;
  }
  if (copy.job <= asked->second.after) return false;  // a repeated question was answered twice
  asked->second = {copy.job, now_ms + kRepeatMs};
  const std::string_view bytes(reinterpret_cast<const char*>(copy.record.data()), copy.record.size());
  Result<JobRecord> record = records::unseal_job(
      bytes, "server " + std::to_string(server) + "'s copy of the record of job id " + std::to_string(copy.job.value));
  if (!record) return tl::unexpected(record.error());
  if (record->job != copy.job) {
    return fail(ErrorCode::kStore, "server " + std::to_string(server) + " gives the record of job id " +
                                       std::to_string(record->job.value) + " as that of job id " +
                                       std::to_string(copy.job.value));
  }
  const auto [at, first] = found_.try_emplace(record->job, *record);
  if (!first && newer(*record, at->second)) at->second = std::move(*record);
  return true;
}

std::vector<std::uint16_t> RegistrySearch::late(std::uint64_t now_ms) {
  std::vector<std::uint16_t> late;
  for (auto& [server, asked] : asked_) {
    if (now_ms < asked.repeat_ms) continue;
    asked.repeat_ms = now_ms + kRepeatMs;
    late.push_back(server);
  }
  return late;
}

std::vector<JobRecord> RegistrySearch::take() {
  taken_ = true;
  std::vector<JobRecord> records;
  for (auto& [job, record] : std::exchange(found_, {})) records.push_back(std::move(record));
  return records;
}

}  // namespace tributary
