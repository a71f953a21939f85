#include "server/job_memory.h"

#include <cstdint>
#include <string>
#include <utility>

#include "common/base/quantity.h"

namespace tributary {

Status check_memory(const ServerJobStatus& job, const std::map<JobId, ServerJob>& open, const KeptViews& kept,
                    const ServerConfig& config, bool snapshots) {
  const auto memory_of = [&](const ServerJobStatus& status) {
    return status.chunks == 0 ? 0 : memory_at_most(status.memory, snapshots);
  };
  const std::uint64_t needed = memory_of(job);
  if (config.max_memory == 0 || needed == 0) return {};
  std::map<JobId, std::pair<std::string, std::uint64_t>> others;
  for (const auto& [id, other] : open) others[id] = {"job '" + other.view().name() + "'", memory_of(other.status)};
  for (const auto& [id, other] : kept.all())
    others[id] = {"job '" + other.view().name() + "' between two views", memory_of(other.status)};
  others.erase(job.view->job);
  std::uint64_t taken = 0;
  std::string names;
  for (const auto& [id, other] : others) {
    if (other.second == 0) continue;
    taken += other.second;
    names += (names.empty() ? " (" : ", ") + other.first + ": " + memory_in_words(other.second);
  }
  if (!names.empty()) names += ")";
  if (needed <= config.max_memory && taken <= config.max_memory - needed) return {};
  return fail(ErrorCode::kLimit, "job '" + job.view->name() + "' needs up to " + memory_in_words(needed) +
                                     " on server " + std::to_string(config.index) + ", where jobs may take " +
                                     memory_in_words(config.max_memory) + ", and others have " +
                                     memory_in_words(taken) + names +
                                     "; raise [limits] max_memory in server.toml, use more servers, or wait for "
                                     "another job to end");
}

}  // namespace tributary
