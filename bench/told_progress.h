// ToldProgress: prints the progress of a measurement of many parts now and then.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace tributary::bench {

class ToldProgress {
 public:
  static constexpr std::chrono::seconds kEvery{5};

  // tell: may be null. what: the parts' name in plural, "slices".
  ToldProgress(std::function<void(const std::string&)> tell, std::string what)
      : tell_(std::move(tell)), what_(std::move(what)), told_(Clock::now()) {}

  void reached(std::uint64_t part, std::uint64_t of) {
    if (!tell_ || Clock::now() < told_ + kEvery) return;
    told_ = Clock::now();
    tell_(std::to_string(part) + " of " + std::to_string(of) + " " + what_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  const std::function<void(const std::string&)> tell_;
  const std::string what_;
  Clock::time_point told_;
};

}  // namespace tributary::bench
