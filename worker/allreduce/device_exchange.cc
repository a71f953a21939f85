#include "worker/allreduce/device_exchange.h"

#include <algorithm>
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

Status DeviceExchange::open(std::shared_ptr<GlooDevice> /*device*/, Addresses& mine) {
  auto engine = AllreduceEngine::create(devices_, view_.plan, view_.start, *this);
  if (!engine) return tl::unexpected(engine.error());
  engine_ = std::move(*engine);
  thread_.emplace(*engine_, logger_);
  const std::uint32_t node = devices_->plan().rank.value;
  for (std::size_t i = 0; node == 0 && i < address_count(node); ++i) {
    const Result<CommKey> key = devices_->api().make_comm_key();
    if (!key) return tl::unexpected(key.error());
    mine.emplace_back(key->bytes.begin(), key->bytes.end());
  }
  return {};
}

std::size_t DeviceExchange::address_count(std::uint32_t node) const {
  return node == 0 && devices_->plan().between_nodes() ? devices_->plan().communicators() : 0;
}

Status DeviceExchange::connect(ViewProgress& view) {
  const Result<Addresses> addresses = view.addresses_of(0, address_count(0));
  if (!addresses) return tl::unexpected(addresses.error());
  std::vector<CommKey> keys(address_count(0));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::vector<std::byte>& bytes = (*addresses)[kControlAddresses + i];
    if (bytes.size() != keys[i].bytes.size()) return fail(ErrorCode::kMalformed, "node 0 said a key that is none");
    std::ranges::copy(bytes, keys[i].bytes.begin());
  }
  return connect(keys);
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
  thread_->start("device exchange", [this](std::uint64_t now) { return notice_oldest(now), true; });
}

void DeviceExchange::notice_oldest(std::uint64_t now_ns) {
  const auto oldest = engine_->oldest();
  if (!oldest || now_ns < oldest->since_ns + kNoticeMs * 1'000'000 || noticed_ns_ == oldest->since_ns) return;
  noticed_ns_ = oldest->since_ns;
  logger_->info("job '{}': bucket {} of round {} has waited {} s for other nodes", view_.name(), oldest->chunk.value,
                oldest->round.value, (now_ns - oldest->since_ns) / 1'000'000'000);
}

void DeviceExchange::exchange_failed(const std::string& doing, const Error& error) {
  error_ = error;
  if (started_) output_.exchange_failed(doing, error);
}

void DeviceExchange::close(bool clean) {
  if (!clean) thread_->give_up();
}

// Nothing shows whether NCCL still sends for other nodes: so all must have come here before anything is aborted.
void DeviceExchange::stop(const std::function<void()>& meet) {
  if (!thread_ || std::exchange(stopped_, true)) return;
  meet();
  thread_->join();
  engine_->abort_collectives();
  thread_->end();
}

Status DeviceExchange::save(ReplicaState& state) {
  const std::uint64_t deadline = steady_ms() + DeviceThread::kQuietMs;
  return engine_->save(state, [deadline] { return nap_for_copy(), steady_ms() < deadline; });
}

}  // namespace tributary
