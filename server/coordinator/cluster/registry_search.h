// RegistrySearch: a coordinator whose registry is empty looks for its records on the servers, which have copies
// (docs/recovery.md). Each server that says that it has some is asked for one after the other. Pure. Owned by the core,
// until all servers have been asked.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/wire/messages.h"
#include "server/coordinator/cluster/job_record.h"

namespace tributary {

class RegistrySearch {
 public:
  static constexpr std::uint64_t kRepeatMs = 1000;  // until the answer comes, a question is repeated

  // A server's process says hello, or says it again. Whether it is to be asked now, from the beginning.
  bool meet(std::uint16_t server, bool has_records, std::uint64_t now_ms);
  void lose(std::uint16_t server) { asked_.erase(server); }
  WantRecord question(std::uint16_t server) const { return {asked_.at(server).after}; }
  // Its answer. Whether it is to be asked for another one; so it is upon an error, too: kStore, kStoreFormat: that copy
  // is left out.
  Result<bool> on(std::uint16_t server, const JobRecordCopy& copy, std::uint64_t now_ms);
  // Servers whose answers have not come.
  std::vector<std::uint16_t> late(std::uint64_t now_ms);
  // No server that was met has more. Not if they were taken.
  bool complete() const { return asked_.empty() && !taken_; }
  // Takes the newest record of each job.
  std::vector<JobRecord> take();

 private:
  struct Asked {
    JobId after;
    std::uint64_t repeat_ms = 0;
  };
  std::map<std::uint16_t, Asked> asked_;  // that have more
  std::map<JobId, JobRecord> found_;
  bool taken_ = false;
};

}  // namespace tributary
