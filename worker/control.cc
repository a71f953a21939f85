#include "worker/control.h"

#include <utility>

#include "common/daemon/daemon_thread.h"

namespace tributary {

Result<std::unique_ptr<WorkerControl>> WorkerControl::start(WorkerHello hello, CoordinatorLinkOptions options,
                                                            WorkerControlListener& listener, Logger logger) {
  std::unique_ptr<WorkerControl> self(new WorkerControl(std::move(hello), listener));
  auto link = CoordinatorLink::open(std::move(options), *self, logger);
  if (!link) return tl::unexpected(link.error());
  self->link_ = std::move(*link);
  self->thread_ = start_thread("control", logger, [&control = *self] { control.run(); });
  return self;
}

WorkerControl::~WorkerControl() {
  stopping_.store(true, std::memory_order_release);
  if (link_) link_->rouse();
  if (thread_.joinable()) thread_.join();
}

void WorkerControl::run() {
  link_->excuse_silence();
  while (!stopping_.load(std::memory_order_acquire)) {
    link_->turn();
    link_->wait();
  }
  link_->flush();
}

}  // namespace tributary
