// JobRegistry: where the coordinator's records of jobs outlive its process: the store of a server. Server 0's has
// the registry; the others have copies of it (docs/recovery.md).
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "server/coordinator/cluster/job_record.h"
#include "server/coordinator/cluster/large_part_store.h"

namespace tributary {

class JobRegistry {
 public:
  virtual ~JobRegistry() = default;
  // The record with the least job id after this one, if there is any.
  virtual Result<std::optional<JobRecord>> next_record(JobId after) const = 0;
  // All of them or, upon an error, none. Durable before it returns.
  virtual Status save_all(std::span<const JobRecord> records) = 0;
  virtual Status remove(JobId job) = 0;  // that record, if there is one
  virtual LargePartStore& large_parts() = 0;

  Status save(const JobRecord& record) { return save_all(std::span(&record, 1)); }
  Result<std::vector<JobRecord>> records() const {
    std::vector<JobRecord> records;
    Result<std::optional<JobRecord>> next = next_record({});
    while (next && *next) {
      records.push_back(std::move(**next));
      next = next_record(records.back().job);
    }
    if (!next) return tl::unexpected(next.error());
    return records;
  }
};

}  // namespace tributary
