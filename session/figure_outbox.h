// FigureOutbox: figures of rounds (Session::log) that have not been sent to the worker yet.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "common/base/result.h"
#include "common/math/figures.h"
#include "session/shared/attach_socket.h"

namespace tributary {

class FigureOutbox {
 public:
  // Does Session::log(). Any thread.
  Status add(Round round, std::string_view name, double mean, std::uint64_t samples);

  // The session's thread:
  bool due() const;  // Session::kFigureInterval is over
  // Sends the figures to the worker. If the worker is gone, the next wait for it finds that.
  void send(AttachSocket& socket);
  // Sends nothing any more: the worker is older, and knows no figures.
  void give_up() { unknown_ = true; }

 private:
  std::mutex mutex_;
  Figures unsaid_;  // guarded by mutex_
  bool unknown_ = false;
  std::chrono::steady_clock::time_point said_{};
};

}  // namespace tributary
