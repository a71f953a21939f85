// The reference: one process that adds the ranks' gradients in tree order, recursively and unfused, round after round.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/layout.h"
#include "common/base/model_ranks.h"
#include "common/config/config.h"
#include "common/math/encoding.h"
#include "common/math/step_settings.h"
#include "kernels/step/optimizer.h"

namespace tributary::sim {

struct ReferenceOptions {
  std::uint64_t seed = 0;
  std::uint32_t nodes = 1, ranks_per_node = 1;
  std::uint64_t rounds = 0;
  EncodingSpec push, pull;
  std::shared_ptr<const Layout> layout;  // encodings work chunk by chunk
  double lr = 0.1;
  ScheduleConfig schedule;
  std::shared_ptr<const kernels::Optimizer> optimizer;
  std::shared_ptr<const kernels::Optimizer> other_group;  // not null: trainers send settings, and this is group 1's
  std::optional<GateConfig> gate;
  ModelRanks model_ranks;  // of all ranks
};

// Which replica of the model a rank belongs to: ranks of one replica count the same samples.
std::uint32_t replica_of(const ModelRanks& model_ranks, std::uint32_t rank);

// Which step: of the parameters, of the round, and its place in the schedule.
struct StepNumber {
  std::uint64_t step = 0, round = 0, position = 0;
};
// Steps flat elements from `first` on, as many as there are gradients, tensor by tensor; the gradient has been scaled.
void step_elements(const ReferenceOptions& options, std::uint64_t first, std::span<const float> gradient,
                   std::span<float> params, std::vector<std::vector<float>>& slots, const StepNumber& number);

class Reference {
 public:
  explicit Reference(const ReferenceOptions& options);
  // By version: master parameters, and what trainers see of them after the pull encoding.
  const std::vector<float>& master(std::uint64_t version) const { return master_[version]; }
  const std::vector<float>& visible(std::uint64_t version) const { return visible_[version]; }
  // Returns the residual of `node` after that version's round, if the push encoding keeps residuals.
  const std::vector<float>& residual(std::uint64_t version, std::uint32_t node) const {
    return residuals_[version][node];
  }
  std::uint64_t step(std::uint64_t version) const { return steps_[version]; }

 private:
  std::vector<std::vector<float>> master_, visible_;
  std::vector<std::vector<std::vector<float>>> residuals_;  // by version, node
  std::vector<std::uint64_t> steps_;
};

// kernels/tree_sum.h's tree, written as its definition.
std::vector<float> add_in_tree_order(std::vector<std::vector<float>> level);

// Returns a node's sum of a chunk as it arrives at the server. Updates `residual` if the encoding keeps one.
std::vector<float> pushed_chunk(const Encoding& push, std::span<const float> sum, std::uint64_t weight,
                                std::span<float> residual);
// Returns a chunk as trainers see it after an answer with these parameters. seen: as they saw it before.
std::vector<float> pulled_chunk(const Encoding& pull, std::span<const float> params, std::vector<float> seen);

// The simulated trainers' computation: element-wise, and dependent on the parameters, so that one wrong bit spreads.
float initial_value(std::uint64_t seed, std::uint64_t element);
float gradient_value(std::uint64_t seed, std::uint32_t rank, std::uint64_t round, std::uint64_t element,
                     float parameter);
std::uint64_t sample_weight(std::uint64_t seed, std::uint32_t rank, std::uint64_t round);
// Returns the trainers' settings of the round's step for a group of tensors.
StepSettings settings_of(std::uint64_t seed, std::uint64_t round, std::uint32_t group,
                         const kernels::Optimizer& optimizer);

}  // namespace tributary::sim
