// tributary::Session: how a trainer attaches to the worker daemon of its node. Link target: tributary_session.
//
//   auto session = Session::attach(options, tensors);            // blocks until all ranks of the job are there
//   if (session->fresh()) fill session->initial(t) for every t with session->gives_values(t): for rank 0 all
//   session->start();                                            // parameters of resume_round() are in parameters(t)
//   for (Round r = session->resume_round().next(); ...; r = r.next()) {
//     forward pass, reading parameters(t)
//     backward pass: write gradient(t) (the SUM over this rank's samples), then ready(t, samples), last layers first
//     session->wait();                                           // new parameters are in parameters(t)
//   }
//   session->finish(LeaveKind::kFinished);
//   session->saved();                                            // an error if the final state is not durable
// A trainer on a GPU gives SessionOptions::device. If on_device(), gradients and parameters are memory of that device,
// which the worker lends: gradient_device(t) and parameters_device(t) instead of gradient(t) and parameters(t). ready()
// then means that the gradient is final on the device (call it from a host callback on the stream), and work put on a
// stream after wait() sees the new parameters. Otherwise the worker lends none, and the trainer copies to and from host
// memory. initial(t) is host memory in both cases. If this process cannot open the lent memory, it reports this to the
// worker, which ends the view, and attach() attaches again without device memory.
//
// With pipeline or tensor parallelism a rank holds a part of the model (docs/model-parallel.md): all ranks declare all
// tensors, with their holders, and SessionOptions::model_rank says which of them this rank holds. "All tensors" below
// then means those that the rank holds, and no other may be named.
//
// Tensors have rounds of their own: after wait(t) the next ready(t) belongs to t's next round, whatever the other
// tensors do. But ready all tensors of a round before you wait for the first: a chunk, and on devices a group of as
// many chunks as devices, may hold several. Every rank must call ready exactly once per tensor and round. Memory:
// parameters(t) must not be read between ready(t) and wait(t) of the same round, gradient(t) must not be touched in
// that time (session/shared/attach_region.h says why). Thread rule: one thread at a time, except that ready() of different
// tensors may be called from different threads, also while one waits for others. A session belongs to the process that
// attached: forked children have no part in it (session/shared/not_inherited.h), and the rank is gone when that process ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/layout.h"
#include "common/base/result.h"
#include "common/config/config.h"
#include "common/config/step_runs.h"
#include "common/system/file_descriptor.h"
#include "common/wire/messages.h"
#include "common/wire/value_answers.h"
#include "session/attach_retries.h"
#include "session/shared/kept_state.h"
#include "session/shared/topology.h"
#include "session/trainer_device.h"

