// The socket that trainers report their rounds to (train/progress.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tributary {

// What a datagram says (train/progress.h): where a rank stands, and what its step of `round` gave and took. It must say
// rank, round and samples; what else it leaves out is not known.
struct ProgressReport {
  std::uint32_t rank = 0, world_size = 1;
  std::uint32_t restarts = 0;
  // complete > resumed: the rank's view has completed a round.
  std::uint64_t resumed = 0, complete = 0;
  std::uint64_t round = 0, rounds = 0;  // rounds 0: how many there will be is not known
  std::uint64_t samples = 0, samples_sum = 0;
  // Over the samples. What a trainer does not know is not there; NaN if the loss is no number.
  std::optional<std::uint64_t> correct;
  std::optional<double> loss_sum;
  std::uint64_t compute_ns = 0, reduce_ns = 0, wait_ns = 0;
  std::optional<double> test_accuracy;

  std::uint64_t step_ns() const { return compute_ns + reduce_ns + wait_ns; }
};
// Nothing: it is not one of ours.
std::optional<ProgressReport> parse_progress(std::string_view datagram);

class ProgressSocket {
 public:
  // Binds `path`, in place of what an earlier process left there. kInvalidArgument if it is too long for a Unix socket.
  static Result<ProgressSocket> listen(const std::string& path);
  ProgressSocket(ProgressSocket&& other) noexcept;
  ProgressSocket& operator=(ProgressSocket&&) = delete;
  ~ProgressSocket();

  int fd() const { return fd_; }
  // Gives what has arrived to `take`, a datagram at a time. Never blocks.
  void drain(const std::function<void(std::string_view datagram)>& take) const;

 private:
  explicit ProgressSocket(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace tributary
