// StopQuestion: whether this rank is to stop (SessionOptions::stops), asked now and then by whoever waits.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

namespace tributary {

class StopQuestion {
 public:
  static constexpr std::chrono::milliseconds kInterval{50};

  explicit StopQuestion(std::function<bool()> stops = nullptr) : stops_(std::move(stops)) {}

  // Costs nothing more often than every kInterval: the answer is then the last one.
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
