#include "worker/allreduce/allreduce_engine.h"

#include <utility>

#include "common/base/assert.h"

namespace tributary {

AllreduceEngine::AllreduceEngine(std::shared_ptr<AllreduceDevices> devices, std::shared_ptr<const JobPlan> job,
                                 Round start, BucketOutput& output, EventFd wake)
    // An order a chunk, and two completions a group and device.
    : StreamPipeline(devices->api(), devices->plan().node.devices, devices->timeout_ns(), std::move(wake),
                     devices->plan().chunks() + 2 * std::size_t{devices->plan().groups()} * devices->plan().devices()),
      devices_(std::move(devices)),
      output_(output),
      job_(std::move(job)),
      parts_(plan().devices()),
      steps_(plan().chunks()),
      tails_(plan().chunks()),
      ready_(plan().chunks()),
      captured_(plan().chunks()),
      flights_(AllreduceDevices::kSlots),
      next_group_(plan().groups() - 1),
      start_(start) {}

Result<std::unique_ptr<AllreduceEngine>> AllreduceEngine::create(std::shared_ptr<AllreduceDevices> devices,
                                                                 std::shared_ptr<const JobPlan> job, Round start,
                                                                 BucketOutput& output) {
  TRIB_ASSERT(static_cast<std::uint32_t>(job->optimizer->slots()) == devices->state_arrays());
  auto wake = EventFd::create();
  if (!wake) return tl::unexpected(wake.error());
  std::unique_ptr<AllreduceEngine> engine(
      new AllreduceEngine(std::move(devices), std::move(job), start, output, std::move(*wake)));
  if (Status done = engine->set_up(); !done) return tl::unexpected(done.error());
  return engine;
}

Status AllreduceEngine::set_up() {
  for (std::uint32_t position = 0; position < plan().devices(); ++position) {
    Device& part = parts_[position];
    Status made = add_stream(position, "main", part.main);
    if (made) made = add_stream(position, "out", part.out);
    for (std::uint32_t slot = 0; made && slot < AllreduceDevices::kSlots; ++slot) {
      made = add_event(position, "summed", part.summed[slot]);
      if (made) made = add_event(position, "stepped", part.stepped[slot]);
    }
    if (!made) return made;
  }
  for (std::uint32_t group = 0; group < plan().groups(); ++group) {
    const ChunkIndex chunk = plan().chunk_of(group, 0);
    for (std::uint32_t position = 0; position < plan().devices(); ++position) {
      summed_.push_back(inbox().callback({DeviceOrder::Kind::kReduced, chunk, position}));
      ended_.push_back(inbox().callback({DeviceOrder::Kind::kDelivered, chunk, position}));
    }
  }
  return {};
}

// NCCL takes memory for communicators, so other jobs' groups wait until those within the node are connected. A wait for
// other nodes must not hold the gate: another node's group could be what it waits for.
Status AllreduceEngine::connect(std::span<const CommKey> keys) {
  TRIB_ASSERT(keys.size() == (plan().between_nodes() ? plan().communicators() : 0));
  keys_.assign(keys.begin(), keys.end());
  if (!plan().sharded()) return join_nodes();
  LaunchGate::Hold hold = api_.launches().memory();
  auto comms = api_.create_comms(plan().node.devices);
  if (!comms) return tl::unexpected(comms.error());
  for (std::uint32_t position = 0; position < plan().devices(); ++position) {
    parts_[position].in_node = (*comms)[position];
    add_communicator(position, (*comms)[position]);
  }
  begin_connecting(plan().devices(), std::move(hold));
  return {};
}

Status AllreduceEngine::communicators_ready() {
  if (!keys_.empty()) return join_nodes();
  begin(true);
  return {};
}

Status AllreduceEngine::join_nodes() {
  const std::vector<CommKey> keys = std::exchange(keys_, {});
  LaunchGate::Hold hold = plan().nodes == 1 ? api_.launches().memory() : LaunchGate::Hold();
  for (std::uint32_t k = 0; k < keys.size(); ++k) {
    std::vector<CommSeat> seats;
    std::vector<std::uint32_t> positions;
    for (std::uint32_t position = 0; position < plan().devices(); ++position) {
      if (plan().communicator_of(position) != k) continue;
      seats.push_back({plan().node.devices[position], plan().member(position)});
      positions.push_back(position);
    }
    auto comms = api_.join_comms(keys[k], plan().members(), seats);
    if (!comms) return tl::unexpected(comms.error());
    for (std::size_t i = 0; i < positions.size(); ++i) {
      parts_[positions[i]].between = (*comms)[i];
      add_communicator(positions[i], (*comms)[i]);
    }
  }
  begin_connecting(plan().members(), std::move(hold));
  return {};
}

void AllreduceEngine::ready(ChunkIndex chunk, const BucketTail& tail) {
  tails_[chunk.value] = tail;
  inbox().post({DeviceOrder::Kind::kReduce, chunk, 0, false});
}

// ---- Completions ----

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
  flight->group = plan().groups();  // over: no search finds it
  while (!flights_.empty() && flights_.front().group == plan().groups()) flights_.pop();
}

