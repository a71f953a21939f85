#include "worker/device/device_reducer.h"

#include <cstring>

#include "common/base/assert.h"
#include "kernels/stream_copy.h"

namespace tributary {
namespace {

// One sleep while a residual is waited for: then failures are looked for.
constexpr std::uint64_t kWaitNs = 100'000'000;
// An event of each kind a chunk may have pending.
constexpr std::size_t kEventsPerChunk = 3;

}  // namespace

// ---- DeviceReduction ----

Result<std::shared_ptr<DeviceReduction>> DeviceReduction::create(std::shared_ptr<DeviceApi> api, DevicePlan plan,
                                                                 DeviceReductionOptions options, Logger logger) {
  std::shared_ptr<DeviceReduction> self(new DeviceReduction(std::move(api), std::move(options), std::move(logger)));
  auto engine = DeviceEngine::create(*self->api_, std::move(plan), self->options_.engine, *self);
  if (!engine) return tl::unexpected(engine.error());
  self->engine_ = std::move(*engine);
  self->thread_.emplace(*self->engine_, self->logger_, self->options_.pump);
  self->ports_by_chunk_.resize(self->plan().layout->chunks());
  if (Status made = self->make_loans(); !made) return tl::unexpected(made.error());
  if (!self->options_.pump) self->thread_->start("device reduction", [](std::uint64_t) { return true; });
  return self;
}

Status DeviceReduction::make_loans() {
  const DevicePlan& plan = this->plan();
  for (std::uint32_t rank = 0; rank < plan.position_of_rank.size(); ++rank) {
    const std::uint32_t position = plan.position_of_rank[rank];
    auto loan = make_loan(*api_, plan.devices[position], memory().gradients(rank, 0), memory().parameters(position, 0),
                          DeviceMemory::array_bytes(plan));
    if (!loan) return tl::unexpected(loan.error());
    loans_.push_back(std::move(*loan));
  }
  return {};
}

Result<DeviceReduction::Port*> DeviceReduction::add_port(const LaneChunks& chunks) {
  auto wake = EventFd::create();
  if (!wake) return tl::unexpected(wake.error());
  auto port = std::make_unique<Port>(std::move(*wake), kEventsPerChunk * chunks.size() + 1);
  for (const LaneChunk& chunk : chunks) {
    TRIB_ASSERT(!ports_by_chunk_[chunk.index.value]);
    ports_by_chunk_[chunk.index.value] = port.get();
  }
  const std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_acquire)) port->push({Event::Kind::kFailed, {}});
  ports_.push_back(std::move(port));
  return ports_.back().get();
}

void DeviceReduction::engine_failed(const Error& error) {
  logger_->error("{}", error.message);
  const std::lock_guard lock(mutex_);
  error_ = error;
  failed_.store(true, std::memory_order_release);
  for (const auto& port : ports_) port->push({Event::Kind::kFailed, {}});
}

Error DeviceReduction::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

std::size_t DeviceReduction::ports() const {
  const std::lock_guard lock(mutex_);
  return ports_.size();
}

void DeviceReduction::wait_for(const Port& port) const {
  if (options_.pump) {
    options_.pump();
  } else {
    DeviceThread::sleep_on(port.fd(), kWaitNs);
  }
}

// ---- DeviceReducer ----

Result<std::unique_ptr<DeviceReducer>> DeviceReducer::create(std::shared_ptr<DeviceReduction> reduction,
                                                             LaneChunks& chunks, ReduceListener& listener,
                                                             std::shared_ptr<RedoRing> ring) {
  auto port = reduction->add_port(chunks);
  if (!port) return tl::unexpected(port.error());
  return std::unique_ptr<DeviceReducer>(
      new DeviceReducer(std::move(reduction), **port, chunks, listener, std::move(ring)));
}

