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
// then means that the gradient is final on the device (call it from a host callback on the stream), and after wait()
// the parameters are there for whatever is put on a stream afterwards. Otherwise the worker cannot, and the trainer
// copies to and from host memory. initial(t) is host memory in both cases. If the worker lends memory and this process
// cannot open it, the worker is told, which ends the view, and attach() attaches again without.
//
// With pipeline or tensor parallelism a rank holds a part of the model (docs/model-parallel.md): all ranks declare all
// tensors, with their holders, and SessionOptions::model_rank says which of them this rank holds. What is said here of
// all tensors is then of those that it holds, and no other may be named.
//
// Tensors have rounds of their own: after wait(t) the next ready(t) belongs to t's next round, whatever the other
// tensors do (but ready all tensors of a round before you wait for the first: a chunk, and on devices a group of as
// many chunks as devices, may hold several). Every rank must call ready exactly once per tensor and round. Memory:
// parameters(t) must not be read between ready(t) and wait(t) of the same round, gradient(t) must not be touched in
// that time (session/attach_region.h says why). Thread rule: one thread at a time, except that ready() of different
// tensors may be called from different threads, also while one waits for others. A session belongs to the process that
// attached: forked children have no part in it (session/not_inherited.h), and the rank is gone when that process ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/file_descriptor.h"
#include "common/base/layout.h"
#include "common/base/result.h"
#include "common/config/config.h"
#include "common/config/step_runs.h"
#include "common/wire/messages.h"
#include "common/wire/value_answers.h"
#include "session/kept_state.h"
#include "session/trainer_device.h"

namespace tributary {

// As torchrun sets them (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK), or as `tributary run` does: the
// same with TRIBUTARY_ in front, which come first.
struct Topology {
  std::uint32_t rank = 0, world_size = 1, local_rank = 0, local_world_size = 1, node_rank = 0;
  // Reads the variables; an empty one is as if it were not set. kTopology names the one that is missing or contradicts
  // the others.
  static Result<Topology> from_environment();
  // kTopology if the numbers contradict each other.
  Status validate() const;
  // Which environment variable says what torchrun says in `torchruns`: "TRIBUTARY_RANK" if that is set, else "RANK".
  static std::string variable(const std::string& torchruns);
};

// What outlives a session: memory of the worker daemon that its next process needs if it is killed
// (worker/reduce/redo_ring.h). A trainer that gives the same one to every attach of a job loses no round then.
struct SessionKeepsake {
  FileDescriptor memory;
  std::vector<KeptState> states;    // what this rank last gave to keep()
  ValueAnswers answers;             // to gather() that this rank has had
  JobId lived_in;                   // whose last view it has lived through
  bool opens_device_memory = true;  // false: this process could not, and does not ask for it any more
};

// How long an attach may take; and the environment variable that says so, in seconds, where nothing nearer does.
inline constexpr std::chrono::seconds kAttachTimeout{120}, kMaxAttachTimeout{7 * 24 * 3600};
inline constexpr const char* kAttachTimeoutVariable = "TRIBUTARY_ATTACH_TIMEOUT";
// kAttachTimeout where the variable is unset or empty; kInvalidArgument, with the variable and its value.
Result<std::chrono::milliseconds> attach_timeout_of_environment();

struct SessionOptions {
  std::string socket;  // the worker's
  JobConfig job;
  // In an elastic job node_rank is what the node is known by, and world_size counts only for the first view.
  Topology topology;
  // For the worker and all members to be there. Where these get on, as servers that load, it counts from the last step.
  std::chrono::milliseconds attach_timeout = kAttachTimeout;
  bool await_worker = true;                      // false: kUnavailable at once if none listens
  std::function<void(const std::string&)> note;  // told what the attach waits for; null: nobody
  // Asked some times a second by the thread that waits: whether this rank is to stop. True ends an attach with
  // kStopped; start(), wait() and saved() go on, because others count on this rank. null: it is not.
  std::function<bool()> stops;
  std::shared_ptr<TrainerDevice> device;      // of a trainer on a GPU; null: host memory
  std::shared_ptr<SessionKeepsake> keepsake;  // null: nothing is kept
  // The trainer asks for gradient(t) anew in every round, and writes all of it before ready(t): then the only rank of a
  // node that pushes fp32 writes each round's gradient to where it is kept for lost servers, which else costs a copy.
  bool gradients_move = false;
  std::uint32_t model_rank = 0;    // common/base/model_ranks.h
  std::string computes_with = {};  // common/wire/compute_kinds.h: compared with other ranks' and told; empty: not
};

enum class StepState {
  kContinue,       // go on with the next round
  kStopRequested,  // this round is complete: finish(LeaveKind::kStopped) and exit; the job can be resumed
  kStopped,        // the view ended in good order; what this rank contributed since the last complete round is void
  kRestart,        // a member was lost: destroy the session, attach again, go on from resume_round()
  kFinished,       // as kStopped, because another rank finished for all: finish(LeaveKind::kFinished)
};

struct SessionStats {  // totals of this node since the attach
  std::uint64_t reduce_ns = 0, bytes_pushed = 0, bytes_pulled = 0;
  // Modes ssp and async: chunks that were answered, and by how many clocks the slowest node was behind this one in
  // them.
  std::uint64_t pulls = 0, staleness_sum = 0, staleness_max = 0;
};

// Of an attach, or of a session: whether attaching again may help, because somebody is gone or was gone, and may be
// back.
inline bool may_come_back(const Error& error) {
  return error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kTimeout ||
         error.code == ErrorCode::kStaleView;
}

class Session {
 public:
  // kUnavailable: nobody listens on the socket (the path is named). kStopped: the job, or this rank (stops), is to
  // stop. Errors of the worker or the coordinator as they word them.
  static Result<std::unique_ptr<Session>> attach(SessionOptions options, std::vector<TensorSpec> tensors);
  ~Session();  // without finish(): counts as LeaveKind::kFailed
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  bool fresh() const;          // nobody has parameters yet: the first rank that holds a tensor gives its initial values
  Round resume_round() const;  // the round that parameters(t) belong to after start(); 0 for a fresh job
  JobId job() const;
  const Layout& layout() const;  // what this node's ranks hold; without model parallelism the job's
  bool holds(std::size_t tensor) const;
  bool gives_values(std::size_t tensor) const;  // fresh() and this rank is the first that holds it
  // Where this rank stands in this view. In an elastic job it changes from session to session, and is not what
  // SessionOptions::topology says.
  const Topology& topology() const;