void AllreduceEngine::end(const Flight& flight) {
  if (flight.trial) {
    tried_ = true;
    return;
  }
  for (std::uint32_t i = 0; i < plan().chunks_in(flight.group); ++i) {
    const ChunkIndex chunk(first(flight).value + i);
    if (captured_[chunk.value]) {
      const std::uint32_t owner = plan().owner_of(chunk);
      std::vector<const float*> state;
      for (std::uint32_t array = 0; array <= devices_->state_arrays(); ++array) {
        state.push_back(devices_->passage(owner, flight.slot, array));
        api_.host_access(std::as_bytes(std::span(state.back(), plan().elements(chunk))), false);
      }
      output_.capture(chunk, flight.round, state[0], std::span(state).subspan(1), steps_[chunk.value]);
      captured_[chunk.value] = false;
    }
    output_.stepped(chunk, flight.round);
  }
}

// ---- Issuing ----

Status AllreduceEngine::settled() {
  return advance(*flights_.find([this](const Flight& one) { return one.slot == settling_slot_; }));
}

Status AllreduceEngine::issue() {
  while (!settling()) {
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
  flight.since_ns = now_ns();
  if (!trial) {
    flight.group = next_group_;
    flight.round = Round(start_.value + rounds_ + 1);
    if (next_group_ == 0) ++rounds_;
    next_group_ = (next_group_ + plan().groups() - 1) % plan().groups();
  }
  flights_.push(flight);
}

// Advances a flight as far as possible without the host: to the next collective that is not on its streams yet, or to
// the tails.
Status AllreduceEngine::advance(Flight& flight) {
  while (true) {
    Status done;
    switch (flight.stage) {
      case Stage::kSum:
        done = sum(flight);
        flight.stage = Stage::kExchange;
        break;
      case Stage::kExchange:
        if (plan().between_nodes()) done = exchange(flight);
        flight.stage = Stage::kCollect;
        break;
      case Stage::kCollect:
        flight.stage = plan().between_nodes() ? Stage::kTails : Stage::kStep;
        if (plan().between_nodes()) return collect(flight);
        break;
      case Stage::kStep:
        done = step_group(flight);
        flight.stage = Stage::kFinish;
        break;
      case Stage::kFinish:
        flight.stage = Stage::kEnd;
        return finish(flight);
      case Stage::kTails:
      case Stage::kEnd:
        return {};
    }
    if (settling()) settling_slot_ = flight.slot;
    if (!done || settling()) return done;
  }
}

// ---- Progress ----

// After the trial a wait may be one for other nodes' trainers, so it has no time-out.
Status AllreduceEngine::check_progress() {
  if (flights_.empty() || !late(flights_.front().since_ns) || (tried_ && plan().nodes > 1)) return {};
  const Flight& flight = flights_.front();
  const std::string what = flight.trial ? "the first exchange, of zeros,"
                                        : chunks_in_words(first(flight), plan().chunks_in(flight.group)) +
                                              " of round " + std::to_string(flight.round.value);
  return too_slow(what, devices_in_words(false));
}

void AllreduceEngine::abandon_memory() {
  api_.keep(job_);
  devices_->abandon();
}

std::optional<AllreduceEngine::UnderWay> AllreduceEngine::oldest() const {
  if (flights_.empty() || flights_.front().trial) return std::nullopt;
  return UnderWay{first(flights_.front()), flights_.front().round, flights_.front().since_ns};
}

}  // namespace tributary