DeviceReducer::DeviceReducer(std::shared_ptr<DeviceReduction> reduction, DeviceReduction::Port& port,
                             LaneChunks& chunks, ReduceListener& listener, std::shared_ptr<RedoRing> ring)
    : reduction_(std::move(reduction)),
      port_(port),
      listener_(listener),
      ring_(std::move(ring)),
      chunks_(chunks),
      work_(chunks.size()) {
  events_.reserve(kEventsPerChunk * chunks.size() + 1);
  early_.reserve(events_.capacity());
  if (!ring_ || !keeps_residual()) return;
  for (const LaneChunk& chunk : chunks_) begin_residual(chunk);
}

// A device begins with residuals of zero.
void DeviceReducer::begin_residual(const LaneChunk& chunk) {
  const Round start = chunk.gradient.round;
  const std::size_t bytes = chunk.range.elements * sizeof(float);
  if (ring_->has_residual(chunk.index, start)) return move_to_device(chunk, {kept_residual(chunk, start), bytes});
  ring_->begin_residual(chunk.index, start);
  std::memset(kept_residual(chunk, start), 0, bytes);
  ring_->publish_residual(chunk.index, start);
}

std::byte* DeviceReducer::kept_residual(const LaneChunk& chunk, Round round) const {
  return ring_->area(chunk.index, round) + residual_offset(reduction_->memory().frame_bytes(chunk.index));
}

// After the last round that was reduced.
void DeviceReducer::keep_residual(const LaneChunk& chunk, std::span<const std::byte> values) {
  const Round round = chunk.gradient.round;
  ring_->begin_residual(chunk.index, round);
  std::memcpy(kept_residual(chunk, round), values.data(), values.size());
  ring_->publish_residual(chunk.index, round);
}

// The frame last: a round counts once it is there, and then its residual must be.
void DeviceReducer::keep(const LaneChunk& chunk) {
  const DeviceMemory& memory = reduction_->memory();
  if (keeps_residual()) {
    const std::span<const std::byte> values{memory.residual_behind(chunk.index), chunk.range.elements * sizeof(float)};
    reduction_->api_->host_access(values, false);
    keep_residual(chunk, values);
  }
  const Round round = chunk.gradient.round;
  kernels::stream_copy(memory.frame(chunk.index), memory.frame_bytes(chunk.index), ring_->frame(chunk.index, round));
  ring_->publish(chunk.index, round, chunk.gradient.weight, chunk.gradient.settings);
}

std::vector<const SharedMemory*> DeviceReducer::frames() const {
  std::vector<const SharedMemory*> memories = reduction_->memory().areas();
  if (ring_) memories.push_back(&ring_->memory());  // has the frames that are pushed again
  return memories;
}

void DeviceReducer::post(DeviceOrder::Kind kind, const LaneChunk& chunk, bool flag, std::uint64_t weight) {
  reduction_->engine_->inbox().post({kind, chunk.index, 0, flag, weight});
}

void DeviceReducer::reduce(LaneChunk& chunk, bool with_residual) {
  Work& work = work_[chunk.place];
  TRIB_ASSERT(!work.open && (!with_residual || keeps_residual()));
  if (reduction_->failed_.load(std::memory_order_acquire)) return;
  work.open = true;
  work.with_residual = with_residual;
  ++under_way_;
  post(DeviceOrder::Kind::kReduce, chunk, with_residual || (ring_ && keeps_residual()), chunk.gradient.weight);
}

void DeviceReducer::deliver(LaneChunk& chunk, Version version, bool full, std::span<const std::byte> payload) {
  Work& work = work_[chunk.place];
  TRIB_ASSERT(!work.open && !work.delivering);
  if (reduction_->failed_.load(std::memory_order_acquire)) return;
  std::byte* place = reduction_->memory().answer(chunk.index);
  reduction_->api_->host_access({place, payload.size()}, true);
  std::memcpy(place, payload.data(), payload.size());
  work.delivering = true;
  work.version = version;
  ++under_way_;
  post(DeviceOrder::Kind::kDeliver, chunk, full);
}

