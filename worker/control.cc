#include "worker/control.h"

#include <utility>

#include "common/daemon/daemon_thread.h"

namespace tributary {

Result<std::unique_ptr<WorkerControl>> WorkerControl::start(WorkerHello hello, CoordinatorLinkOptions options,
                                                            WorkerControlListener& listener, SelfDiagnosis::Look look,
                                                            Logger logger) {
  std::unique_ptr<WorkerControl> self(new WorkerControl(std::move(hello), listener, std::move(look), logger));
  auto link = CoordinatorLink::open(std::move(options), *self, logger);
  if (!link) return tl::unexpected(link.error());
  self->link_ = std::move(*link);
  self->thread_ = start_thread("control", logger, [&control = *self] { control.run(); });
  return self;
}

WorkerControl::WorkerControl(WorkerHello hello, WorkerControlListener& listener, SelfDiagnosis::Look look,
                             const Logger& logger)
    : hello_(std::move(hello)),
      listener_(listener),
      self_diagnosis_(
          std::move(look), [this](const Diagnosed& found) { link_->send(found); }, logger) {}

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

void WorkerControl::on_control(ControlMessage message) {
  const auto* order = std::get_if<Diagnose>(&message);
  if (!order) return listener_.on_control(std::move(message));
  self_diagnosis_.on(*order);
}

}  // namespace tributary
