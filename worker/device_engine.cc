#include "worker/device_engine.h"

#include "common/assert.h"
#include "worker/settle_pace.h"

namespace tributary {
namespace {

// Orders of a chunk: reduce, deliver, two for its residual; completions: reduced, arrived, residual moved, and a
// delivery per device and group, which are as many as chunks.
constexpr std::size_t kOrdersPerChunk = 8;

}  // namespace

DeviceEngine::DeviceEngine(DeviceApi& api, DevicePlan plan, DeviceEngineOptions options, DeviceEngineOutput& output,
                           EventFd wake)
    : api_(api),
      plan_(std::move(plan)),
      options_(options),
      output_(output),
      inbox_(std::make_shared<DeviceInbox>(std::move(wake), kOrdersPerChunk * plan_.groups() * plan_.width())),
      devices_(plan_.width()),
      reduce_(plan_.groups(), options.ahead),
      deliver_(plan_.groups(), options.ahead),
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
      auto made = api_.create_stream(plan_.devices[position], label);
      if (!made) return tl::unexpected(made.error());
      *stream = *made;
    }
    device.slots.resize(options_.slots);
    for (Device::Slot& slot : device.slots) {
      const std::pair<EventId*, const char*> events[] = {{&slot.encoded, "encoded"},     {&slot.sent, "sent"},
                                                         {&slot.arrived, "arrived"},     {&slot.decoded, "decoded"},
                                                         {&slot.scattered, "scattered"}, {&slot.gathered, "gathered"}};
      for (const auto& [event, label] : events) {
        auto made = api_.create_event(plan_.devices[position], label);
        if (!made) return tl::unexpected(made.error());
        *event = *made;
      }
    }
  }
  inputs_.resize(plan_.position_of_rank.size());

  const auto chunks = static_cast<std::uint32_t>(plan_.layout->chunks());
  for (std::uint32_t c = 0; c < chunks; ++c) {
    const ChunkIndex chunk(c);
    const std::uint32_t position = plan_.position_of(chunk);
    reduced_.push_back(inbox_->callback({DeviceOrder::Kind::kReduced, chunk, position}));
    arrived_.push_back(inbox_->callback({DeviceOrder::Kind::kArrived, chunk, position}));
    moved_.push_back(inbox_->callback({DeviceOrder::Kind::kResidualMoved, chunk, position}));
  }
  for (std::uint32_t group = 0; group < plan_.groups(); ++group) {
    reduce_.waiting[group] = deliver_.waiting[group] = plan_.chunks_in(group);
    for (std::uint32_t position = 0; position < plan_.width(); ++position) {
      delivered_.push_back(inbox_->callback({DeviceOrder::Kind::kDelivered, plan_.chunk_at(group, 0), position}));
    }
  }

  if (plan_.collectives()) {
    auto comms = api_.create_comms(plan_.devices);
    if (!comms) return tl::unexpected(comms.error());
    for (std::uint32_t position = 0; position < plan_.width(); ++position) devices_[position].comm = (*comms)[position];
    connected_ = false;
  }
  return {};
}

DeviceEngine::~DeviceEngine() {
  if (!memory_) return;  // abandoned, or never allocated: then there are no streams either
  for (Device& device : devices_) {
    if (device.comm) api_.destroy(*device.comm);
    for (const Device::Slot& slot : device.slots) {
      for (const EventId event : {slot.encoded, slot.sent, slot.arrived, slot.decoded, slot.scattered, slot.gathered}) {
        if (event != EventId()) api_.destroy_event(event);
      }
    }
    for (const StreamId stream : device.streams()) {
      if (stream != StreamId()) api_.destroy_stream(stream);
    }
  }
}

// ---- One step ----

void DeviceEngine::step(std::uint64_t now_ns) {
  now_ns_ = now_ns;
  if (!connected_ && begun_ns_ == 0) begun_ns_ = now_ns;
  inbox_->take(orders_);
  if (failed_) return;
  const auto checked = [this](const Status& status) {
    if (!status && !failed_) fail_with(status.error());
    return status.has_value();
  };
  // Before completions are passed on: a collective that ended with an error may have let its stream go on.
  if (!checked(check_collectives())) return;
  for (const DeviceOrder& order : orders_) handle(order);
  if (!checked(issue())) return;
  checked(watch());
}

