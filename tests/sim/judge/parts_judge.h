// Judges the large parts of what ranks keep: a part that the job's record names, and that two disks have had, is on two
// disks until one of them is lost.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "common/files/checkpoint_manifest.h"
#include "server/coordinator/cluster/job_record.h"
#include "tests/sim/disk/disk_sim.h"

namespace tributary::sim {

class PartsJudge {
 public:
  using Broken = std::function<void(const std::string&)>;
  explicit PartsJudge(Broken broken) : broken_(std::move(broken)) {}

  // Often, and before a fault. record: as the coordinator has it; null: there is none.
  void look(const JobRecord* record, std::span<const Disk> disks);
  void store_lost(std::uint16_t server);
  void restored() { on_.clear(); }  // a checkpoint has them
  // Parts of which one disk was left when the other was lost.
  std::uint64_t survived() const { return survived_; }

 private:
  const Broken broken_;
  std::set<JobId> ids_;                              // that the job has had: chunks may have gone to other servers
  std::map<LargePart, std::set<std::uint16_t>> on_;  // disks
  std::uint64_t survived_ = 0;
};

}  // namespace tributary::sim
