// Resources, streams and the scheduler; what runs on the streams is in fake_work.cc.
#include "tests/fake_device/fake_device_api.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace tributary::testing {
namespace {

constexpr std::size_t kAlign = 256;
constexpr std::size_t kRecordsKept = 64;  // of an event: more than there are waits for it under way

}  // namespace

FakeDeviceApi::FakeDeviceApi(FakeDeviceOptions options)
    : options_(std::move(options)), random_(options_.seed), device_used_(options_.devices) {
  for (std::uint32_t i = 0; i < options_.devices; ++i) {
    DeviceInfo info{
        .name = "fake:" + std::to_string(i), .uuid = "GPU-fake-" + std::to_string(i), .memory = options_.device_bytes};
    infos_.push_back(std::move(info));
  }
}

FakeDeviceApi::~FakeDeviceApi() {
  for (auto& [id, comm] : comms_) {  // collectives refer to their set
    comm.set->open.clear();
    comm.party->launches.clear();
  }
}

FakeDeviceApi::Lock FakeDeviceApi::enter(const char* call) const {
  if (in_callback_.load() == std::this_thread::get_id()) {
    violation(std::string(call) + " was called from a host callback");
    return {};
  }
  return Lock(mutex_);
}

void FakeDeviceApi::violation(const std::string& text) const {
  constexpr std::size_t kEnough = 20;
  if (violations_.size() < kEnough) violations_.push_back(text);
}

std::vector<std::string> FakeDeviceApi::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}

FakeDeviceApi::Live FakeDeviceApi::live() const {
  const std::lock_guard lock(mutex_);
  Live live;
  for (const auto& [memory, block] : blocks_) ++(block.device ? live.blocks : live.pinned);
  live.streams = streams_.size();
  live.events = events_.size();
  live.communicators = comms_.size();
  return live;
}

std::size_t FakeDeviceApi::aborted() const {
  const std::lock_guard lock(mutex_);
  return aborted_;
}

std::size_t FakeDeviceApi::collectives() const {
  const std::lock_guard lock(mutex_);
  return executed_;
}

std::size_t FakeDeviceApi::groups() const {
  const std::lock_guard lock(mutex_);
  return groups_ended_;
}

std::size_t FakeDeviceApi::waits() const {
  const std::lock_guard lock(mutex_);
  return waits_;
}

std::vector<std::string> FakeDeviceApi::mixed_streams() const {
  const std::lock_guard lock(mutex_);
  return {mixed_.begin(), mixed_.end()};
}

Error FakeDeviceApi::error(std::uint32_t device, const std::string& operation, const std::string& why) const {
  return {ErrorCode::kDevice, infos_[device].name + ": " + operation + ": " + why};
}

Error FakeDeviceApi::fault(std::uint32_t device, const std::string& operation) const {
  Error told = error(device, operation, "an illegal memory access was encountered");
  told.code = ErrorCode::kUnavailable;
  return told;
}

std::string FakeDeviceApi::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_.empty() ? std::string() : fault(*lost_.begin(), "lost").message;
}

void FakeDeviceApi::check_no_launch(const char* call) const {
  const auto launching = [](const auto& comm) { return !comm.second.party->launches.empty(); };
  if (std::ranges::any_of(comms_, launching)) {
    violation(std::string(call) + " while a group of collectives is half launched");
  }
}

std::string FakeDeviceApi::name(const Stream& stream, const std::string& operation) const {
  return operation + " on " + infos_[stream.device].name + "/" + stream.label;
}

// ---- Memory ----

Status FakeDeviceApi::make_room(std::optional<std::uint32_t> device, std::size_t bytes, const char* purpose) {
  std::size_t& used = device ? device_used_[*device] : pinned_used_;
  const std::size_t limit = device ? options_.device_bytes : options_.pinned_bytes;
  if (bytes > limit - used) {
    return fail(ErrorCode::kLimit, (device ? infos_[*device].name : std::string("pinned memory")) + ": " +
                                       std::to_string(bytes) + " bytes for " + purpose + ": out of memory");
  }
  used += bytes;
  return {};
}

