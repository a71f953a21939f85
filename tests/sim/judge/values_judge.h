// Judges the values that ranks of a simulated job exchange. In a view all ranks get the same bytes as answer to a key,
// and the same as surviving ranks know from the view before. If no daemon has died, the answer is the same from view to
// view, whichever ranks have survived; but not if a view begins so many rounds before that no rank keeps the answers.
// In elastic jobs the answer is the same within a view.
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
