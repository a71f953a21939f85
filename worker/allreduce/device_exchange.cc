#include "worker/allreduce/device_exchange.h"

#include <chrono>
#include <thread>
#include <utility>

#include "common/base/clock.h"

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
  self->thread_.emplace(*self->engine_, self->logger_);
  return self;
}

Status DeviceExchange::connect(std::span<const CommKey> keys) {
  if (Status begun = engine_->connect(keys); !begun) return begun;
  thread_->run([this](std::uint64_t) { return !engine_->connected() && !engine_->failed(); });
  if (thread_->given_up()) return fail(ErrorCode::kStopped, "the view is over");
  return engine_->failed() ? tl::unexpected(error_) : Status();
}

Status DeviceExchange::load(ReplicaState& state) {
  return engine_->load(state, [this] { return nap_for_copy(), !thread_->given_up(); });
}

void DeviceExchange::start() {
  started_ = true;
  thread_->start("device exchange", [this](std::uint64_t now) { return notice(now), true; });
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

void DeviceExchange::stop() {
  if (!thread_ || std::exchange(stopped_, true)) return;
  thread_->join();
  engine_->abort_collectives();
  thread_->end();
}

Status DeviceExchange::save(ReplicaState& state) {
  const std::uint64_t deadline = steady_ms() + DeviceThread::kQuietMs;
  return engine_->save(state, [deadline] { return nap_for_copy(), steady_ms() < deadline; });
}

}  // namespace tributary
