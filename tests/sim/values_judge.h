// Judges the values that ranks of a simulated job give each other. In a view whoever gets the answer to a key gets the
// same bytes, and the same as ranks that have lived know from the view before. Without a daemon that has died it is the
// same from view to view, whoever of the ranks has lived; but not if a view begins so many rounds before that nobody
// keeps them. In elastic jobs it is the same in a view.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "common/wire/messages.h"
#include "tests/sim/cluster_simulation.h"

namespace tributary::sim {

class ValuesJudge {
 public:
  using Broken = std::function<void(const std::string&)>;
  ValuesJudge(ClusterOutcome& outcome, bool elastic, Broken broken)
      : outcome_(outcome), elastic_(elastic), broken_(std::move(broken)) {}

  // A rank begins a view; has an answer in it.
  void begins(JobId job, ViewId view, Round round);
  void gets(JobId job, ViewId view, const SharedValues& answer);
  // A worker or a server has died.
  void daemon_died() { daemon_died_ = true; }

 private:
  struct Answer {
    SharedValues values;
    ViewId view;
  };
  ClusterOutcome& outcome_;
  const bool elastic_;
  const Broken broken_;
  JobId job_;
  ViewId view_;  // the newest
  std::map<ValueKey, Answer> answers_;
  bool daemon_died_ = false;  // since the view began
};

}  // namespace tributary::sim
