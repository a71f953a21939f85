// AdmittedKeys: whose connections a server's lanes take: the nodes' of the last view of each job that was opened here,
// as the coordinator said. What they may say there is looked at message by message. Thread rule: any.
#pragma once

#include <algorithm>
#include <list>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"

namespace tributary {

class AdmittedKeys {
 public:
  static constexpr std::size_t kMaxJobs = 1024;  // those that were opened longest ago are forgotten

  void set(JobId job, const std::vector<std::string>& keys) {
    const std::lock_guard lock(mutex_);
    std::erase_if(jobs_, [&](const auto& entry) { return entry.first == job; });
    jobs_.emplace_back(job, keys);
    if (jobs_.size() > kMaxJobs) jobs_.pop_front();
  }
  bool contains(const std::string& key) const {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(
        jobs_, [&](const auto& entry) { return std::ranges::find(entry.second, key) != entry.second.end(); });
  }

 private:
  mutable std::mutex mutex_;
  std::list<std::pair<JobId, std::vector<std::string>>> jobs_;  // opened last, last
};

}  // namespace tributary
