#include "worker/device/numa_policy.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>

namespace tributary {

PreferNumaNode::PreferNumaNode(int node) {
  if (node < 0 || static_cast<unsigned long>(node) >= kMaxNodes) return;
  if (::syscall(SYS_get_mempolicy, &old_mode_, old_nodes_, kMaxNodes, nullptr, 0) != 0) return;
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  unsigned long nodes[kWords] = {};
  nodes[static_cast<std::size_t>(node) / kBits] = 1ul << (static_cast<std::size_t>(node) % kBits);
  changed_ = ::syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes, kMaxNodes) == 0;
}

PreferNumaNode::~PreferNumaNode() {
  if (!changed_) return;
  // MPOL_DEFAULT takes no nodes.
  const bool has_nodes = old_mode_ != MPOL_DEFAULT;
  ::syscall(SYS_set_mempolicy, old_mode_, has_nodes ? old_nodes_ : nullptr, has_nodes ? kMaxNodes : 0);
}

}  // namespace tributary
