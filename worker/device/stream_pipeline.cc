#include "worker/device/stream_pipeline.h"

#include <algorithm>
#include <utility>

#include "worker/device/settle_pace.h"

namespace tributary {
namespace {

constexpr const char* kNcclHint =
    "; NCCL_DEBUG=INFO in the worker's environment tells what NCCL waits for, NCCL_SOCKET_IFNAME which network it uses";

}  // namespace

StreamPipeline::StreamPipeline(DeviceApi& api, std::span<const DeviceIndex> devices, std::uint64_t timeout_ns,
                               EventFd wake, std::size_t orders)
    : api_(api), timeout_ns_(timeout_ns), inbox_(std::make_shared<DeviceInbox>(std::move(wake), orders)) {
  for (const DeviceIndex device : devices) devices_.push_back({device, {}, {}, {}});
}

void StreamPipeline::destroy_streams() {
  for (const Device& device : devices_) {
    for (const CommId comm : device.comms) api_.destroy(comm);
    for (const EventId event : device.events) api_.destroy_event(event);
    for (const StreamId stream : device.streams) api_.destroy_stream(stream);
  }
}

Status StreamPipeline::add_stream(std::uint32_t position, const char* label, StreamId& stream) {
  auto made = api_.create_stream(devices_[position].device, label);
  if (!made) return tl::unexpected(made.error());
  stream = devices_[position].streams.emplace_back(*made);
  return {};
}

Status StreamPipeline::add_event(std::uint32_t position, const char* label, EventId& event) {
  auto made = api_.create_event(devices_[position].device, label);
  if (!made) return tl::unexpected(made.error());
  event = devices_[position].events.emplace_back(*made);
  return {};
}

void StreamPipeline::add_communicator(std::uint32_t position, CommId comm) {
  devices_[position].comms.push_back(comm);
}

void StreamPipeline::begin_connecting(std::uint32_t ranks, LaunchGate::Hold hold) {
  launch_ = std::move(hold);
  ranks_ = ranks;
  connecting_ = true;
}

// ---- One step ----

void StreamPipeline::step(std::uint64_t now_ns) {
  now_ns_ = now_ns;
  if (connecting_ && since_ns_ == 0) since_ns_ = now_ns;
  inbox_->take(orders_);
  if (failed_) return;
  if (const Status done = turn(); !done && !failed_) {
    // NCCL may be the first to notice a device's fault. The fault is the cause, and decides what becomes of the process.
    const Status cause = fault();
    abort_collectives();
    tell_failure(cause ? done.error() : cause.error());
  }
}

Status StreamPipeline::turn() {
  // Checked before completions are passed on: the stream may have continued after a failed collective.
  if (const auto errors = unsettled(); !errors) return tl::unexpected(errors.error());
  for (const DeviceOrder& order : orders_) handle(order);
  if (connecting_ || settling_) {
    if (Status done = settle(); !done) return done;
  }
  if (Status done = issue(); !done) return done;
  return watch();
}

Status StreamPipeline::settle() {
  const Result<std::uint32_t> missing = unsettled();
  if (!missing) return tl::unexpected(missing.error());
  if (connecting_) {
    if (std::exchange(unconnected_, *missing) > *missing) since_ns_ = now_ns_;
    connecting_ = *missing != 0;
    if (!connecting_) {
      launch_.let_go();
      if (Status ready = communicators_ready(); !ready) return ready;
    }
  }
  if (!settling_ || *missing != 0) return {};
  settling_ = false;
  launch_.let_go();
  return settled();
}

std::uint64_t StreamPipeline::next_step_ns(std::uint64_t now_ns) const {
  if (failed_) return kIdle;
  if (connecting_) return now_ns + kConnectStepNs;
  if (settling_) return next_ask_ns(since_ns_, now_ns);
  return under_way() ? now_ns + std::min(kWatchNs, timeout_ns_ / 4 + 1) : kIdle;
}

Status StreamPipeline::collectives(const std::function<Status(std::uint32_t position)>& calls) {
  launch_ = api_.launches().launch();
  if (Status done = api_.group_start(); !done) return done;
  Status status;
  for (std::uint32_t position = 0; position < devices_.size() && status; ++position) status = calls(position);
  if (Status ended = api_.group_end(); status) status = std::move(ended);
  if (!status) return status;
  const Result<std::uint32_t> missing = unsettled();
  if (!missing) return tl::unexpected(missing.error());
  settling_ = *missing != 0;
  if (settling_) {
    since_ns_ = now_ns_;
  } else {
    launch_.let_go();
  }
  return {};
}

Status StreamPipeline::tell(StreamId stream, EventId event, DeviceCallback* what) {
  const Status waits = api_.wait(stream, event);
  return waits ? api_.call_host(stream, &DeviceCallback::post, what) : waits;
}

// ---- Failure ----

Result<std::uint32_t> StreamPipeline::unsettled() const {
  std::uint32_t count = 0;
  for (std::uint32_t position = 0; position < devices_.size(); ++position) {
    for (const CommId comm : devices_[position].comms) {
      const Result<bool> one = api_.comm_settled(comm);
      if (!one) return fail(one.error().code, describe(position) + ": NCCL reports " + one.error().message);
      if (!*one) ++count;
    }
  }
  return count;
}

Status StreamPipeline::fault() const {
  for (std::uint32_t position = 0; position < devices_.size(); ++position) {
    const Status asked = fault_on(api_, devices_[position].streams);
    if (!asked) return fail(asked.error().code, describe(position) + ": " + asked.error().message);
  }
  return {};
}

Status StreamPipeline::watch() {
  if (under_way() && now_ns_ >= asked_ns_ + kWatchNs) {
    asked_ns_ = now_ns_;
    if (Status none = fault(); !none) return none;
  }
  if (!connecting_) return check_progress();
  if (!late(since_ns_)) return {};
  return too_slow("the communicators of " + std::to_string(ranks_) + " ranks (ncclCommInitRankConfig)",
                  devices_in_words(true));
}

tl::unexpected<Error> StreamPipeline::too_slow(const std::string& what, const std::string& where) const {
  return fail(ErrorCode::kDevice, what + " took longer than " + std::to_string(timeout_ns_ / 1'000'000) +
                                      " ms ([device] collective_timeout_ms in worker.toml) on " + where +
                                      (ranks_ == 0 ? "" : kNcclHint));
}

std::string StreamPipeline::devices_in_words(bool unsettled_only) const {
  std::string words;
  for (std::uint32_t position = 0; position < devices_.size(); ++position) {
    const bool settled = std::ranges::all_of(devices_[position].comms, [this](CommId comm) {
      const Result<bool> one = api_.comm_settled(comm);
      return one && *one;
    });
    if (!unsettled_only || !settled) words += (words.empty() ? "" : "; ") + describe(position);
  }
  return words;
}

void StreamPipeline::abort_collectives() {
  failed_ = true;
  for (Device& device : devices_) {
    for (const CommId comm : device.comms) api_.abort(comm);
    device.comms.clear();
  }
  launch_.let_go();
}

// ---- The end ----

bool StreamPipeline::quiet() {
  return std::ranges::all_of(devices_, [this](const Device& device) { return is_quiet(api_, device.streams); });
}

void StreamPipeline::abandon() {
  api_.keep(inbox_);
  abandon_memory();
  devices_.clear();
}

}  // namespace tributary
