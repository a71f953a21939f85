// Topology: where a rank stands among the ranks and nodes of its job.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tributary {

// The variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK), or those of `tributary run`,
// which have TRIBUTARY_ in front and take precedence.
struct Topology {
  std::uint32_t rank = 0, world_size = 1, local_rank = 0, local_world_size = 1, node_rank = 0;
  // Reads the variables; an empty one counts as not set. kTopology names the one that is missing or contradicts the
  // others.
  static Result<Topology> from_environment();
  // kTopology if the numbers contradict each other.
  Status validate() const;
  // The variable that has the value of torchrun's variable `torchruns`: "TRIBUTARY_RANK" if that is set, else "RANK".
  static std::string variable(const std::string& torchruns);
};

}  // namespace tributary
