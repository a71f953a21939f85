#include "worker/node/node_lane.h"

#include "common/daemon/daemon_thread.h"

namespace tributary {

Result<NodeLane::Bells> NodeLane::Bells::create() {
  auto doorbell = EventFd::create();
  if (!doorbell) return tl::unexpected(doorbell.error());
  auto commands = EventFd::create();
  if (!commands) return tl::unexpected(commands.error());
  return Bells{std::move(*doorbell), std::move(*commands)};
}

void NodeLane::start(const char* name) {
  thread_ = start_thread(name, logger_, [this] { run(); });
}

void NodeLane::stop() {
  stopping_.store(true, std::memory_order_release);
  commands_.rouse();
  if (thread_.joinable()) thread_.join();
}

}  // namespace tributary
