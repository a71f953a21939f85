#include "tests/sim/judge/values_judge.h"

namespace tributary::sim {

void ValuesJudge::begins(JobId job, ViewId view, Round round) {
  if (job == job_ && view <= view_) return;
  const bool far = !answers_.empty() && answers_.rbegin()->first.round > round.next();
  if (job != job_ || far || daemon_died_ || elastic_) answers_.clear();
  daemon_died_ = false;
  job_ = job;
  view_ = view;
  std::erase_if(answers_, [&](const auto& entry) { return entry.first.round > round; });
}

// An answer in a view that is over is of no use to anybody.
void ValuesJudge::gets(JobId job, ViewId view, const SharedValues& answer) {
  if (job != job_ || view != view_) return;
  const auto [at, first] = answers_.try_emplace(answer.key(), Answer{answer, view});
  ++outcome_.values;
  if (first) return;
  if (at->second.view != view) ++outcome_.values_again;
  if (at->second.values == answer) return;
  broken_("ranks get different values as " + answer.key().in_words());
}

}  // namespace tributary::sim
