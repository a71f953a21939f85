#include "worker/device_exchange.h"

#include "common/daemon_thread.h"
#include "worker/device_thread.h"

namespace tributary {
namespace {

// A chunk's copy takes that long or less.
void nap_for_copy() {
  std::this_thread::sleep_for(std::chrono::microseconds(50));
}

}  // namespace

Result<std::unique_ptr<DeviceExchange>> DeviceExchange::create(std::shared_ptr<AllreduceDevices> devices,
                                                               const JobConfig& config, Round start,
                                                               AllreduceEngineOutput& output, Logger logger) {
  std::unique_ptr<DeviceExchange> self(new DeviceExchange(config.name, output, std::move(logger)));
  auto engine = AllreduceEngine::create(std::move(devices), config, start, *self);
  if (!engine) return tl::unexpected(engine.error());
  self->engine_ = std::move(*engine);
  return self;
}

DeviceExchange::~DeviceExchange() {
  if (engine_) stop();
}

Status DeviceExchange::connect(std::span<const CommKey> keys) {
  if (Status begun = engine_->connect(keys); !begun) return begun;
  while (!engine_->connected()) {
    if (given_up()) return fail(ErrorCode::kStopped, "the view is over");
    const std::uint64_t now = steady_ns();
    engine_->step(now);
    if (engine_->failed()) return tl::unexpected(error_);
    if (!engine_->connected()) sleep_until_next(*engine_, engine_->inbox().fd(), now);
  }
  return {};
}

Status DeviceExchange::load(ReplicaState& state) {
  return engine_->load(state, [this] { return nap_for_copy(), !given_up(); });
}

void DeviceExchange::start() {
  started_ = true;
  thread_ = start_thread("device exchange", logger_, [this] { run(); });
}

void DeviceExchange::run() {
  while (!given_up()) {
    const std::uint64_t now = steady_ns();
    engine_->step(now);
    notice(now);
    sleep_until_next(*engine_, engine_->inbox().fd(), now);
  }
}

void DeviceExchange::notice(std::uint64_t now_ns) {
  const auto oldest = engine_->oldest();
  if (!oldest || now_ns < oldest->since_ns + kNoticeMs * 1'000'000 || noticed_ns_ == oldest->since_ns) return;
  noticed_ns_ = oldest->since_ns;
  logger_->info("job '{}': bucket {} of round {} has waited {} s for other nodes", job_, oldest->chunk.value,
                oldest->round.value, (now_ns - oldest->since_ns) / 1'000'000'000);
}

void DeviceExchange::engine_failed(const Error& error) {
  error_ = error;
  if (started_) output_.engine_failed(error);
}

void DeviceExchange::give_up() {
  giving_up_.store(true, std::memory_order_release);
  engine_->inbox().rouse();
}

void DeviceExchange::stop() {
  if (stopped_) return;
  stopped_ = true;
  give_up();
  if (thread_.joinable()) thread_.join();
  engine_->abort_collectives();
  end_device_work(*engine_, logger_, nap_for_devices);
}

Status DeviceExchange::save(ReplicaState& state) {
  const std::uint64_t deadline = steady_ms() + kDevicesQuietMs;
  return engine_->save(state, [deadline] { return nap_for_copy(), steady_ms() < deadline; });
}

}  // namespace tributary
