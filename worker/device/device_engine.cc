#include "worker/device/device_engine.h"

#include "common/base/assert.h"

namespace tributary {
namespace {

// Orders of a chunk: reduce, deliver, two for its residual; completions: reduced, arrived, residual moved, and a
// delivery per device and group, which are as many as chunks.
constexpr std::size_t kOrdersPerChunk = 8;

}  // namespace

DeviceEngine::DeviceEngine(DeviceApi& api, DevicePlan plan, DeviceEngineOptions options, DeviceEngineOutput& output,
                           EventFd wake)
    : StreamPipeline(api, plan.devices, options.timeout_ns, std::move(wake),
                     kOrdersPerChunk * plan.groups() * plan.width()),
      plan_(std::move(plan)),
      options_(options),
      output_(output),
      devices_(plan_.width()),
      reduce_("ncclReduceScatter", plan_.groups(), options.ahead),
      deliver_("ncclAllGather", plan_.groups(), options.ahead),
      chunks_(plan_.layout->chunks()),
      gathers_(options.ahead),
      begun_(options.ahead),
      moves_(2 * plan_.layout->chunks()) {}

Result<std::unique_ptr<DeviceEngine>> DeviceEngine::create(DeviceApi& api, DevicePlan plan, DeviceEngineOptions options,
                                                           DeviceEngineOutput& output) {
  TRIB_ASSERT(!plan.devices.empty() && options.slots > 0 && options.ahead > 0);
  auto wake = EventFd::create();
  if (!wake) return tl::unexpected(wake.error());
  std::unique_ptr<DeviceEngine> engine(new DeviceEngine(api, std::move(plan), options, output, std::move(*wake)));
  if (Status done = engine->set_up(); !done) {
    engine->abort_collectives();
    return tl::unexpected(done.error());
  }
  return engine;
}

Status DeviceEngine::set_up() {
  auto memory = DeviceMemory::allocate(api_, plan_, options_.slots);
  if (!memory) return tl::unexpected(memory.error());
  memory_ = std::move(*memory);

  for (std::uint32_t position = 0; position < plan_.width(); ++position) {
    Device& device = devices_[position];
    device.ranks = plan_.ranks_on(position);
    const std::pair<StreamId*, const char*> streams[] = {{&device.up, "up"},
                                                         {&device.out, "out"},
                                                         {&device.in, "in"},
                                                         {&device.down, "down"},
                                                         {&device.told_out, "told out"},
                                                         {&device.told_in, "told in"},
                                                         {&device.told_down, "told down"}};
    for (const auto& [stream, label] : streams) {
      if (Status made = add_stream(position, label, *stream); !made) return made;
    }
    device.slots.resize(options_.slots);
    for (Device::Slot& slot : device.slots) {
      const std::pair<EventId*, const char*> events[] = {{&slot.encoded, "encoded"},     {&slot.sent, "sent"},
                                                         {&slot.arrived, "arrived"},     {&slot.decoded, "decoded"},
                                                         {&slot.scattered, "scattered"}, {&slot.gathered, "gathered"}};
      for (const auto& [event, label] : events) {
        if (Status made = add_event(position, label, *event); !made) return made;
      }
    }
  }
  inputs_.resize(plan_.position_of_rank.size());

  const auto chunks = static_cast<std::uint32_t>(plan_.layout->chunks());
  for (std::uint32_t c = 0; c < chunks; ++c) {
    const ChunkIndex chunk(c);
    const std::uint32_t position = plan_.position_of(chunk);
    reduced_.push_back(inbox().callback({DeviceOrder::Kind::kReduced, chunk, position}));
    arrived_.push_back(inbox().callback({DeviceOrder::Kind::kArrived, chunk, position}));
    moved_.push_back(inbox().callback({DeviceOrder::Kind::kResidualMoved, chunk, position}));
  }
  for (std::uint32_t group = 0; group < plan_.groups(); ++group) {
    reduce_.waiting[group] = deliver_.waiting[group] = plan_.chunks_in(group);
    for (std::uint32_t position = 0; position < plan_.width(); ++position) {
      delivered_.push_back(inbox().callback({DeviceOrder::Kind::kDelivered, plan_.chunk_at(group, 0), position}));
    }
  }

  if (plan_.collectives()) {
    // NCCL takes memory for them. No other node has to come before they are there, so others' groups wait for a moment.
    LaunchGate::Hold hold = api_.launches().memory();
    auto comms = api_.create_comms(plan_.devices);
    if (!comms) return tl::unexpected(comms.error());
    for (std::uint32_t position = 0; position < plan_.width(); ++position) {
      devices_[position].comm = (*comms)[position];
      add_communicator(position, devices_[position].comm);
    }
    begin_connecting(plan_.width(), std::move(hold));
  }
  return {};
}

// ---- Completions ----

void DeviceEngine::handle(const DeviceOrder& order) {
  const std::uint32_t group = plan_.group_of(order.chunk);
  ChunkState& chunk = chunks_[order.chunk.value];
  switch (order.kind) {
    case DeviceOrder::Kind::kReduce:
      chunk.with_residual = order.flag;
      chunk.weight = order.weight;
      chunk.encoded = false;
      arrived(reduce_, order.chunk);
      break;
    case DeviceOrder::Kind::kDeliver:
      chunk.full = order.flag;
      arrived(deliver_, order.chunk);
      break;
    case DeviceOrder::Kind::kRestoreResidual:
      moves_.push({order.chunk, true});
      break;
    case DeviceOrder::Kind::kFetchResidual:
      moves_.push({order.chunk, false, order.flag});
      break;
    case DeviceOrder::Kind::kReduced:
      output_.chunk_reduced(order.chunk);
      completed(reduce_, group);
      if (reduce_.issued.empty()) {
        busy_ns_.store(busy_ns() + now_ns() - busy_since_ns_, std::memory_order_relaxed);
      }
      break;
    case DeviceOrder::Kind::kArrived: {
      Issued* found = deliver_.issued.find([group](const Issued& one) { return one.group == group && one.arriving; });
      TRIB_ASSERT(found);
      deliver_.since_ns = now_ns();
      if (--found->arriving == 0) gathers_.push(group);
      break;
    }
    case DeviceOrder::Kind::kDelivered:
      completed(deliver_, group);
      break;
    case DeviceOrder::Kind::kResidualMoved:
      --moving_;
      moving_since_ns_ = now_ns();
      chunk.moving = false;
      output_.residual_moved(order.chunk);
      break;
  }
}

void DeviceEngine::arrived(Line& line, ChunkIndex chunk) {
  const std::uint32_t group = plan_.group_of(chunk);
  TRIB_ASSERT(line.waiting[group] > 0);
  if (--line.waiting[group] != 0) return;
  line.waiting[group] = plan_.chunks_in(group);
  line.ready.push({group, now_ns()});
}

// One of the completions of `group`, which is among those issued. Groups end in the order of their issue on each
// device, but not over devices.
void DeviceEngine::completed(Line& line, std::uint32_t group) {
  Issued* found = line.issued.find([group](const Issued& one) { return one.group == group && one.missing != 0; });
  TRIB_ASSERT(found);
  if (--found->missing == 0) {
    line.groups.fetch_add(1, std::memory_order_relaxed);
    line.total_ns.fetch_add(now_ns() - found->ready_ns, std::memory_order_relaxed);
    for (std::uint32_t position = 0; &line == &deliver_ && position < plan_.chunks_in(group); ++position) {
      output_.chunk_delivered(plan_.chunk_at(group, position));
    }
  }
  while (!line.issued.empty() && line.issued.front().missing == 0) line.issued.pop();
  line.since_ns = now_ns();
}

// ---- Issuing ----

Status DeviceEngine::issue() {
  for (; !settling() && !moves_.empty() && !chunks_[moves_.front().chunk.value].moving; moves_.pop()) {
    if (moving_++ == 0) moving_since_ns_ = now_ns();
    if (Status done = move_residual(moves_.front()); !done) return done;
  }
  while (!connecting()) {
    // Answers use `in` and `down`: they need not wait for sums, whose collectives are on `up`.
    const bool delivers = !settling() || begun_line_ == &reduce_;
    if (!settling() && !gathers_.empty()) {
      if (Status done = begin_gather(); !done) return done;
    } else if (delivers && !deliver_.ready.empty() && deliver_.issued.size() < options_.ahead) {
      if (Status done = begin_deliver(); !done) return done;
    } else if (!settling() && !reduce_.ready.empty() && reduce_.issued.size() < options_.ahead) {
      if (Status done = begin_reduce(); !done) return done;
    } else {
      break;
    }
  }
  return {};
}

DeviceEngine::Issued& DeviceEngine::begin(Line& line) {
  Issued issued;
  issued.group = line.ready.front().group;
  issued.ready_ns = line.ready.front().since_ns;
  issued.slot = static_cast<std::uint32_t>(line.count % options_.slots);
  issued.number = ++issued_count_;
  line.ready.pop();
  ++line.count;
  if (line.issued.empty()) line.since_ns = now_ns();
  line.issued.push(issued);
  return line.issued.back();
}

// Begins as many groups as have staging memory of their own.
Status DeviceEngine::begin_reduce() {
  begun_line_ = &reduce_;
  while (!reduce_.ready.empty() && reduce_.issued.size() < options_.ahead && begun_.size() < options_.slots) {
    if (reduce_.issued.empty()) busy_since_ns_ = now_ns();
    Issued& issued = begin(reduce_);
    issued.missing = plan_.chunks_in(issued.group);
    begun_.push(issued);
  }
  if (Status begun = scatter(); !begun) return begun;
  return settling() ? Status() : settled();
}

Status DeviceEngine::begin_deliver() {
  Issued& issued = begin(deliver_);
  issued.missing = plan_.width();
  if (plan_.collectives()) issued.arriving = plan_.chunks_in(issued.group);
  for (std::uint32_t position = 0; position < plan_.chunks_in(issued.group); ++position) {
    const Status done = deliver_chunk(position, plan_.chunk_at(issued.group, position), issued.slot);
    if (!done) return done;
  }
  return {};
}

// The rest follows when the collectives are on their streams.
Status DeviceEngine::settled() {
  for (; !begun_.empty(); begun_.pop()) {
    const Issued& issued = begun_.front();
    const Status done =
        begun_line_ == &reduce_ ? finish_reduce(issued.group, issued.slot) : finish_deliver(issued.group, issued.slot);
    if (!done) return done;
  }
  return {};
}

// ---- Failure ----

Status DeviceEngine::check_progress() {
  if (settling() && late(settling_since_ns())) {
    return collective_is_slow(*begun_line_, begun_.front().group, devices_in_words(true));
  }
  if (moving_ != 0 && late(moving_since_ns_)) return too_slow("the copy of a residual", devices_in_words(false));
  const auto overdue = [this](const Line& line) { return !line.issued.empty() && late(line.since_ns); };
  if (settling() || (!overdue(deliver_) && !overdue(reduce_))) return {};
  // The group that was issued first holds up the rest: a communicator works in the order of its calls.
  const bool reduce_first = deliver_.issued.empty() ||
                            (!reduce_.issued.empty() && reduce_.issued.front().number < deliver_.issued.front().number);
  return stuck(reduce_first ? reduce_ : deliver_);
}

void DeviceEngine::abandon_memory() {
  if (memory_) memory_->abandon();
  memory_.reset();
}

}  // namespace tributary