namespace tributary {

// State that outlives a session: memory of the worker daemon that its next process needs if it is killed
// (worker/reduce/redo_ring.h). A trainer that gives the same handle to every attach of a job loses no round then.
struct RecoveryHandle {
  FileDescriptor memory;
  std::vector<KeptState> states;    // what this rank last gave to keep()
  ValueAnswers answers;             // to gather() that this rank has had
  JobId lived_in;                   // whose last view it has lived through
  AttachRetries retries;            // for who attaches
  bool opens_device_memory = true;  // false: this process could not, and does not ask for it any more
};

// The time-out of an attach; and the environment variable that sets it, in seconds, where no option does.
inline constexpr std::chrono::seconds kAttachTimeout{120}, kMaxAttachTimeout{7 * 24 * 3600};
inline constexpr const char* kAttachTimeoutVariable = "TRIBUTARY_ATTACH_TIMEOUT";
// Returns kAttachTimeout where the variable is unset or empty; kInvalidArgument, with the variable and its value.
Result<std::chrono::milliseconds> attach_timeout_of_environment();

struct SessionOptions {
  std::string socket;  // the worker's
  JobConfig job;
  // In an elastic job node_rank identifies the node, and world_size counts only for the first view.
  Topology topology;
  // For the worker and all members to be there. While they make progress, as servers that load, it counts from the last
  // step.
  std::chrono::milliseconds attach_timeout = kAttachTimeout;
  bool await_worker = true;                      // false: kUnavailable at once if none listens
  std::function<void(const std::string&)> note;  // called with what the attach waits for; may be null
  // Whether this rank is to stop; the waiting thread asks some times a second. True ends an attach with kStopped;
  // start(), wait() and saved() continue, because others count on this rank. null: it is not.
  std::function<bool()> stops;
  std::shared_ptr<TrainerDevice> device;     // of a trainer on a GPU; null: host memory
  std::shared_ptr<RecoveryHandle> recovery;  // null: nothing is kept
  // The trainer calls gradient(t) again in every round, and writes all of it before ready(t). Then the only rank of a
  // node that pushes fp32 writes each round's gradient directly to the ring kept for lost servers, which saves a copy.
  bool gradients_move = false;
  std::uint32_t model_rank = 0;    // common/base/model_ranks.h
  std::string computes_with = {};  // common/wire/compute_kinds.h: compared with other ranks'; empty: not
};

enum class StepState {
  kContinue,       // continue with the next round
  kStopRequested,  // this round is complete: finish(LeaveKind::kStopped) and exit; the job can be resumed
  kStopped,        // the view ended cleanly; this rank's contributions since the last complete round are void
  kRestart,        // a member was lost: destroy the session, attach again, continue from resume_round()
  kFinished,       // as kStopped, because another rank finished for all: finish(LeaveKind::kFinished)
};

struct SessionStats {  // totals of this node since the attach
  std::uint64_t reduce_ns = 0, bytes_pushed = 0, bytes_pulled = 0;
  // Modes ssp and async: answered chunks, and by how many clocks the slowest node was behind this one in them.
  std::uint64_t pulls = 0, staleness_sum = 0, staleness_max = 0;
};

class Session {
 public:
  // Attaches to the worker. kUnavailable: no process listens on the socket (the path is named). kStopped: the job, or
  // this rank (stops), is to stop. Errors of the worker or the coordinator have their words.
  static Result<std::unique_ptr<Session>> attach(SessionOptions options, std::vector<TensorSpec> tensors);
  ~Session();  // without finish(): counts as LeaveKind::kFailed
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  bool fresh() const;          // no rank has parameters yet: the first that holds a tensor gives its initial values
  Round resume_round() const;  // the round that parameters(t) belong to after start(); 0 for a fresh job
  JobId job() const;
  const Layout& layout() const;  // of the tensors that this node's ranks hold; without model parallelism the job's
  bool holds(std::size_t tensor) const;
  bool gives_values(std::size_t tensor) const;  // fresh() and this rank is the first that holds it
  // This rank's place in this view. In an elastic job it changes from session to session, and differs from
  // SessionOptions::topology.
  const Topology& topology() const;

  // Before start(). REQUIRES: gives_values(tensor).
  std::span<float> initial(std::size_t tensor);
  // Blocks until the parameters of resume_round() are in. kStopped / kUnavailable if the view ends before.
  Status start();