std::uint64_t DeviceEngine::next_step_ns(std::uint64_t now_ns) const {
  if (failed_) return kIdle;
  if (!connected_) return now_ns + kConnectStepNs;
  if (!begun_.empty()) return next_ask_ns(begun_ns_, now_ns);
  return under_way() ? now_ns + std::min(kWatchNs, options_.timeout_ns / 4 + 1) : kIdle;
}

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
        busy_ns_.store(busy_ns() + now_ns_ - busy_since_ns_, std::memory_order_relaxed);
      }
      break;
    case DeviceOrder::Kind::kArrived: {
      Issued* found = deliver_.issued.find([group](const Issued& one) { return one.group == group && one.arriving; });
      TRIB_ASSERT(found);
      deliver_.since_ns = now_ns_;
      if (--found->arriving == 0) gathers_.push(group);
      break;
    }
    case DeviceOrder::Kind::kDelivered:
      completed(deliver_, group);
      break;
    case DeviceOrder::Kind::kResidualMoved:
      --moving_;
      moving_since_ns_ = now_ns_;
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
  line.ready.push({group, now_ns_});
}

// One of the completions of `group`, which is among those issued. Groups end in the order of their issue on each
// device, but not over devices.
void DeviceEngine::completed(Line& line, std::uint32_t group) {
  Issued* found = line.issued.find([group](const Issued& one) { return one.group == group && one.missing != 0; });
  TRIB_ASSERT(found);
  if (--found->missing == 0) {
    line.groups.fetch_add(1, std::memory_order_relaxed);
    line.total_ns.fetch_add(now_ns_ - found->ready_ns, std::memory_order_relaxed);
    for (std::uint32_t position = 0; &line == &deliver_ && position < plan_.chunks_in(group); ++position) {
      output_.chunk_delivered(plan_.chunk_at(group, position));
    }
  }
  while (!line.issued.empty() && line.issued.front().missing == 0) line.issued.pop();
  line.since_ns = now_ns_;
}

// ---- Issuing ----

