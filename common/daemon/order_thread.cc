#include "common/daemon/order_thread.h"

#include <chrono>

#include "common/daemon/background_thread.h"

namespace tributary {
namespace {

tl::unexpected<Error> stopped() {
  return fail(ErrorCode::kStopped, "the server is being stopped");
}

}  // namespace

OrderThread::OrderThread(std::string name, std::size_t most, ThreadLog log, Priority priority)
    : most_(most), thread_(start_thread(name, log, [this, name, log, priority] {
        const bool lowers = priority == Priority::kLow;
        if (lowers && !become_background(name.c_str()) && log) log("cannot lower the priority of the thread " + name);
        run();
      })) {}

OrderThread::~OrderThread() {
  stop();
}

void OrderThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Status OrderThread::order(Work work, Done done) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return stopped();
  if (orders_.size() >= most_) {
    return fail(ErrorCode::kLimit, std::to_string(most_) + " orders for this server's disk wait; is it well?");
  }
  orders_.emplace_back(std::move(work), std::move(done));
  wake_.notify_all();
  return {};
}

Status OrderThread::pause(std::uint64_t ns) {
  std::unique_lock lock(mutex_);
  if (ns != 0) wake_.wait_for(lock, std::chrono::nanoseconds(ns), [&] { return stopping_; });
  return stopping_ ? Status(stopped()) : Status();
}

void OrderThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !orders_.empty(); });
    if (orders_.empty()) return;
    auto [work, done] = std::move(orders_.front());
    orders_.pop_front();
    const bool begins = !stopping_;
    lock.unlock();
    const Status status = begins ? contained(work) : Status(stopped());
    work = {};  // what it holds goes before anybody hears that it is over
    done(status);
    lock.lock();
  }
}

}  // namespace tributary
