// PreferNumaNode: places the pages of memory that is about to be allocated.
#pragma once

namespace tributary {

// While it lives, memory that this thread is first to touch, also inside the kernel, comes from `node` if there is
// room. Does nothing for node < 0, or where the system does not let us (containers often do not).
class PreferNumaNode {
 public:
  explicit PreferNumaNode(int node);
  ~PreferNumaNode();
  PreferNumaNode(const PreferNumaNode&) = delete;
  PreferNumaNode& operator=(const PreferNumaNode&) = delete;

 private:
  static constexpr unsigned long kMaxNodes = 1024;
  static constexpr unsigned long kWords = kMaxNodes / (8 * sizeof(unsigned long));
  bool changed_ = false;
  int old_mode_ = 0;
  unsigned long old_nodes_[kWords] = {};
};

}  // namespace tributary
