// Progress of ranks, sent to the program that started them (`tributary up`) over a Unix datagram socket: one small JSON
// object per round and rank. The receiver's sums over ranks give loss and accuracy by example counts.
//
//   {"rank":0,"world_size":4,"restarts":1,"resumed":10,"complete":11,"round":12,"rounds":1880,"loss_sum":150.3,
//    "correct":40,"samples":64,"global_samples":256,"samples_sum":1234,"compute_ns":...,"reduce_ns":...,"wait_ns":...}
//   samples_sum: samples_sum() of the samples (train/sampler.h)
//   round: whose gradient this rank has just given away; complete: the newest one whose answers it has taken; resumed:
//   the round that the view began after, so that complete > resumed says that the view has completed one
//   in jobs with a gate "gradient_norm", "loss_scale", "skipped" of the newest complete round
//   and after a round with an evaluation also "test_loss", "test_accuracy"
//
// Sending never blocks and never fails training: datagrams that the receiver does not take in time are dropped, so sums
// over datagrams are for display. The final figures are in each rank's --json object.
#pragma once

#include <sys/un.h>

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/result.h"
#include "common/math/gate_decision.h"
#include "train/pass.h"

namespace tributary::train {

// The split of a step's time, in nanoseconds. compute + reduce + wait = the step's wall time. While the trainer was
// blocked, the time of the node's reduction counts as reduce, the rest as wait. Work that overlaps with computing costs
// nothing and is not shown.
struct StepSplit {
  std::uint64_t compute_ns = 0, reduce_ns = 0, wait_ns = 0;

  StepSplit& operator+=(const StepSplit& other) {
    compute_ns += other.compute_ns;
    reduce_ns += other.reduce_ns;
    wait_ns += other.wait_ns;
    return *this;
  }
  std::uint64_t total_ns() const { return compute_ns + reduce_ns + wait_ns; }
};

struct RoundReport {
  std::uint32_t rank = 0, world_size = 1;
  std::uint32_t restarts = 0;        // of this process, up to now
  std::uint64_t resumed = 0;         // round that the view began after
  std::uint64_t complete = 0;        // newest round whose answers have all come
  std::uint64_t round = 0;           // whose gradient was given away last: `complete`, or the one after it
  std::uint64_t rounds = 0;          // last round of the job
  BatchStats stats;                  // this rank's share
  std::uint64_t global_samples = 0;  // of the round over all ranks; of this one if not all do all of theirs
  std::uint64_t samples_sum = 0;     // of this rank's samples (train/sampler.h)
  StepSplit split;
  std::optional<BatchStats> test;  // evaluation of the parameters after this round
  GateDecision gate;               // about the newest round that is complete; kNone: the job has no gate
};

std::string to_json(const RoundReport& report);

class ProgressSender {
 public:
  // kInvalidArgument if the path does not fit a socket address. The socket need not exist, then or later.
  static Result<ProgressSender> to(const std::string& path);
  ProgressSender(ProgressSender&& other) noexcept;
  ProgressSender& operator=(ProgressSender&& other) = delete;
  ~ProgressSender();

  void send(const RoundReport& report) const;

 private:
  ProgressSender(int fd, const sockaddr_un& address) : fd_(fd), address_(address) {}
  int fd_;
  sockaddr_un address_;
};

}  // namespace tributary::train
