#include "server/store/store_thread.h"

#include <utility>

namespace tributary {

StoreThread::StoreThread(std::string name, Store& store, Post post, Log log)
    : store_(store), post_(std::move(post)), orders_(std::move(name), kMaxOrders, std::move(log)) {}

void StoreThread::load(SnapshotInfo info, EachChunk each, Done done) {
  run(
      [this, info = std::move(info), each = std::move(each)] {
        return store_.load(info, [&](ChunkIndex chunk, ChunkState state) -> Status {
          const Status stays = orders_.go_on();
          return stays ? each(chunk, std::move(state)) : stays;
        });
      },
      std::move(done));
}

void StoreThread::run(std::function<Status()> work, Done done) {
  const auto tell = [this, done](const Status& status) { post_([done, status] { done(status); }); };
  if (const Status taken = orders_.order(std::move(work), tell); !taken) tell(taken);
}

}  // namespace tributary
