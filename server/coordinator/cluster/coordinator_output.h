// The coordinator's actions: messages, durable records, lines for the log.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/wire/messages.h"
#include "server/coordinator/cluster/job_record.h"
#include "server/coordinator/cluster/large_part_store.h"

namespace tributary {

enum class LogLevel { kInfo, kWarning, kError };

class CoordinatorOutput {
 public:
  virtual ~CoordinatorOutput() = default;
  virtual void send(PeerId to, const ControlMessage& message) = 0;
  // Records are saved and removed in the order in which that is asked for, while everything else goes on. Each ends in
  // one call of CoordinatorCore::saved() or removed(), later than this one: then it is durable, or could not be.
  virtual void save(const JobRecord& record) = 0;
  virtual void remove(JobId job) = 0;         // its record, if there is one
  virtual LargePartStore* large_parts() = 0;  // null: there is none
  // Saves these records in the registry, all or none, and reads all of it. Then another core takes this one's place, as
  // in a process that was started again; else CoordinatorCore::not_adopted(). Later than this call.
  virtual void adopt(std::vector<JobRecord> records) = 0;
  // Runs other work on the disk, in the same order. Done is called later, as a message would come.
  using Work = std::function<Status()>;
  using Done = std::function<void(const Status&, std::uint64_t now_ms)>;
  virtual void on_disk(Work work, Done done) = 0;
  virtual std::uint64_t wall_ms() const = 0;  // the time of day, since 1970; 0: there is none
  // Error: something that was wanted is lost or cannot be. Warning: it may be, or somebody is refused.
  virtual void log(const std::string& line, LogLevel level = LogLevel::kInfo) = 0;
};

}  // namespace tributary
