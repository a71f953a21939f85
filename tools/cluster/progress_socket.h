// The socket that trainers report their rounds to (train/progress.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tributary {

// A datagram (train/progress.h): the progress of a rank, and the results and times of its step of `round`. Rank, round
// and samples are required; any other missing member is unknown.
struct ProgressReport {
  std::uint32_t rank = 0, world_size = 1;
  std::uint32_t restarts = 0;
  // complete > resumed: the rank's view has completed a round.
  std::uint64_t resumed = 0, complete = 0;
  std::uint64_t round = 0, rounds = 0;  // rounds 0: their number is not known
  std::uint64_t samples = 0, samples_sum = 0;
  // Over the samples. Absent: the trainer does not know it. The loss is NaN if it is no number.
  std::optional<std::uint64_t> correct;
  std::optional<double> loss_sum;
  std::uint64_t compute_ns = 0, reduce_ns = 0, wait_ns = 0;
  std::optional<double> test_accuracy;

  std::uint64_t step_ns() const { return compute_ns + reduce_ns + wait_ns; }
};
// Parses a datagram; nothing: it is not one of ours.
std::optional<ProgressReport> parse_progress(std::string_view datagram);

class ProgressSocket {
 public:
  // Binds `path`, in place of a socket of an earlier process. kInvalidArgument if it is too long for a Unix socket.
  static Result<ProgressSocket> listen(const std::string& path);
  ProgressSocket(ProgressSocket&& other) noexcept;
  ProgressSocket& operator=(ProgressSocket&&) = delete;
  ~ProgressSocket();

  int fd() const { return fd_; }
  // Gives the datagrams that have arrived to `take`, one at a time. Never blocks.
  void drain(const std::function<void(std::string_view datagram)>& take) const;

 private:
  explicit ProgressSocket(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace tributary