void DeviceReducer::release(LaneChunk& chunk) {
  TRIB_ASSERT(work_[chunk.place].open);
  work_[chunk.place].open = false;
  chunk.gradient.frame = {};
}

void DeviceReducer::restore_residual(LaneChunk& chunk, std::span<const std::byte> values) {
  TRIB_ASSERT(keeps_residual() && !work_[chunk.place].open);
  if (reduction_->failed_.load(std::memory_order_acquire)) return;
  if (ring_) keep_residual(chunk, values);
  move_to_device(chunk, values);
}

void DeviceReducer::move_to_device(const LaneChunk& chunk, std::span<const std::byte> values) {
  std::byte* place = reduction_->memory().residual_behind(chunk.index);
  reduction_->api_->host_access({place, values.size()}, true);
  std::memcpy(place, values.data(), values.size());
  ++under_way_;
  ++work_[chunk.place].moves;
  post(DeviceOrder::Kind::kRestoreResidual, chunk, false);
}

std::span<const std::byte> DeviceReducer::residual(const LaneChunk& chunk) {
  Work& work = work_[chunk.place];
  TRIB_ASSERT(keeps_residual());
  const std::span<const std::byte> place{reduction_->memory().residual_behind(chunk.index),
                                         chunk.range.elements * sizeof(float)};
  const auto failed = [this] { return reduction_->failed_.load(std::memory_order_acquire); };
  if (!work.fetched && !failed()) {
    ++under_way_;
    ++work.moves;
    post(DeviceOrder::Kind::kFetchResidual, chunk, work.open);
    work.fetched = true;
    while (work.moves != 0 && !failed()) {
      reduction_->wait_for(port_);
      port_.take(events_);
      for (const Event& event : events_) {
        if (event.kind == Event::Kind::kResidualMoved) {
          handle(event);
        } else {
          early_.push_back(event);
        }
      }
    }
    if (!early_.empty()) port_.rouse();
  }
  if (failed()) return {};
  reduction_->api_->host_access(place, false);
  return place;
}

bool DeviceReducer::poll() {
  // handle() may lead to residual(), which takes events of its own: they come later.
  std::vector<Event> events;
  if (!early_.empty()) {
    events.swap(early_);
    for (const Event& event : events) handle(event);
  }
  events.swap(events_);
  port_.take(events);
  for (const Event& event : events) handle(event);
  events_.swap(events);
  return under_way_ != 0;
}

void DeviceReducer::handle(const Event& event) {
  if (event.kind == Event::Kind::kFailed) {
    under_way_ = 0;
    return listener_.reducer_failed(reduction_->error());
  }
  // A sum that was complete before the failure is good, but the job is over.
  if (reduction_->failed_.load(std::memory_order_acquire)) return;
  --under_way_;
  LaneChunk& chunk = chunks_.at(event.chunk);
  Work& work = work_[chunk.place];
  if (event.kind == Event::Kind::kReduced) {
    const DeviceMemory& memory = reduction_->memory();
    const std::size_t frame = memory.frame_bytes(chunk.index);
    const std::size_t bytes =
        work.with_residual ? residual_offset(frame) + chunk.range.elements * sizeof(float) : frame;
    chunk.gradient.frame = {memory.frame(chunk.index), bytes};
    reduction_->api_->host_access(chunk.gradient.frame, false);
    if (ring_) keep(chunk);
    listener_.reduced(chunk);
  } else if (event.kind == Event::Kind::kDelivered) {
    work.delivering = false;
    listener_.delivered(chunk, work.version);
  } else {
    --work.moves;
  }
}

std::uint64_t DeviceReducer::busy_ns() const {
  return reduction_->engine_->busy_ns() / std::max<std::size_t>(reduction_->ports(), 1);
}

}  // namespace tributary
