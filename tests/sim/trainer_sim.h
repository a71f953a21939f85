// A trainer process of a simulated cluster: attaches, computes gradients that depend on its rank, the round and the
// parameters, waits, and attaches again when its view is over (train/trainer.cc over session/session.cc).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "common/system/file_descriptor.h"
#include "common/wire/messages.h"
#include "session/attach_retries.h"
#include "session/shared/kept_state.h"
#include "tests/sim/wires.h"
#include "worker/node_jobs.h"

namespace tributary::sim {

class JobWorld;

class TrainerSim final : public Process {
 public:
  TrainerSim(JobWorld& world, std::uint32_t node, std::uint32_t local_rank);
  ~TrainerSim() override;

  // From the worker, over the socket that `connection` is. memory: a ring, or the large part of a state.
  void hear(TrainerId connection, AttachMessage message, std::shared_ptr<FileDescriptor> memory,
            std::uint64_t delay_ns);
  void worker_died(TrainerId connection);
  // Its memory, or the state of the view, has changed.
  void wake();

  bool done() const { return phase_ == Phase::kDone; }
  bool has_ring() const { return kept_ && !done(); }  // as a process that has ended has nothing
  const std::optional<Error>& failure() const { return failure_; }
  std::string name() const;

 private:
  enum class Phase {
    kPausing,
    kAttaching,
    kStarting,
    kGathering,
    kComputing,
    kWaiting,
    kOver,
    kFinishing,
    kSaving,
    kDone
  };

  void attach();
  void attach_again(const std::string& why);
  void close();
  void on(const AttachReply& reply, const std::shared_ptr<FileDescriptor>& ring);
  void on(const AttachError& error);
  void begin_states(const AttachReply& reply);
  void give_first();
  void on(const HeldState& m, const std::shared_ptr<FileDescriptor>& memory);
  void on(const RankState& m, const std::shared_ptr<FileDescriptor>& memory);
  void look();
  bool all_at(Round round) const;
  void over();
  void next();
  std::uint64_t samples_of(std::uint64_t round) const;
  void await_replica(std::uint64_t round);
  std::pair<std::uint64_t, std::uint64_t> elements_of(std::size_t tensor) const;
  std::uint64_t in_whole(std::size_t tensor) const;
  bool holds(std::size_t tensor) const;
  void compute(std::uint64_t round, std::size_t tensors_left);
  void computed(std::uint64_t round, std::size_t tensor);
  void end(LeaveKind kind);  // training is complete
  void finish(LeaveKind kind);
  void saved();
  void keep(Round round);
  void give_for_snapshot();
  KeptState state_after(Round round) const;
  void hold(const KeptState& state);
  void give(const KeptState& state);
  void say(std::function<void(NodeJobs&, TrainerId)> what);
  // trainer_values.cc
  void begin_values(const AttachReply& reply);
  void ask_after(Round round);
  void gather();
  void on(const SharedValues& answer);

  JobWorld& world_;
  const std::uint32_t node_, place_, local_rank_, rank_;  // its machine, and that one's rank among nodes
  Phase phase_ = Phase::kPausing;
  std::optional<TrainerId> connection_;
  std::uint64_t attaches_ = 0;
  std::shared_ptr<NodeJob> job_;  // the memory
  Round resume_, complete_, pushed_;
  Round ready_;                                      // counts the gradients given to the session
  std::uint64_t weight_ = 0;                         // of the round that it computes
  bool moved_ = false;                               // a round of this session is complete
  AttachRetries retries_;                            // RecoveryHandle
  std::shared_ptr<FileDescriptor> kept_;             // RecoveryHandle
  std::vector<KeptState> states_, own_states_;       // kept in this session, and in the one before
  std::optional<KeptState> coming_;                  // its own, whose large part is under way
  bool awaits_first_ = false, gives_first_ = false;  // the first rank's state
  std::uint32_t view_rank_ = 0;
  JobId lived_in_;
  std::optional<Round> knows_;  // own_states_ has that of this round
  std::set<Round> given_;       // of states_, those that the worker has
  std::optional<AttachStopped> stopped_;
  ValueAnswers answers_;       // RecoveryHandle
  std::deque<ValueKey> asks_;  // in turn; the first is under way
  LeaveKind left_ = LeaveKind::kFinished;
  std::optional<Error> not_saved_;
  std::optional<Error> failure_;
};

}  // namespace tributary::sim