Status DeviceEngine::issue() {
  for (; begun_.empty() && !moves_.empty() && !chunks_[moves_.front().chunk.value].moving; moves_.pop()) {
    if (moving_++ == 0) moving_since_ns_ = now_ns_;
    if (Status done = move_residual(moves_.front()); !done) return done;
  }
  if (!connected_ || !begun_.empty()) {
    const Result<bool> ready = settled();
    if (!ready) return tl::unexpected(ready.error());
    if (!*ready) return {};
    connected_ = true;
    launch_.let_go();
    if (Status done = finish(); !done) return done;
  }
  while (begun_.empty()) {
    if (!gathers_.empty()) {
      if (Status done = begin_gather(); !done) return done;
    } else if (!deliver_.ready.empty() && deliver_.issued.size() < options_.ahead) {
      if (Status done = begin_deliver(); !done) return done;
    } else if (!reduce_.ready.empty() && reduce_.issued.size() < options_.ahead) {
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
  if (line.issued.empty()) line.since_ns = now_ns_;
  line.issued.push(issued);
  return line.issued.back();
}

// As many groups at a time as have staging memory of their own.
Status DeviceEngine::begin_reduce() {
  begun_way_ = Way::kReduce;
  while (!reduce_.ready.empty() && reduce_.issued.size() < options_.ahead && begun_.size() < options_.slots) {
    if (reduce_.issued.empty()) busy_since_ns_ = now_ns_;
    Issued& issued = begin(reduce_);
    issued.missing = plan_.chunks_in(issued.group);
    begun_.push(issued);
  }
  if (Status begun = scatter(); !begun) return begun;
  return settle();
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

Status DeviceEngine::begin_gather() {
  begun_way_ = Way::kDeliver;
  for (; !gathers_.empty(); gathers_.pop()) {
    Issued* issued = deliver_.issued.find(
        [group = gathers_.front()](const Issued& one) { return one.group == group && one.missing != 0; });
    TRIB_ASSERT(issued);
    issued->number = ++issued_count_;
    begun_.push(*issued);
  }
  if (Status begun = gather(); !begun) return begun;
  return settle();
}

// The rest follows when the collectives are on their streams.
Status DeviceEngine::settle() {
  if (plan_.collectives()) {
    const Result<bool> ready = settled();
    if (!ready) return tl::unexpected(ready.error());
    if (!*ready) {
      begun_ns_ = now_ns_;
      return {};
    }
    launch_.let_go();
  }
  return finish();
}

Status DeviceEngine::finish() {
  for (; !begun_.empty(); begun_.pop()) {
    const Issued& issued = begun_.front();
    const Status done = begun_way_ == Way::kReduce ? finish_reduce(issued.group, issued.slot)
                                                   : finish_deliver(issued.group, issued.slot);
    if (!done) return done;
  }
  return {};
}

// ---- Failure ----

Result<bool> DeviceEngine::settled() {
  bool all = true;
  for (std::uint32_t position = 0; position < plan_.width(); ++position) {
    const Result<bool> one = api_.comm_settled(*devices_[position].comm);
    if (!one) {
      return fail(one.error().code, plan_.describe(api_, position) + ": NCCL reports " + one.error().message);
    }
    all &= *one;
  }
  return all;
}

Status DeviceEngine::check_collectives() {
  if (!plan_.collectives()) return {};
  const Result<bool> asked = settled();
  return asked ? Status() : tl::unexpected(asked.error());
}

// Whether everything under way still makes progress.
Status DeviceEngine::watch() {
  if (under_way() && now_ns_ >= asked_ns_ + kWatchNs) {
    asked_ns_ = now_ns_;
    for (std::uint32_t position = 0; position < plan_.width(); ++position) {
      const Status asked = fault_on(api_, devices_[position].streams());
      if (!asked) return fail(asked.error().code, plan_.describe(api_, position) + ": " + asked.error().message);
    }
  }
  const std::string limit = std::to_string(options_.timeout_ns / 1'000'000) + " ms";
  if (!connected_ || !begun_.empty()) {
    if (now_ns_ - begun_ns_ <= options_.timeout_ns) return {};
    std::string who;
    for (std::uint32_t position = 0; position < plan_.width(); ++position) {
      const Result<bool> one = api_.comm_settled(*devices_[position].comm);
      if (!one || !*one) who += (who.empty() ? "" : "; ") + plan_.describe(api_, position);
    }
    const std::string what = connected_
                                 ? std::string(begun_way_ == Way::kReduce ? "ncclReduceScatter" : "ncclAllGather") +
                                       " of " + chunks_in_words(begun_.front().group)
                                 : std::string("ncclCommInitRankConfig");
    return fail(ErrorCode::kDevice, what + " was not taken up within " + limit + ": waiting for " + who +
                                        "; NCCL_DEBUG=INFO in the worker's environment tells what NCCL waits for");
  }
  if (moving_ != 0 && now_ns_ - moving_since_ns_ > options_.timeout_ns) {
    return fail(ErrorCode::kDevice, "the copy of a residual has not ended within " + limit);
  }
  const auto overdue = [&](const Line& line) {
    return !line.issued.empty() && now_ns_ - line.since_ns > options_.timeout_ns;
  };
  if (!overdue(deliver_) && !overdue(reduce_)) return {};
  // What was issued first holds up the rest: a communicator works in the order of its calls.
  const bool reduce_first = deliver_.issued.empty() ||
                            (!reduce_.issued.empty() && reduce_.issued.front().number < deliver_.issued.front().number);
  const Way way = reduce_first ? Way::kReduce : Way::kDeliver;
  return fail(ErrorCode::kDevice, stuck(way, (reduce_first ? reduce_ : deliver_).issued.front()) +
                                      " has not ended within " + limit +
                                      " ([device] collective_timeout_ms in worker.toml)");
}

void DeviceEngine::fail_with(const Error& error) {
  failed_ = true;
  abort_collectives();
  output_.engine_failed({error.code, "the node reduction on devices failed: " + error.message});
}

void DeviceEngine::abort_collectives() {
  for (Device& device : devices_) {
    if (device.comm) api_.abort(*device.comm);
    device.comm.reset();
  }
  launch_.let_go();
}

bool DeviceEngine::quiet() {
  if (!memory_) return true;
  for (const Device& device : devices_) {
    if (!is_quiet(api_, device.streams())) return false;
  }
  return true;
}

void DeviceEngine::abandon() {
  api_.keep(inbox_);
  if (memory_) memory_->abandon();
  memory_.reset();
}

std::string DeviceEngine::chunks_in_words(std::uint32_t group) const {
  const std::uint32_t first = plan_.chunk_at(group, 0).value, count = plan_.chunks_in(group);
  if (count == 1) return "chunk " + std::to_string(first);
  return "chunks " + std::to_string(first) + " to " + std::to_string(first + count - 1);
}

}  // namespace tributary
