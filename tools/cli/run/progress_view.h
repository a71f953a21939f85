// The progress that `tributary up` and `tributary run` show: datagrams of train/progress.h from all ranks, added up.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "tools/cluster/progress_socket.h"

namespace tributary::cli {

class ProgressView {
 public:
  // Binds the socket that ranks report to. quiet: receives, but shows nothing.
  static Result<ProgressView> listen(const std::string& socket_path, bool quiet);
  ProgressView(ProgressView&& other) noexcept;
  ProgressView& operator=(ProgressView&&) = delete;
  ~ProgressView();

  int fd() const { return socket_.fd(); }
  // Shows the reports that have arrived: redrawn in place on a terminal, else a line now and then. Never blocks.
  void update();
  // Removes the progress drawn in place, before other output.
  void clear();

 private:
  // A mean over the samples of the reports that have the figure.
  struct Mean {
    double sum = 0.0, samples = 0.0;
  };
  ProgressView(ProgressSocket socket, bool quiet);
  void take(std::string_view datagram);
  void show(bool keep);

  ProgressSocket socket_;
  bool quiet_;
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point shown_;
  std::uint64_t round_ = 0, rounds_ = 0;
  double test_accuracy_ = -1.0;
  // Since the last output.
  Mean loss_, accuracy_;
  std::uint64_t samples_ = 0, compute_ns_ = 0, reduce_ns_ = 0, wait_ns_ = 0;
};

}  // namespace tributary::cli
