// KeptParameters: the parameters that the last view of each job left on this node. The next view's lanes copy them and
// say their digest when they pull, so that what has not changed is not sent again (docs/data-path.md). Nobody relies on
// which version they are of. Thread rule: the attach thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/base/layout.h"
#include "common/system/shared_memory.h"
#include "session/shared/attach_region.h"
#include "worker/node/memory_budget.h"

namespace tributary {

// The memory that all ranks of a node map in a view: words that tell them how far it is, and the parameters.
struct NodeRegion {
  std::shared_ptr<const Layout> layout;
  std::shared_ptr<const BudgetShare> share;
  SharedMemory memory;

  static std::uint64_t bytes_needed(const Layout& layout) {
    return node_parameters_offset(layout.chunks()) + layout.flat_elements() * sizeof(float);
  }
  float* parameters() const {
    return reinterpret_cast<float*>(memory.data() + node_parameters_offset(layout->chunks()));
  }
};

class KeptParameters {
 public:
  static constexpr std::uint64_t kKeepMs = 600'000;  // without a view

  // A view of the job has them all; those of the one before go.
  void keep(const std::string& job, std::shared_ptr<const NodeRegion> region);
  // For a view with this layout; null: there are none, or each chunk would not have the lane that wrote it (which is
  // what keeps a lane that closes the last view from writing while another reads).
  std::shared_ptr<const NodeRegion> of(const std::string& job, const Layout& layout) const;
  void forget(const std::string& job) { kept_.erase(job); }
  // Somebody needs memory: what no view has any more goes. False: there was nothing.
  bool give_way();
  std::uint64_t spare() const;                                // the bytes that this would free
  void in_use(const std::string& job, std::uint64_t now_ms);  // they do not age
  void tick(std::uint64_t now_ms);

 private:
  struct Kept {
    std::shared_ptr<const NodeRegion> region;
    std::uint64_t seen_ms = 0;
  };
  std::map<std::string, Kept> kept_;  // by job name
  std::uint64_t now_ms_ = 0;          // of the last tick
};

}  // namespace tributary
