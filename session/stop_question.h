// StopQuestion: whether this rank is to stop (SessionOptions::stops), asked now and then by a thread that waits.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

namespace tributary {

class StopQuestion {
 public:
  static constexpr std::chrono::milliseconds kInterval{50};

  explicit StopQuestion(std::function<bool()> stops = nullptr) : stops_(std::move(stops)) {}

  // Calls within kInterval of the last one cost nothing: they return its answer.
  bool ask() {
    const auto now = std::chrono::steady_clock::now();
    if (!stops_ || now < next_) return answer_;
    next_ = now + kInterval;
    return answer_ = stops_();
  }

 private:
  std::function<bool()> stops_;
  std::chrono::steady_clock::time_point next_{};
  bool answer_ = false;
};

}  // namespace tributary