  // Before start(). REQUIRES: gives_values(tensor).
  std::span<float> initial(std::size_t tensor);
  // Blocks until the parameters of resume_round() are in. kStopped / kUnavailable if the view ends before.
  Status start();

  // REQUIRES: not on_device(). gradient(): of the tensor's next round. Without SessionOptions::gradients_move it is the
  // same memory for the whole session; with it, another one after every ready(), in which anything may lie.
  std::span<float> gradient(std::size_t tensor);
  std::span<const float> parameters(std::size_t tensor) const;
  // For who reads parameters where they are: from now on parameters() are in memory that can be read as long as
  // somebody has this share of it, after the session, too; it holds what it held last. What this process writes there
  // nobody else sees, nor is such a page written by the worker any more; so it may not be pinned (cudaHostRegister,
  // mlock). Before the first parameters(). REQUIRES: not on_device().
  Result<std::shared_ptr<const void>> hold_parameters();
  // Whether gradients and parameters are in device memory. Pointers of the device that SessionOptions::device is for,
  // as many elements as the tensor has, at multiples of 64 bytes; valid until the session is destroyed, which must not
  // happen while work that uses them is under way. REQUIRES: on_device().
  bool on_device() const;
  float* gradient_device(std::size_t tensor);
  const float* parameters_device(std::size_t tensor) const;
  // The mappings that gradients and parameters are in, whole pages: for who pins them. REQUIRES: not on_device().
  std::vector<std::span<std::byte>> host_memory() const;
  // What this rank needs beside the parameters to go on after `round`: generators of random numbers, a sampler of its
  // own. To be called in every round, before the next round's first ready(), and again if it has changed: the last one
  // counts. The worker holds it for whoever takes this rank's place on the node, and it is kept with a snapshot or
  // checkpoint of that round, also if that is named in one of the next two. `bytes` are at most kMaxRankState less
  // StateHead::kBytes; `large`, as many as memory holds, are copied, unless the last state had the same. kLimit: too
  // much of either.
  struct State {
    std::span<const std::byte> bytes;
    std::span<const std::span<const std::byte>> large = {};  // parts that belong one behind the other
    bool whole = true;  // else whoever takes the rank's place needs what the first rank keeps, too
  };
  Status keep(Round round, const State& state);
  Status keep(Round round, std::span<const std::byte> bytes) { return keep(round, State{bytes}); }
  // Of the next snapshot, if it has been named: every rank's state of that round is to be whole. 0: none is.
  Round wanted_round() const;
  // What this rank, or the one that was in its place on this node, gave for resume_round(). Empty: nothing is known of
  // it. (Not there: modes ssp and async after a stop, all-reduce jobs.) Waits for its large part. kUnavailable: that is
  // lost, or the view is over. The spans live as long as the session.
  struct Kept {
    std::span<const std::byte> bytes, large;
    bool whole = true;
  };
  Result<Kept> kept();
  // What one rank keeps of resume_round() for all who have nothing (whole): in a fresh job rank 0, else the first rank
  // that has it. Waits for it: kGiven ranks have to keep() a whole state of resume_round() before their first ready().
  // Empty: nobody has any. REQUIRES: first_state() != kGiven.
  Result<Kept> kept_of_first();
  FirstState first_state() const;
  // A figure of a round: `mean` over `samples` of this rank. Status and metrics of the cluster show the mean over all
  // ranks, by samples, since they were told last, which is every kFigureInterval. kInvalidArgument: the name is no
  // UTF-8 text of 1 to kMaxFigureNameBytes. kLimit: more than kMaxFigures names. Any
  // thread.
  static constexpr std::chrono::milliseconds kFigureInterval{200};
  Status log(Round round, std::string_view name, double mean, std::uint64_t samples);
  // There is no round after this one: in modes ssp and async its answers wait for all nodes, so that everybody ends
  // with the final parameters. Every rank says the same, before its first ready() of that round.
  void last_round(Round round);
  // weight: how many samples are summed in the gradient (0 is allowed). The same for all tensors of a round.
  // settings: of the step, which the job's optimizer takes; the same for all tensors of a group (TensorSpec) and on all
  // ranks.
  void ready(std::size_t tensor, std::uint64_t weight, const StepSettings& settings = {});
  // Jobs with a gate: what was decided about a round, after wait() of it (after start(): about resume_round()). Its
  // loss_scale is what the loss of the next round is to be multiplied by, on every rank; the servers take it out again.
  // kNone of rounds longer ago than two, and in jobs without a gate. (A gate opens when all tensors of a round have
  // come from all ranks: a rank that waits for one before it is ready for all waits for ever.)
  GateDecision gate(Round round) const;
  // Blocks until the answer to the last ready() of this tensor, or of all tensors, is in.
  // kUnavailable: the worker daemon is gone. Other errors: the worker's words (a push was refused, ...).
  Result<StepState> wait(std::size_t tensor);
  Result<StepState> wait();

