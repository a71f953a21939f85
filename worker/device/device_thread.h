// DeviceThread: the thread that steps a pipeline, and the end of the pipeline's work.
//
// Thread rule: give_up() from any thread, everything else on the owner's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "common/daemon/log.h"
#include "worker/device/stream_pipeline.h"

namespace tributary {

class DeviceThread {
 public:
  // For work under way when a job is over, before and after an abort.
  static constexpr std::uint64_t kQuietMs = 5'000;
  // Returns false to end the run. Called after every step.
  using More = std::function<bool(std::uint64_t now_ns)>;

  // The pipeline must outlive it. nap: called between two looks while the devices are waited for; null: it sleeps.
  DeviceThread(StreamPipeline& pipeline, Logger logger, std::function<void()> nap = nullptr);
  ~DeviceThread() { end(); }
  DeviceThread(const DeviceThread&) = delete;
  DeviceThread& operator=(const DeviceThread&) = delete;

  // Steps the pipeline, as it wants to be, until `more` is false or give_up(): on the calling thread, or its own.
  void run(const More& more);
  void start(const char* name, More more);
  void give_up();
  bool given_up() const { return giving_up_.load(std::memory_order_acquire); }
  // Gives up and waits for the thread.
  void join();
  // Call it after the last order: waits until the devices are done, aborts unfinished work after a time-out, and leaves
  // memory and streams alone if that does not help. Once is enough.
  void end();

  // Sleeps until something is written to `fd`, for `ns` at most.
  static void sleep_on(int fd, std::uint64_t ns);

 private:
  bool becomes_quiet();

  StreamPipeline& pipeline_;
  const Logger logger_;
  const std::function<void()> nap_;
  std::atomic<bool> giving_up_{false};
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace tributary
