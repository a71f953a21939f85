// FigureOutbox: what the program has said of its rounds (Session::log) and the worker has not been told yet.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "common/base/result.h"
#include "common/math/figures.h"
#include "session/attach_socket.h"

namespace tributary {

class FigureOutbox {
 public:
  // Session::log(). Any thread.
  Status add(Round round, std::string_view name, double mean, std::uint64_t samples);

  // The session's thread:
  bool due() const;  // Session::kFigureInterval is over
  // Tells the worker. One that is gone is found by whoever waits for it.
  void send(AttachSocket& socket);
  // The worker is older, and knows no figures: nothing is sent any more.
  void give_up() { unknown_ = true; }

 private:
  std::mutex mutex_;
  Figures unsaid_;  // guarded by mutex_
  bool unknown_ = false;
  std::chrono::steady_clock::time_point said_{};
};

}  // namespace tributary
