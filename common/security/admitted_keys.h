// AdmittedKeys: whose connections a server's lanes take: the nodes' of the views that are open here, as the coordinator
// said. What they may say there is looked at message by message. Thread rule: any.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/ids.h"

namespace tributary {

class AdmittedKeys {
 public:
  void set(JobId job, const std::vector<std::string>& keys) {
    const std::lock_guard lock(mutex_);
    jobs_[job] = keys;
  }
  // Jobs that are not open any more go.
  void keep(const std::function<bool(JobId)>& open) {
    const std::lock_guard lock(mutex_);
    std::erase_if(jobs_, [&](const auto& entry) { return !open(entry.first); });
  }
  bool contains(const std::string& key) const {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(
        jobs_, [&](const auto& entry) { return std::ranges::find(entry.second, key) != entry.second.end(); });
  }

 private:
  mutable std::mutex mutex_;
  std::map<JobId, std::vector<std::string>> jobs_;
};

}  // namespace tributary
