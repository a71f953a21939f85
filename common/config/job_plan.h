// A process's facts of a job and of one view of it. JobPlan is resolved once from the job's configuration, ViewPlan
// once from the coordinator's message at the beginning of the view. Neither changes; their users hold pointers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/layout.h"
#include "common/base/model_ranks.h"
#include "common/config/config.h"
#include "common/math/encoding.h"
#include "kernels/step/optimizer.h"

namespace tributary {

struct JobPlan {
  // REQUIRES: faults_of(config) finds none.
  static std::shared_ptr<const JobPlan> of(JobConfig config);

  JobConfig config;
  std::shared_ptr<const Encoding> push, pull;
  std::shared_ptr<const kernels::Optimizer> optimizer;  // of the rounds' steps; of all groups, but for their scalars
  std::vector<std::shared_ptr<const kernels::Optimizer>> groups;  // by TensorSpec::group; the first is `optimizer`
  ScheduleConfig schedule;                                        // of the rounds' steps

  const std::string& name() const { return config.name; }
  bool on_servers() const { return tributary::on_servers(config); }
  bool has_clocks() const { return tributary::has_clocks(config); }
  bool has_rounds() const { return tributary::has_rounds(config); }
  bool has_gate() const { return tributary::has_gate(config); }
};

struct ViewPlan {
  std::shared_ptr<const JobPlan> plan;
  JobId job;
  ViewId view;
  std::uint32_t nodes = 1;
  std::shared_ptr<const Layout> layout;  // on nodes the part that their ranks hold
  Round start;           // on nodes every chunk's first version; on servers the snapshot behind the view (0: none)
  bool resumes = false;  // there is state to begin with: no initial values are awaited
  ModelRanks model_ranks = {};
  std::vector<std::string> worker_keys = {};  // on servers, in a cluster with keys: of the nodes

  const std::string& name() const { return plan->name(); }
  // Returns the chunk's first tensor. All tensors of a chunk have the same holders.
  const TensorSpec& tensor_in(ChunkIndex chunk) const { return layout->tensors()[layout->tensors_of(chunk).first]; }
  // The nodes that hold it, ascending; the first of them, which gives its initial values.
  std::vector<NodeRank> nodes_with(ChunkIndex chunk) const { return model_ranks.nodes_with(tensor_in(chunk), nodes); }
  NodeRank first_node_with(ChunkIndex chunk) const { return model_ranks.first_node_with(tensor_in(chunk), nodes); }
  // Number of ranks of every replica that push it: each sample is counted that many times.
  std::uint32_t copies(ChunkIndex chunk) const { return model_ranks.copies(tensor_in(chunk)); }
};

}  // namespace tributary
