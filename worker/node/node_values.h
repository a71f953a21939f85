// NodeValues: the values that a node's ranks exchange with all ranks (docs/values.md), in a view of a job. Collects the
// local ranks' values of a key for the coordinator, and answers the ranks; the answers stay from view to view
// (KeptAnswers). Pure. A part of AttachedJob; lives for a view.
//
// A rank waits for each answer, so it has one open key at most.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/wire/value_answers.h"

namespace tributary {

class NodeValues {
 public:
  static constexpr std::uint64_t kRepeatMs = 2000;    // until the answer comes, values are sent again
  static constexpr std::uint64_t kPatienceMs = 5000;  // with ranks that have left

  // first_rank: of its ranks in the view. elastic: the node may have been away while others continued, so that only the
  // coordinator knows the right answer; else known answers are given here.
  NodeValues(JobId job, ViewId view, std::uint32_t first_rank, std::uint32_t ranks, bool elastic,
             std::shared_ptr<ValueAnswers> answers)
      : job_(job),
        view_(view),
        first_rank_(first_rank),
        ranks_(ranks),
        elastic_(elastic),
        answers_(std::move(answers)) {}

  // Consequences for the coordinator, and for local ranks.
  struct Actions {
    std::vector<RankValues> say;
    std::vector<std::uint32_t> answered;  // local ranks that wait for `answer`
    SharedValues answer;
  };
  // A local rank gives its value or, complete, an answer that it knows. An error is the rank's mistake.
  Result<Actions> on(std::uint32_t local_rank, const SharedValues& said, std::uint64_t now_ms);
  // The coordinator's answer.
  Actions on(const SharedValues& answer);
  // Returns everything that the coordinator may lack: the known answers, then the open values.
  std::vector<RankValues> all() const;
  std::vector<RankValues> tick(std::uint64_t now_ms);
  // Returns whether local ranks have waited for long for a value of this one, which has left.
  bool waits_for(std::uint32_t local_rank, std::uint64_t now_ms) const;

 private:
  struct Open {
    std::map<std::uint32_t, std::vector<std::byte>> values;  // by local rank
    std::uint64_t since_ms = 0, next_ms = 0;
  };
  RankValues said_of(ValueKey key, const Open& open) const;
  Actions learn(const SharedValues& answer);
  Actions answer_all(const SharedValues& answer);
  Status give(std::uint32_t local_rank, const SharedValues& said, std::uint64_t now_ms);

  const JobId job_;
  const ViewId view_;
  const std::uint32_t first_rank_, ranks_;
  const bool elastic_;
  const std::shared_ptr<ValueAnswers> answers_;
  std::map<ValueKey, Open> open_;
};

// KeptAnswers: the answers of all jobs of a worker. A job without a view for long is forgotten, and the least recently
// seen one if there are too many. Lives in the worker.
class KeptAnswers {
 public:
  static constexpr std::size_t kMaxJobs = 256;
  static constexpr std::uint64_t kKeepMs = 600'000;  // as HeldStates

  // A view of the job begins after this round.
  std::shared_ptr<ValueAnswers> begin(const std::string& name, JobId id, Round round, std::uint64_t now_ms);
  void in_use(const std::string& name, std::uint64_t now_ms);
  void tick(std::uint64_t now_ms);

 private:
  struct Kept {
    std::shared_ptr<ValueAnswers> answers = std::make_shared<ValueAnswers>();
    std::uint64_t seen_ms = 0;
  };
  std::map<std::string, Kept> jobs_;
};

}  // namespace tributary
