// StateHome: the keeper of a job's state between its views: the servers, or, of an all-reduce job, the workers of its
// first nodes. Chosen once, when the job's kind is known. Lives in the coordinator with its job.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "server/coordinator/cluster/job_placement.h"
#include "server/coordinator/job/job_members.h"
#include "server/coordinator/job/view_start.h"
#include "server/coordinator/orders/coordinator_context.h"

namespace tributary {

// How the chunks of a view are dealt, and how hosts and links are loaded then, if that is known.
struct DealtChunks {
  std::uint64_t elements = 0;
  std::vector<ChunkOwner> owners;
  std::optional<JobPlacement> placement;
};

class StateHome {
 public:
  virtual ~StateHome() = default;

  // Servers that have a part in a view: all or none.
  virtual std::uint16_t servers() const = 0;
  // The servers among these that own chunks: a model smaller than the cluster leaves some without.
  virtual std::set<std::uint16_t> shards(const JobRecord& record) const = 0;

  // The newest state on disks that a view can begin with.
  struct Stored {
    bool any = false;
    Round round;
  };
  virtual Result<Stored> newest(const JobConfig& config, const JobRecord& record, const JobMembers& members) const = 0;
  // Deals the chunks of the view that opens.
  virtual Result<DealtChunks> lay_out(const JobConfig& config, const JobRecord& record, const JobMembers& members,
                                      const ViewStart& start) const = 0;

  // In words: what a job that lost a process can continue from; why its state is not saved, and what there is instead.
  virtual std::string outlook(const JobRecord& record) const = 0;
  virtual std::string not_saved(const std::string& why, const JobConfig& config, const JobRecord& record) const = 0;
};

// Deals the chunks of a job that has state to these servers, which are there, for the workers that are connected now.
Result<Layout> deal_to(const std::set<std::uint16_t>& on, const Peers& peers, const JobConfig& config,
                       const std::vector<TensorSpec>& tensors, std::uint64_t chunk_elements);

std::unique_ptr<StateHome> make_state_home(const JobConfig& config, CoordinatorContext& context);

}  // namespace tributary
