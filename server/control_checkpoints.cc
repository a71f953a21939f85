// The control thread's part in checkpoints: passes orders on to their service, and answers to the coordinator.
#include "server/control.h"
#include "server/store/checkpoint_service.h"

namespace tributary {

// Carries an order out, if its paths may be used and there is a store; else it is refused.
template <class Order, class Give>
void Control::order_checkpoint(const Order& order, Give give) {
  Status fits = roots_.check(order.directory);
  if constexpr (requires { order.target; }) {
    if (fits) fits = roots_.check(order.target);
  }
  if (fits && !parts_.checkpoints) fits = fail(ErrorCode::kStore, no_store(ShardIndex(config_.index)));
  if (fits) return give();
  CheckpointDone refused;
  refused.operation = order.operation;
  refused.ok = false;
  refused.code = fits.error().code;
  refused.message = fits.error().message;
  send(std::move(refused));
}

void Control::on(const WriteCheckpoint& m) {
  order_checkpoint(m, [&] { m.from_memory() ? jobs_.on(m) : parts_.checkpoints->write(m); });
}

void Control::on(const SealCheckpoint& m) {
  order_checkpoint(m, [&] { parts_.checkpoints->seal(m); });
}

void Control::on(const LoadCheckpoint& m) {
  order_checkpoint(m, [&] { parts_.checkpoints->load(m); });
}

void Control::on(const DropCheckpoint& m) {
  if (!parts_.checkpoints) return;
  jobs_.on(m);
  DropCheckpoint drop = m;
  if (!roots_.check(drop.directory)) drop.directory.clear();  // no file there is ours
  parts_.checkpoints->drop(drop);
}

void Control::checkpoint_written(const WriteCheckpoint& order, const CheckpointDone& done) {
  post([this, order, done] { jobs_.checkpoint_written(order, done); });
}

void Control::checkpoint_finished(const CheckpointDone& done) {
  post([this, done] {
    if (done.operation != 0) return send(done);
    if (done.ok && !done.unchanged) hello();  // a job's state is gone
  });
}

}  // namespace tributary
