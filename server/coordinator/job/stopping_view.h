// StoppingView: a view of a job whose training is over, until the state that it ended with is written or cannot be. Its
// members' trainers wait for that outcome. Servers learn of the end when every node has all answers of the last round:
// until then they answer a node that asks for a lost one. Pure. The job in the coordinator owns it as its phase. When a
// function here returns a BetweenViews, the job becomes idle with it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "server/coordinator/job/awaited_state.h"
#include "server/coordinator/job/job_ledger.h"

namespace tributary {

class StoppingView {
 public:
  using Over = std::optional<BetweenViews>;

  // A node that gets no answer for so long is not waited for: longer than a node waits before it asks for one.
  static constexpr std::uint64_t kAnswersPatienceMs = 15'000;

  StoppingView(JobLedger& ledger, JobView ended, StopKind kind, Round round, std::uint64_t now_ms);

  StopJob message() const;  // the round that it ends with
  // Sends the end to members; to servers, too, if no node lacks an answer.
  void begin(std::uint64_t now_ms);
  bool ordered() const { return ordered_; }                                 // servers were sent the end
  bool lacks(std::uint32_t node) const { return lacking_.contains(node); }  // answers
  // This node has all answers, or is gone.
  void needs_nothing(std::uint32_t node, std::uint64_t now_ms);
  // Repeats the end: servers get no sign of a node that still takes answers of the others, yet wait for what it keeps.
  void still_going() const;
  bool awaits(std::uint16_t server) const { return !done_.contains(server); }
  // Its part is written, and is to have a copy that is not there. Not after all are committed.
  bool lacks_copy(std::uint16_t server) const {
    return !recording_ && ledger_.copies.lacks_copy(ledger_.config().snapshot, ledger_.snapshot(round_), server);
  }
  Over on(std::uint16_t server, const SnapshotDone& m, std::uint64_t now_ms);
  // A copy that the end may wait for is there, or cannot be had.
  Over look_for_copies(std::uint64_t now_ms);
  // State that the end may wait for has arrived.
  Over look_for_state(std::uint64_t now_ms);
  // The job's record is saved, or cannot be.
  Over recorded(std::uint64_t now_ms);
  Over tick(std::uint64_t now_ms);

  // All-reduce: node 0 reports for the nodes that keep the state.
  Over kept_by_node_zero(const SnapshotDone& m, std::uint64_t now_ms);
  Over node_zero_lost(const std::string& reason);

  JobView view;

 private:
  void order_servers(std::uint64_t now_ms);
  // For what ranks keep of the round: one whole state, if there must be one, and what else is on its way.
  bool waits(std::uint64_t now_ms) {
    return ledger_.lacks_state(round_, now_ms) || ledger_.keeper.fetch(round_, now_ms);
  }
  Over commit(std::uint64_t now_ms);
  BetweenViews end_unsaved();
  void tell_saved(bool saved) const { ledger_.send(view.members, ledger_.outcome(round_, saved)); }

  JobLedger& ledger_;
  const StopKind kind_;
  const Round round_;                // that the view ends with
  std::uint64_t since_ms_;           // it began, or servers were sent the end
  std::set<std::uint32_t> lacking_;  // nodes that may lack answers
  Patience answers_;                 // of those
  bool ordered_ = false;
  std::optional<AwaitedState> awaited_;  // all shards have written it
  std::optional<Patience> recording_;    // all is there, and the job's record is being saved
  std::set<std::uint16_t> done_;         // shards that have written it, or failed to
  bool failed_ = false;                  // it is not durable everywhere
};

}  // namespace tributary
