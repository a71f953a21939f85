// JobRegistry: where the coordinator's records of jobs outlive its process: the store of a server. Server 0's has
// the registry; the others have copies of it (docs/recovery.md).
#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "server/coordinator/cluster/job_record.h"
#include "server/coordinator/cluster/large_part_store.h"

namespace tributary {

// Terms of coordinators (docs/failover.md), as a server's store has them.
struct SeatTerms {
  Term promised;  // the highest that this server has followed, or taken: no coordinator of a lower one is obeyed
  Term owned;     // of the coordinator whose registry lies here
  bool operator==(const SeatTerms&) const = default;
};

class JobRegistry {
 public:
  virtual ~JobRegistry() = default;
  virtual Result<std::vector<JobId>> recorded() const = 0;  // jobs, ascending
  virtual Result<JobRecord> record(JobId job) const = 0;    // kNotFound: there is none
  // All of them or, upon an error, none. Durable before it returns.
  virtual Status save_all(std::span<const JobRecord> records) = 0;
  virtual Status remove(JobId job) = 0;  // that record, if there is one
  virtual LargePartStore& large_parts() = 0;
  virtual Result<SeatTerms> terms() const = 0;
  // Durable before they return; terms only grow. Any thread.
  virtual Status promise(Term term) = 0;
  virtual Status own(Term term) = 0;

  Status save(const JobRecord& record) { return save_all(std::span(&record, 1)); }
  // Visits each record, or why it cannot be read, one at a time. Errors: the jobs cannot be listed.
  Status each(const std::function<void(Result<JobRecord>)>& visit) const {
    const Result<std::vector<JobId>> jobs = recorded();
    if (!jobs) return tl::unexpected(jobs.error());
    for (const JobId job : *jobs) visit(record(job));
    return {};
  }
  Result<std::vector<JobRecord>> records() const {  // all of them, or the first flaw
    std::vector<JobRecord> records;
    Status flaw;
    const Status listed = each([&](Result<JobRecord> one) {
      if (one) {
        records.push_back(std::move(*one));
      } else if (flaw) {
        flaw = tl::unexpected(one.error());
      }
    });
    if (!listed || !flaw) return tl::unexpected((listed ? flaw : listed).error());
    return records;
  }
};

}  // namespace tributary