  // A small value of every rank, given to all: each gives its own under the same key, and waits for those of all.
  // round: after which the program is, the newest that is complete for it; index: of the calls since that round. A rank
  // that begins again at an earlier call asks again, and gets the same bytes without the others. What a call returns is
  // valid until the next one. Started sessions only. kLimit: the value is of more than kMaxValueBytes. Ends as wait()
  // does; kInvalidArgument: ranks wait for different keys, or give too much.
  struct Gathered {
    StepState step = StepState::kContinue;
    std::span<const RankValue> values;  // by rank, if step is kContinue
  };
  Result<Gathered> gather(Round round, std::uint32_t index, std::span<const std::byte> value);

  // The values of all ranks that gather() returned in an earlier process, for ranks that ask again.
  Status gathered(SharedValues answer);

  // The worker's reason after kStopped / kRestart.
  std::string stop_reason() const;
  SessionStats stats() const;  // any thread
  // Blocks until the worker has taken note; all that can be asked afterwards is saved() and stop_reason(). message:
  // why; of a stop, who asked for it, which every rank is told.
  Status finish(LeaveKind kind, const std::string& message = {});
  // After finish() in good order: blocks until the state that the job ended with is saved, and every node's ranks have
  // left. kStore: it is not, and why. kUnavailable: nobody knows, because a daemon was lost meanwhile. (A job of mode
  // "allreduce" is saved by node 0, whose log says if that fails.)
  Status saved();

 private:
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  // opened: false if what the worker lends could not be.
  static Result<std::unique_ptr<Session>> attach_once(const SessionOptions& options, std::vector<TensorSpec> tensors,
                                                      bool& opened);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tributary
