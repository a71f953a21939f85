#include "worker/allreduce_engine.h"

#include <algorithm>
#include <utility>

#include "common/assert.h"
#include "common/job_optimizer.h"
#include "worker/settle_pace.h"

namespace tributary {

AllreduceEngine::AllreduceEngine(std::shared_ptr<AllreduceDevices> devices, const JobConfig& config,
                                 std::unique_ptr<kernels::Optimizer> optimizer, Round start,
                                 AllreduceEngineOutput& output, EventFd wake)
    : devices_(std::move(devices)),
      api_(devices_->api()),
      output_(output),
      optimizer_(std::move(optimizer)),
      lr_(config.optimizer.lr),
      schedule_(config.schedule),
      // An order a chunk, and two completions a group and device.
      inbox_(std::make_shared<DeviceInbox>(std::move(wake),
                                           plan().chunks() + 2 * std::size_t{plan().groups()} * plan().devices())),
      parts_(plan().devices()),
      steps_(plan().chunks()),
      tails_(plan().chunks()),
      ready_(plan().chunks()),
      kept_(plan().chunks()),
      flights_(AllreduceDevices::kSlots),
      next_group_(plan().groups() - 1),
      start_(start) {}

Result<std::unique_ptr<AllreduceEngine>> AllreduceEngine::create(std::shared_ptr<AllreduceDevices> devices,
                                                                 const JobConfig& config, Round start,
                                                                 AllreduceEngineOutput& output) {
  auto optimizer = make_optimizer(config.optimizer);
  if (!optimizer) {
    return fail(ErrorCode::kConfigMismatch, "this release has no optimizer '" + config.optimizer.name + "'");
  }
  TRIB_ASSERT(static_cast<std::uint32_t>(optimizer->slots()) == devices->state_arrays());
  auto wake = EventFd::create();
  if (!wake) return tl::unexpected(wake.error());
  std::unique_ptr<AllreduceEngine> engine(
      new AllreduceEngine(std::move(devices), config, std::move(optimizer), start, output, std::move(*wake)));
  if (Status done = engine->set_up(); !done) return tl::unexpected(done.error());
  return engine;
}

Status AllreduceEngine::set_up() {
  for (std::uint32_t position = 0; position < plan().devices(); ++position) {
    Device& part = parts_[position];
    const DeviceIndex device = plan().node.devices[position];
    for (const auto& [stream, label] : {std::pair{&part.main, "main"}, std::pair{&part.out, "out"}}) {
      auto made = api_.create_stream(device, label);
      if (!made) return tl::unexpected(made.error());
      *stream = *made;
    }
    for (const auto& [events, label] : {std::pair{&part.summed, "summed"}, std::pair{&part.stepped, "stepped"}}) {
      for (std::uint32_t slot = 0; slot < AllreduceDevices::kSlots; ++slot) {
        auto made = api_.create_event(device, label);
        if (!made) return tl::unexpected(made.error());
        events->push_back(*made);
      }
    }
  }
  for (std::uint32_t group = 0; group < plan().groups(); ++group) {
    const ChunkIndex chunk = plan().chunk_of(group, 0);
    for (std::uint32_t position = 0; position < plan().devices(); ++position) {
      summed_.push_back(inbox_->callback({DeviceOrder::Kind::kReduced, chunk, position}));
      ended_.push_back(inbox_->callback({DeviceOrder::Kind::kDelivered, chunk, position}));
    }
  }
  return {};
}

AllreduceEngine::~AllreduceEngine() {
  if (devices_lost_) return;
  for (Device& part : parts_) {
    for (const auto& comm : {part.in_node, part.between}) {
      if (comm) api_.destroy(*comm);
    }
    for (const auto* events : {&part.summed, &part.stepped}) {
      for (const EventId event : *events) api_.destroy_event(event);
    }
    for (const StreamId stream : part.streams()) {
      if (stream != StreamId()) api_.destroy_stream(stream);
    }
  }
}

Status AllreduceEngine::connect(std::span<const CommKey> keys) {
  if (plan().sharded()) {
    auto comms = api_.create_comms(plan().node.devices);
    if (!comms) return tl::unexpected(comms.error());
    for (std::uint32_t position = 0; position < plan().devices(); ++position) {
      parts_[position].in_node = (*comms)[position];
    }
  }
  for (std::uint32_t k = 0; plan().between_nodes() && k < plan().communicators(); ++k) {
    TRIB_ASSERT(keys.size() == plan().communicators());
    std::vector<CommSeat> seats;
    std::vector<std::uint32_t> positions;
    for (std::uint32_t position = 0; position < plan().devices(); ++position) {
      if (plan().communicator_of(position) != k) continue;
      seats.push_back({plan().node.devices[position], plan().member(position)});
      positions.push_back(position);
    }
    auto comms = api_.join_comms(keys[k], plan().members(), seats);
    if (!comms) return tl::unexpected(comms.error());
    for (std::size_t i = 0; i < positions.size(); ++i) parts_[positions[i]].between = (*comms)[i];
  }
  connecting_ = true;
  return {};
}

void AllreduceEngine::ready(ChunkIndex chunk, const BucketTail& tail) {
  tails_[chunk.value] = tail;
  inbox_->post({DeviceOrder::Kind::kReduce, chunk, 0, false});
}

// ---- One step ----

void AllreduceEngine::step(std::uint64_t now_ns) {
  now_ns_ = now_ns;
  if (connecting_ && since_ns_ == 0) since_ns_ = now_ns;
  inbox_->take(orders_);
  if (failed_) return;
  const auto checked = [this](const Status& status) {
    if (!status && !failed_) fail_with(status.error());
    return status.has_value();
  };
  // Before completions are passed on: a collective that ended with an error may have let its stream go on.
  const Result<std::uint32_t> errors = unsettled();
  if (!checked(errors ? Status() : tl::unexpected(errors.error()))) return;
  for (const DeviceOrder& order : orders_) handle(order);
  if (checked(issue())) checked(watch());
}

std::uint64_t AllreduceEngine::next_step_ns(std::uint64_t now_ns) const {
  if (failed_) return kIdle;
  if (connecting_) return now_ns + kConnectStepNs;
  if (settling_) return next_ask_ns(since_ns_, now_ns);
  return flights_.empty() ? kIdle : now_ns + std::min(kWatchNs, devices_->timeout_ns() / 4 + 1);
}

void AllreduceEngine::handle(const DeviceOrder& order) {
  if (order.kind == DeviceOrder::Kind::kReduce) {
    ++ready_[order.chunk.value];
    return;
  }
  const std::uint32_t group = plan().group_of(order.chunk);
  Flight* flight = flights_.find([group](const Flight& one) { return one.group == group && one.missing != 0; });
  TRIB_ASSERT(flight);
  if (--flight->missing != 0) return;
  if (order.kind == DeviceOrder::Kind::kReduced) {
    flight->stage = Stage::kStep;
    return;
  }
  end(*flight);
  flight->group = plan().groups();  // over: found by nobody
  while (!flights_.empty() && flights_.front().group == plan().groups()) flights_.pop();
}

void AllreduceEngine::end(const Flight& flight) {
  if (flight.trial) {
    tried_ = true;
    return;
  }
  for (std::uint32_t i = 0; i < plan().chunks_in(flight.group); ++i) {
    const ChunkIndex chunk(first(flight).value + i);
    if (kept_[chunk.value]) {
      const std::uint32_t owner = plan().owner_of(chunk);
      std::vector<const float*> state;
      for (std::uint32_t array = 0; array <= devices_->state_arrays(); ++array) {
        state.push_back(devices_->passage(owner, flight.slot, array));
        api_.host_access(std::as_bytes(std::span(state.back(), plan().elements(chunk))), false);
      }
      output_.keep(chunk, flight.round, state[0], std::span(state).subspan(1), steps_[chunk.value]);
      kept_[chunk.value] = false;
    }
    output_.stepped(chunk, flight.round);
  }
}

// ---- Issuing ----

Status AllreduceEngine::issue() {
  if (connecting_ || settling_) {
    const Result<std::uint32_t> missing = unsettled();
    if (!missing) return tl::unexpected(missing.error());
    if (connecting_ && std::exchange(unconnected_, *missing) > *missing) since_ns_ = now_ns_;
    if (*missing != 0) return {};
    if (connecting_) {
      connecting_ = false;
      begin(true);
    }
    if (settling_) {
      Flight* flight = flights_.find([slot = *settling_](const Flight& one) { return one.slot == slot; });
      settling_.reset();
      launch_.let_go();
      if (Status done = advance(*flight); !done) return done;
    }
  }
  while (!settling_) {
    Flight* flight = flights_.find([](const Flight& one) { return one.stage == Stage::kStep; });
    if (!flight && next_is_ready()) {
      begin(false);
      continue;
    }
    if (!flight) flight = flights_.find([](const Flight& one) { return one.stage == Stage::kSum; });
    if (!flight) break;
    if (Status done = advance(*flight); !done) return done;
  }
  return {};
}

bool AllreduceEngine::next_is_ready() const {
  if (!tried_ || flights_.size() == AllreduceDevices::kSlots) return false;
  for (std::uint32_t i = 0; i < plan().chunks_in(next_group_); ++i) {
    if (ready_[plan().chunk_of(next_group_, 0).value + i] <= rounds_) return false;
  }
  return true;
}

void AllreduceEngine::begin(bool trial) {
  Flight flight;
  flight.trial = trial;
  flight.slot = static_cast<std::uint32_t>(count_++ % AllreduceDevices::kSlots);
  flight.since_ns = now_ns_;
  if (!trial) {
    flight.group = next_group_;
    flight.round = Round(start_.value + rounds_ + 1);
    if (next_group_ == 0) ++rounds_;
    next_group_ = (next_group_ + plan().groups() - 1) % plan().groups();
  }
  flights_.push(flight);
}

// As far as it goes without the host: to the next collective that is not on its streams yet, or to the tails.
Status AllreduceEngine::advance(Flight& flight) {
  while (true) {
    Status done;
    bool collective = false;
    switch (flight.stage) {
      case Stage::kSum:
        done = sum(flight);
        collective = plan().sharded();
        flight.stage = Stage::kExchange;
        break;
      case Stage::kExchange:
        if (plan().between_nodes()) done = exchange(flight);
        collective = plan().between_nodes();
        flight.stage = Stage::kCollect;
        break;
      case Stage::kCollect:
        flight.stage = plan().between_nodes() ? Stage::kTails : Stage::kStep;
        if (plan().between_nodes()) return collect(flight);
        break;
      case Stage::kStep:
        done = step_group(flight);
        collective = plan().sharded();
        flight.stage = Stage::kFinish;
        break;
      case Stage::kFinish:
        flight.stage = Stage::kEnd;
        return finish(flight);
      case Stage::kTails:
      case Stage::kEnd:
        return {};
    }
    if (!done || !collective) {
      if (!done) return done;
      continue;
    }
    const Result<std::uint32_t> missing = unsettled();
    if (!missing) return tl::unexpected(missing.error());
    if (*missing != 0) {
      settling_ = flight.slot;
      since_ns_ = now_ns_;
      return {};
    }
    launch_.let_go();
  }
}

// ---- Failure ----

Result<std::uint32_t> AllreduceEngine::unsettled() {
  std::uint32_t count = 0;
  for (std::uint32_t position = 0; position < plan().devices(); ++position) {
    for (const auto& comm : {parts_[position].in_node, parts_[position].between}) {
      if (!comm) continue;
      const Result<bool> one = api_.comm_settled(*comm);
      if (!one) {
        return fail(one.error().code, devices_->describe(position) + ": NCCL reports " + one.error().message);
      }
      if (!*one) ++count;
    }
  }
  return count;
}

std::string AllreduceEngine::where(const Flight& flight) const {
  std::string text = flight.trial ? "the first exchange, of zeros," : "chunk " + std::to_string(first(flight).value);
  if (plan().chunks_in(flight.group) > 1 && !flight.trial) {
    text = "chunks " + std::to_string(first(flight).value) + " to " +
           std::to_string(first(flight).value + plan().chunks_in(flight.group) - 1);
  }
  return flight.trial ? text : text + " of round " + std::to_string(flight.round.value);
}

// Once all nodes have been heard, a wait may be one for their trainers: but not one of a device with a fault.
Status AllreduceEngine::watch() {
  if (!flights_.empty() && now_ns_ >= asked_ns_ + kWatchNs) {
    asked_ns_ = now_ns_;
    for (std::uint32_t position = 0; position < plan().devices(); ++position) {
      const Status asked = fault_on(api_, parts_[position].streams());
      if (!asked) return fail(asked.error().code, devices_->describe(position) + ": " + asked.error().message);
    }
  }
  if (tried_ && plan().nodes > 1) return {};
  const std::uint64_t timeout = devices_->timeout_ns();
  const std::string limit = std::to_string(timeout / 1'000'000) + " ms";
  std::string what;
  if (connecting_ && now_ns_ - since_ns_ > timeout) {
    what = "the communicators of " + std::to_string(plan().members()) + " ranks (ncclCommInitRankConfig)";
  } else if (!flights_.empty() && now_ns_ - flights_.front().since_ns > timeout) {
    what = where(flights_.front());
  } else {
    return {};
  }
  std::string who;
  for (std::uint32_t position = 0; position < plan().devices(); ++position) {
    who += (position == 0 ? "" : "; ") + devices_->describe(position);
  }
  return fail(ErrorCode::kDevice, what + " took longer than " + limit +
                                      " ([device] collective_timeout_ms in worker.toml) on " + who +
                                      "; NCCL_DEBUG=INFO in the workers' environment tells what NCCL waits for" +
                                      (plan().nodes > 1 ? ", NCCL_SOCKET_IFNAME which network it uses" : ""));
}

void AllreduceEngine::fail_with(const Error& error) {
  failed_ = true;
  abort_collectives();
  output_.engine_failed({error.code, "all-reduce over GPUs failed: " + error.message});
}

void AllreduceEngine::abort_collectives() {
  failed_ = true;
  for (Device& part : parts_) {
    for (auto* comm : {&part.in_node, &part.between}) {
      if (*comm) api_.abort(**comm);
      comm->reset();
    }
  }
  launch_.let_go();
}

void AllreduceEngine::abandon() {
  api_.keep(inbox_);
  api_.keep(optimizer_);
  devices_->abandon();
  devices_lost_ = true;
}

bool AllreduceEngine::quiet() {
  for (const Device& part : parts_) {
    if (!is_quiet(api_, part.streams())) return false;
  }
  return true;
}

std::optional<AllreduceEngine::UnderWay> AllreduceEngine::oldest() const {
  if (flights_.empty() || flights_.front().trial) return std::nullopt;
  return UnderWay{first(flights_.front()), flights_.front().round, flights_.front().since_ns};
}

}  // namespace tributary
