// JobFigures: the newest figures of a job's trainers about their rounds, by node. Pure. Lives in the coordinator with
// its job.
#pragma once

#include <cstdint>
#include <map>

#include "common/wire/messages.h"

namespace tributary {

class JobFigures {
 public:
  // Takes the figures of a member of that view.
  void note(NodeRank node, ViewId view, const Figures& figures) {
    if (figures.empty()) return;
    if (view != view_) nodes_.clear();
    view_ = view;
    nodes_[node.value].renew(figures);
  }
  // Returns the sum over nodes, from the last view in which any node reported figures.
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
