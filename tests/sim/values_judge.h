// What ranks of a simulated job give each other: whoever gets the answer to a key gets the same bytes, in whatever view
// and from whomever. A view that begins after an earlier round makes later keys new ones.
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
  // elastic: nodes that go with an answer may come back when others have given another one, so only within a view.
  ValuesJudge(ClusterOutcome& outcome, bool elastic, Broken broken)
      : outcome_(outcome), elastic_(elastic), broken_(std::move(broken)) {}

  // A rank begins a view; has an answer in it.
  void begins(JobId job, ViewId view, Round round);
  void gets(JobId job, ViewId view, const SharedValues& answer);

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
};

}  // namespace tributary::sim