  // REQUIRES: not on_device(). gradient(): of the tensor's next round. Without SessionOptions::gradients_move it is the
  // same memory for the whole session; with it, another one after every ready(), with arbitrary contents.
  std::span<float> gradient(std::size_t tensor);
  std::span<const float> parameters(std::size_t tensor) const;
  // Moves parameters() to a private view that stays readable, with its last values, until the returned pointer is
  // released, also after the session. A page that this process writes is private from then on: others do not see the
  // write, and the worker no longer updates the page. So the view must not be pinned (cudaHostRegister, mlock).
  // REQUIRES: not on_device(); no call of parameters() before.
  Result<std::shared_ptr<const void>> hold_parameters();
  // Whether gradients and parameters are in device memory. The pointers are of SessionOptions::device, to as many
  // elements as the tensor has, at multiples of 64 bytes. They are valid until the session is destroyed, which must not
  // happen while work that uses them is under way. REQUIRES: on_device().
  bool on_device() const;
  float* gradient_device(std::size_t tensor);
  const float* parameters_device(std::size_t tensor) const;
  // The mappings of gradients and parameters, whole pages, for callers that pin them. REQUIRES: not on_device().
  std::vector<std::span<std::byte>> host_memory() const;
  // Keeps the state that this rank needs, besides the parameters, to continue after `round`: random generators, its own
  // sampler. Call it in every round, before the next round's first ready(), and again if the state has changed: the
  // last call counts. The worker holds the state for the process that takes this rank's place on the node. Snapshots
  // and checkpoints of `round` include it, also if they are named in one of the next two rounds. `bytes` are at most
  // kMaxRankState less StateHead::kBytes; `large`, as many as memory holds, are copied unless the last state had the
  // same. kLimit: too much of either.
  struct State {
    std::span<const std::byte> bytes;
    std::span<const std::span<const std::byte>> large = {};  // parts that belong one behind the other
    bool whole = true;  // else the process that takes the rank's place needs the first rank's state, too
  };
  Status keep(Round round, const State& state);
  Status keep(Round round, std::span<const std::byte> bytes) { return keep(round, State{bytes}); }
  // The round of the next snapshot, for which every rank's state is to be whole. 0: none is named.
  Round wanted_round() const;
  // Returns the state that this rank, or its predecessor on this node, kept for resume_round(). Empty: none is known
  // (as in modes ssp and async after a stop, and in all-reduce jobs). Waits for the large part. kUnavailable: that part
  // is lost, or the view is over. The spans live as long as the session.
  struct Kept {
    std::span<const std::byte> bytes, large;
    bool whole = true;
  };
  Result<Kept> kept();
  // Waits for the state of resume_round() that one rank gives to all that have no whole one: rank 0 in a fresh job,
  // else the first rank that has it. kGiven ranks have to keep() a whole state of resume_round() before their first
  // ready(). Empty: no rank has any. REQUIRES: first_state() != kGiven.
  Result<Kept> kept_of_first();
  FirstState first_state() const;
  // Reports a figure of a round: `mean` over `samples` of this rank. Status and metrics of the cluster show the mean
  // over all ranks, by samples, since the last report, one every kFigureInterval. kInvalidArgument: the name is no
  // UTF-8 text of 1 to kMaxFigureNameBytes. kLimit: more than kMaxFigures names. Any thread.
  static constexpr std::chrono::milliseconds kFigureInterval{200};
  Status log(Round round, std::string_view name, double mean, std::uint64_t samples);
  // Declares the job's last round: in modes ssp and async its answers wait for all nodes, so that all ranks end with
  // the final parameters. Every rank calls it with the same round, before its first ready() of that round.
  void last_round(Round round);
  // Declares the tensor's gradient final. weight: how many samples are summed in it (0 is allowed); the same for all
  // tensors of a round. settings: of the step, for the job's optimizer; the same for all tensors of a group
  // (TensorSpec) and on all ranks.
  void ready(std::size_t tensor, std::uint64_t weight, const StepSettings& settings = {});
  // Jobs with a gate: the decision about a round, after wait() of it (after start(): about resume_round()). Its
  // loss_scale is the factor for the loss of the next round, on every rank; the servers divide it out again. kNone for
  // rounds more than two ago, and in jobs without a gate. (A gate opens when all tensors of a round have come from all
  // ranks: a rank that waits for one before it is ready for all waits forever.)
  GateDecision gate(Round round) const;
  // Blocks until the answer to the last ready() of this tensor, or of all tensors, is in.
  // kUnavailable: the worker daemon is gone. Other errors have the worker's words (a push was refused, ...).
  Result<StepState> wait(std::size_t tensor);
  Result<StepState> wait();

  // Gathers a small value of every rank: each gives its own under the same key, and waits for those of all. round: the
  // newest that is complete for the program; index: of the call since that round. A rank that starts again at an
  // earlier call asks again, and gets the same bytes without the others. Results are valid until the next call.
  // REQUIRES: a started session. kLimit: the value has more than kMaxValueBytes. kInvalidArgument: ranks wait for
  // different keys, or give too much. Ends as wait() does.
  struct Gathered {
    StepState step = StepState::kContinue;
    std::span<const RankValue> values;  // by rank, if step is kContinue
  };
  Result<Gathered> gather(Round round, std::uint32_t index, std::span<const std::byte> value);

  // Gives the worker a result of gather() in an earlier process, for ranks that ask again.
  Status gathered(SharedValues answer);

  // The worker's reason after kStopped / kRestart.
  std::string stop_reason() const;
  SessionStats stats() const;  // any thread
  // Leaves the job; blocks until the worker has acknowledged. Afterwards only saved() and stop_reason() may be called.
  // message: the reason; for a stop, its requester, which every rank receives.
  Status finish(LeaveKind kind, const std::string& message = {});
  // After a clean finish(): blocks until the job's final state is saved, and every node's ranks have left. kStore: it
  // is not saved, and why. kUnavailable: not known, because a daemon was lost meanwhile. (A job of mode "allreduce" is
  // saved by node 0, whose log says if that fails.)
  Status saved();

 private:
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  // opened: false if the memory that the worker lends could not be opened.
  static Result<std::unique_ptr<Session>> attach_once(const SessionOptions& options, std::vector<TensorSpec> tensors,
                                                      bool& opened);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tributary
