// PermanentTrace: orders one trace of a job after the other, for measurements of what tracing costs. A thread of its
// own; what was recorded is left where the coordinator keeps it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace tributary::bench {

class PermanentTrace {
 public:
  // admin, token: of server 0.
  PermanentTrace(std::string admin, std::string token, std::string job);
  ~PermanentTrace();  // the one that is being recorded goes on to its end
  PermanentTrace(const PermanentTrace&) = delete;
  PermanentTrace& operator=(const PermanentTrace&) = delete;

  std::uint64_t traces() const { return traces_; }  // that are over
  std::uint64_t events() const { return events_; }  // in them
  std::string refusal() const;                      // the last one of an order; empty: none was refused

 private:
  void run(const std::stop_token& stop);

  const std::string admin_, token_, job_;
  std::atomic<std::uint64_t> traces_{0}, events_{0};
  mutable std::mutex mutex_;  // guards refusal_
  std::string refusal_;
  std::jthread thread_;
};

}  // namespace tributary::bench
