// JobRegistry: where the coordinator's records of jobs outlive its process. A server's store is one.
#pragma once

#include <vector>

#include "common/base/result.h"
#include "server/coordinator/cluster/job_record.h"
#include "server/coordinator/cluster/large_part_store.h"

namespace tributary {

class JobRegistry {
 public:
  virtual ~JobRegistry() = default;
  virtual Result<std::vector<JobRecord>> registry() const = 0;
  // Durable before it returns.
  virtual Status save(const JobRecord& record) = 0;
  virtual Status remove(JobId job) = 0;  // that record, if there is one
  virtual LargePartStore& large_parts() = 0;
};

}  // namespace tributary
