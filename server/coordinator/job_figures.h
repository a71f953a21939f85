// JobFigures: what the trainers of a job said last of their rounds, by node. Pure. Lives in the coordinator with its
// job.
#pragma once

#include <cstdint>
#include <map>

#include "common/wire/messages.h"

namespace tributary {

class JobFigures {
 public:
  // Of a member of that view.
  void note(NodeRank node, ViewId view, const Figures& figures) {
    if (figures.empty()) return;
    if (view != view_) nodes_.clear();
    view_ = view;
    nodes_[node.value].renew(figures);
  }
  // Of all nodes that have said some in the last view in which one did.
  Figures together() const {
    Figures all;
    for (const auto& [node, figures] : nodes_) all.add(figures);
    return all;
  }

 private:
  ViewId view_;
  std::map<std::uint32_t, Figures> nodes_;
};

}  // namespace tributary
