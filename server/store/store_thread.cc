#include "server/store/store_thread.h"

#include "common/daemon/daemon_thread.h"

namespace tributary {

StoreThread::StoreThread(Store& store, Post post, Log log)
    : store_(store), post_(std::move(post)), thread_(start_thread("store", std::move(log), [this] { run(); })) {}

StoreThread::~StoreThread() {
  stop();
}

void StoreThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void StoreThread::load(SnapshotInfo info, EachChunk each, Done done) {
  order(
      [this, info = std::move(info), each = std::move(each)] {
        return store_.load(info, [&](ChunkIndex chunk, ChunkState state) -> Status {
          const Status stays = go_on();
          return stays ? each(chunk, std::move(state)) : stays;
        });
      },
      std::move(done));
}

void StoreThread::drop(JobId job, Round first, Round last, Done done) {
  order([this, job, first, last] { return store_.drop(job, first, last); }, std::move(done));
}

void StoreThread::order(Work work, Done done) {
  {
    const std::lock_guard lock(mutex_);
    if (orders_.size() < kMaxOrders) {
      orders_.emplace_back(std::move(work), std::move(done));
      wake_.notify_all();
      return;
    }
  }
  post_([done = std::move(done)] {
    done(fail(ErrorCode::kLimit,
              std::to_string(kMaxOrders) + " orders wait for this server's store; is its disk well?"));
  });
}

Status StoreThread::go_on() {
  const std::lock_guard lock(mutex_);
  return stopping_ ? fail(ErrorCode::kStopped, "the server is being stopped") : Status{};
}

void StoreThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !orders_.empty(); });
    if (stopping_) return;
    auto [work, done] = std::move(orders_.front());
    orders_.pop_front();
    lock.unlock();
    Status status = contained(work);
    work = {};  // what it holds of a load goes before anybody hears that it is over
    post_([tell = std::move(done), ended = std::move(status)] { tell(ended); });
    lock.lock();
  }
}

}  // namespace tributary