Result<void*> FakeDeviceApi::take(std::uint32_t device, std::size_t bytes, const char* purpose) {
  if (Status room = make_room(device, bytes, purpose); !room) return tl::unexpected(room.error());
  const std::size_t size = (std::max<std::size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  Block block;
  block.memory = {static_cast<std::byte*>(std::aligned_alloc(kAlign, size)), std::free};
  block.bytes = bytes;
  block.device = device;
  std::memset(block.memory.get(), 0, size);
  std::byte* memory = block.memory.get();
  blocks_.emplace(memory, std::move(block));
  return memory;
}

void FakeDeviceApi::give(const void* memory, std::optional<std::uint32_t> device) {
  const auto at = blocks_.find(static_cast<const std::byte*>(memory));
  if (at == blocks_.end() || at->second.device != device) return violation("memory is freed that is not allocated");
  const auto* begin = at->first;
  const auto* end = begin + at->second.bytes;
  for (const auto& [id, stream] : streams_) {
    if (lost_.contains(stream.device)) continue;
    for (const Operation& operation : stream.operations) {
      for (const Touch& touch : operation.touches) {
        const auto* used = static_cast<const std::byte*>(touch.memory);
        if (used >= begin && used < end) violation("memory is freed that '" + operation.what + "' is to use");
      }
    }
  }
  if (const auto who = at->second.history.unknown(host_); who && lost_.empty()) {
    violation("memory is freed without waiting for '" + *who + "'");
  }
  (device ? device_used_[*device] : pinned_used_) -= at->second.bytes;
  blocks_.erase(at);
}

Result<void*> FakeDeviceApi::allocate(DeviceIndex device, std::size_t bytes, const char* purpose) {
  const Lock lock = enter("allocate");
  check_no_launch("allocate");
  return take(device.value, bytes, purpose);
}

void FakeDeviceApi::free(DeviceIndex device, void* memory) {
  const Lock lock = enter("free");
  check_no_launch("free");
  give(memory, device.value);
}

Status FakeDeviceApi::pin(DeviceIndex, std::span<std::byte> memory, const char* purpose) {
  const Lock lock = enter("pin");
  check_no_launch("pin");
  if (Status room = make_room(std::nullopt, memory.size(), purpose); !room) return room;
  Block block;
  block.memory = {memory.data(), [](void*) {}};  // its owner's
  block.bytes = memory.size();
  blocks_.emplace(memory.data(), std::move(block));
  return {};
}

void FakeDeviceApi::unpin(std::span<std::byte> memory) {
  const Lock lock = enter("unpin");
  check_no_launch("unpin");
  give(memory.data(), std::nullopt);
}

Result<IpcHandle> FakeDeviceApi::export_memory(DeviceIndex device, void* memory) {
  const Lock lock = enter("export_memory");
  const auto at = blocks_.find(static_cast<std::byte*>(memory));
  if (at == blocks_.end() || at->second.device != device.value) violation("a pointer is exported that is no base");
  IpcHandle handle;
  std::memcpy(handle.bytes.data(), &memory, sizeof memory);
  return handle;
}

void* FakeDeviceApi::opened(const IpcHandle& handle) const {
  const std::lock_guard lock(mutex_);
  void* memory = nullptr;
  std::memcpy(&memory, handle.bytes.data(), sizeof memory);
  return blocks_.contains(static_cast<std::byte*>(memory)) ? memory : nullptr;
}

FakeDeviceApi::Block* FakeDeviceApi::block_of(const void* memory, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(memory);
  auto next = blocks_.upper_bound(at);
  if (next == blocks_.begin()) return nullptr;
  auto& [base, block] = *--next;
  return at + bytes <= base + block.bytes ? &block : nullptr;
}

void FakeDeviceApi::touch(const Touch& what, std::size_t actor, std::uint64_t time, const Clock& knows,
                          const std::string& by) {
  if (what.bytes == 0) return;
  Block* block = block_of(what.memory, what.bytes);
  if (!block) return violation("'" + by + "' uses memory that is not allocated");
  Access access;
  access.begin = static_cast<std::size_t>(static_cast<const std::byte*>(what.memory) - block->memory.get());
  access.end = access.begin + what.bytes;
  access.write = what.write;
  access.actor = actor;
  access.time = time;
  access.what = by;
  if (const auto conflict = block->history.add(access, knows)) violation(*conflict);
}

void FakeDeviceApi::host_access(std::span<const std::byte> pinned, bool write) {
  const Lock lock = enter("host_access");
  const std::uint64_t time = host_.tick(0);
  touch({pinned.data(), pinned.size(), write}, 0, time, host_, write ? "host's write" : "host's read");
}

// ---- Streams and events ----

Result<StreamId> FakeDeviceApi::create_stream(DeviceIndex device, const char* label) {
  const Lock lock = enter("create_stream");
  const StreamId id(++last_id_);
  Stream& stream = streams_[id];
  stream.device = device.value;
  stream.actor = ++last_actor_;
  stream.label = label;
  return id;
}

void FakeDeviceApi::destroy_stream(StreamId id) {
  const Lock lock = enter("destroy_stream");
  const auto at = streams_.find(id);
  if (at == streams_.end()) return violation("a stream is destroyed that does not exist");
  if (!at->second.operations.empty() && !lost_.contains(at->second.device))
    violation("stream " + at->second.label + " is destroyed while work is on it");
  streams_.erase(at);
}

Result<bool> FakeDeviceApi::idle(StreamId id) {
  const Lock lock = enter("idle");
  const Stream& stream = streams_.at(id);
  if (lost_.contains(stream.device)) return tl::unexpected(fault(stream.device, "idle"));
  if (!stream.operations.empty()) return false;
  host_.join(stream.clock);
  return true;
}

Result<EventId> FakeDeviceApi::create_event(DeviceIndex, const char* label) {
  const Lock lock = enter("create_event");
  const EventId id(++last_id_);
  events_[id].label = label;
  return id;
}

void FakeDeviceApi::destroy_event(EventId id) {
  const Lock lock = enter("destroy_event");
  if (events_.erase(id) == 0) violation("an event is destroyed that does not exist");
}

Result<bool> FakeDeviceApi::reached(EventId id) {
  const Lock lock = enter("reached");
  const Event& event = events_.at(id);
  if (event.reached != event.recorded) return false;
  if (event.recorded != 0) host_.join(event.clocks.at(event.reached));
  return true;
}

Status FakeDeviceApi::put(const char* call, StreamId id, Operation operation) {
  const auto at = streams_.find(id);
  if (at == streams_.end()) {
    violation(std::string(call) + " on a stream that does not exist");
    return {};
  }
  Stream& stream = at->second;
  if (lost_.contains(stream.device)) return tl::unexpected(fault(stream.device, call));
  if (stream.unsettled != 0) {
    violation(std::string(call) + " on " + stream.label + " before the collective before it was settled");
  }
  stream.works |= operation.kind == Operation::Kind::kWork;
  stream.calls |= operation.kind == Operation::Kind::kCall;
  if (stream.works && stream.calls) mixed_.insert(stream.label);
  operation.what = name(stream, operation.what.empty() ? call : operation.what);
  operation.issued = host_;
  stream.operations.push_back(std::move(operation));
  return {};
}

Status FakeDeviceApi::record(EventId id, StreamId stream) {
  const Lock lock = enter("record");
  Event& event = events_.at(id);
  Operation operation{.kind = Operation::Kind::kRecord, .event = id, .record = ++event.recorded};
  return put("record", stream, std::move(operation));
}

Status FakeDeviceApi::wait(StreamId stream, EventId id) {
  const Lock lock = enter("wait");
  ++waits_;
  const Event& event = events_.at(id);
  if (event.recorded == 0 || event.label == options_.faults.ignored_event) return {};
  Operation operation{.kind = Operation::Kind::kWait, .event = id, .record = event.recorded};
  return put("wait", stream, std::move(operation));
}

Status FakeDeviceApi::call_host(StreamId stream, HostCallback callback, void* context) {
  const Lock lock = enter("call_host");
  Operation operation;
  operation.kind = Operation::Kind::kCall;
  operation.run = [callback, context] { callback(context); };
  return put("call_host", stream, std::move(operation));
}

// ---- The scheduler ----

bool FakeDeviceApi::runnable(const Stream& stream, StreamId id) {
  if (stream.operations.empty() || lost_.contains(stream.device) || (stream.hung && !let_go_)) return false;
  const Operation& head = stream.operations.front();
  if (head.kind == Operation::Kind::kWait) {
    const auto event = events_.find(head.event);
    return event == events_.end() || event->second.reached >= head.record;
  }
  if (head.kind != Operation::Kind::kCollective) return true;
  const auto part = std::ranges::find(head.collective->parts, id, &Collective::Part::stream);
  return part->over || can_execute(*head.collective);
}

bool FakeDeviceApi::run_one() {
  const Lock lock = enter("run_one");
  ++turns_;
  std::vector<StreamId> able;
  bool late = false;
  for (auto& [id, stream] : streams_) {
    if (runnable(stream, id)) able.push_back(id);
    late |= !stream.operations.empty() && stream.operations.front().kind == Operation::Kind::kCollective &&
            stream.operations.front().collective->due.value_or(0) > turns_;
  }
  if (able.empty()) return late;
  execute(able[random_() % able.size()]);
  return true;
}

void FakeDeviceApi::execute(StreamId id) {
  Stream& stream = streams_.at(id);
  if (stream.operations.front().kind == Operation::Kind::kCollective) {
    const std::shared_ptr<Collective> collective = stream.operations.front().collective;
    const auto part = std::ranges::find(collective->parts, id, &Collective::Part::stream);
    if (!part->over) return execute_collective(*collective);  // the streams go on in turns of their own
  }
  if (stream.operations.front().kind == Operation::Kind::kWork && options_.faults.kernel_hangs == work_) {
    ++work_;
    stream.hung = true;
    return;
  }
  const Operation operation = std::move(stream.operations.front());
  stream.operations.pop_front();
  stream.clock.join(operation.issued);
  switch (operation.kind) {
    case Operation::Kind::kWork: {
      if (options_.faults.kernel_faults == work_++) {
        lost_.insert(stream.device);
        break;
      }
      const std::uint64_t time = stream.clock.tick(stream.actor);
      for (const Touch& what : operation.touches) touch(what, stream.actor, time, stream.clock, operation.what);
      operation.run();
      break;
    }
    case Operation::Kind::kRecord: {
      stream.clock.tick(stream.actor);
      const auto event = events_.find(operation.event);
      if (event == events_.end()) break;
      event->second.reached = std::max(event->second.reached, operation.record);
      event->second.clocks[operation.record] = stream.clock;
      if (event->second.clocks.size() > kRecordsKept) event->second.clocks.erase(event->second.clocks.begin());
      break;
    }
    case Operation::Kind::kWait: {
      const auto event = events_.find(operation.event);
      if (event != events_.end()) stream.clock.join(event->second.clocks.at(operation.record));
      break;
    }
    case Operation::Kind::kCall:
      stream.clock.tick(stream.actor);
      in_callback_.store(std::this_thread::get_id());
      operation.run();
      in_callback_.store({});
      host_.join(stream.clock);
      break;
    case Operation::Kind::kCollective:
      break;
  }
}

}  // namespace tributary::testing
