// Copies, kernels and collectives of the fake.
#include <algorithm>
#include <cstring>

#include "common/base/clock.h"
#include "common/math/encoding.h"
#include "kernels/tree_sum.h"
#include "tests/fake_device/fake_device_api.h"

namespace tributary::testing {
namespace {

constexpr std::uint64_t kMostQuestions = 4;  // until a group is settled

}  // namespace

// ---- Copies and kernels ----

Status FakeDeviceApi::copy(const char* call, StreamId stream, std::byte* to, const std::byte* from, std::size_t bytes) {
  if (options_.faults.copy_fails == copies_++) {
    return tl::unexpected(error(streams_.at(stream).device, call, "planned failure"));
  }
  Operation operation;
  operation.touches = {{from, bytes, false}, {to, bytes, true}};
  operation.run = [to, from, bytes] { std::memcpy(to, from, bytes); };
  return put(call, stream, std::move(operation));
}

Status FakeDeviceApi::copy_to_host(StreamId stream, std::byte* pinned, const void* device, std::size_t bytes) {
  const Lock lock = enter("copy_to_host");
  return copy("copy_to_host", stream, pinned, static_cast<const std::byte*>(device), bytes);
}

Status FakeDeviceApi::copy_to_device(StreamId stream, void* device, const std::byte* pinned, std::size_t bytes) {
  const Lock lock = enter("copy_to_device");
  return copy("copy_to_device", stream, static_cast<std::byte*>(device), pinned, bytes);
}

Status FakeDeviceApi::sum(StreamId stream, std::span<const float* const> inputs, std::size_t count, float* out) {
  const Lock lock = enter("sum");
  Operation operation;
  std::vector<const float*> held(inputs.begin(), inputs.end());
  for (const float* input : held) {
    operation.touches.push_back({input, count * sizeof(float), false});
    if (input == out) violation("sum: the output is one of the inputs");
  }
  operation.touches.push_back({out, count * sizeof(float), true});
  operation.run = [held = std::move(held), count, out] { kernels::tree_sum(held, count, out); };
  return put("sum", stream, std::move(operation));
}

std::size_t FakeDeviceApi::encode_scratch_bytes(EncodingSpec encoding, std::size_t elements, std::size_t) const {
  return make_encoding(encoding)->scratch_words(elements) * sizeof(std::uint32_t);
}

Status FakeDeviceApi::encode(StreamId stream, const Encode& work) {
  const Lock lock = enter("encode");
  const std::shared_ptr<const Encoding> encoding = make_encoding(work.encoding);
  if (encoding->keeps_residual() != (work.residual != nullptr) ||
      encoding->keeps_residual() != (work.residual_before != nullptr)) {
    violation("encode: " + encoding->name() + " with a residual where there is none, or without");
  }
  const std::size_t bytes = work.elements * sizeof(float);
  Operation operation;
  std::vector<const float*> inputs(work.inputs.begin(), work.inputs.end());
  for (const float* input : inputs) operation.touches.push_back({input, bytes, false});
  if (work.residual) {
    operation.touches.push_back({work.residual_before, bytes, false});
    operation.touches.push_back({work.residual, bytes, true});
  }
  operation.touches.push_back({work.frame, encoding->bytes(work.elements), true});
  const std::size_t words = encoding->scratch_words(work.elements);
  if (words != 0) operation.touches.push_back({work.scratch, words * sizeof(std::uint32_t), true});
  operation.run = [encoding, work, inputs = std::move(inputs), words] {
    std::vector<float> values(work.elements);
    kernels::tree_sum(inputs, work.elements, values.data());
    kernels::scale(values.data(), work.elements, work.scale);
    if (work.residual) std::copy_n(work.residual_before, work.elements, work.residual);
    encoding->encode(values.data(), work.elements, 0, work.elements, work.residual, work.frame);
    encoding->finish(work.elements, work.residual, work.frame, {reinterpret_cast<std::uint32_t*>(work.scratch), words});
  };
  return put("encode", stream, std::move(operation));
}

Status FakeDeviceApi::apply(StreamId stream, EncodingSpec spec, const std::byte* frame, std::size_t elements,
                            float* parameters) {
  const Lock lock = enter("apply");
  const std::shared_ptr<const Encoding> encoding = make_encoding(spec);
  Operation operation;
  operation.touches = {{frame, encoding->bytes(elements), false}, {parameters, elements * sizeof(float), true}};
  operation.run = [encoding, frame, elements, parameters] { encoding->apply(frame, elements, parameters); };
  return put("apply", stream, std::move(operation));
}

Status FakeDeviceApi::step(StreamId stream, const kernels::Optimizer& optimizer, const kernels::StepScalars& scalars,
                           const kernels::BlockArgs& block) {
  const Lock lock = enter("step");
  const std::size_t bytes = block.count * sizeof(float);
  Operation operation;
  operation.touches = {{block.grad, bytes, false}, {block.param_in, bytes, false}, {block.param_out, bytes, true}};
  for (int slot = 0; slot < optimizer.slots(); ++slot) {
    operation.touches.push_back({block.state_in[slot], bytes, false});
    operation.touches.push_back({block.state_out[slot], bytes, true});
  }
  operation.run = [&optimizer, scalars, block] { optimizer.step(scalars, block); };
  return put("step", stream, std::move(operation));
}

// ---- Collectives ----

const char* FakeDeviceApi::name(CollectiveKind kind) {
  static constexpr const char* kNames[] = {"ncclReduceScatter", "ncclAllGather", "ncclAllReduce"};
  return kNames[static_cast<int>(kind)];
}

Result<std::vector<CommId>> FakeDeviceApi::create_comms(std::span<const DeviceIndex> devices) {
  const Lock lock = enter("create_comms");
  if (options_.faults.communicators_fail) return fail(ErrorCode::kNotFound, *options_.faults.communicators_fail);
  auto set = std::make_shared<CommSet>();
  set->size = devices.size();
  std::vector<CommSeat> seats;
  for (const DeviceIndex device : devices) seats.push_back({device, static_cast<std::uint32_t>(seats.size())});
  return join(set, seats);
}

Result<CommKey> FakeDeviceApi::make_comm_key() {
  const Lock lock = enter("make_comm_key");
  const std::uint64_t number = keys_.size() + 1;
  keys_[number];
  CommKey key;
  std::memcpy(key.bytes.data(), &number, sizeof number);
  return key;
}

Result<std::vector<CommId>> FakeDeviceApi::join_comms(const CommKey& key, std::uint32_t size,
                                                      std::span<const CommSeat> seats) {
  const Lock lock = enter("join_comms");
  if (options_.faults.communicators_fail) return fail(ErrorCode::kNotFound, *options_.faults.communicators_fail);
  std::uint64_t number = 0;
  std::memcpy(&number, key.bytes.data(), sizeof number);
  const auto at = keys_.find(number);
  if (at == keys_.end()) return fail(ErrorCode::kDevice, "ncclCommInitRankConfig: a key that nobody made");
  if (!at->second) {
    at->second = std::make_shared<CommSet>();
    at->second->size = size;
  }
  if (at->second->size != size) violation("join_comms: another size than the others say");
  return join(at->second, seats);
}

std::vector<CommId> FakeDeviceApi::join(const std::shared_ptr<CommSet>& set, std::span<const CommSeat> seats) {
  auto party = std::make_shared<Party>();
  party->settle_in = random_() % kMostQuestions;
  party->never = options_.faults.communicators_hang;
  party->number = parties_++;
  for (const CommSeat& seat : seats) {
    const auto same = [&](const auto& other) { return comms_.at(other.second).device == seat.device.value; };
    if (std::ranges::any_of(set->comms, same)) violation("two ranks of a communicator on one device");
    const CommId id(++last_id_);
    comms_[id] = Comm{set, party, seat.rank, seat.device.value, 0, {}};
    if (seat.rank >= set->size || !set->comms.emplace(seat.rank, id).second) {
      violation("a rank of a communicator that there is already, or is not");
    }
    ++set->joined;
    party->comms.push_back(id);
  }
  return party->comms;
}

void FakeDeviceApi::hold_settling(bool hold) {
  const Lock lock = enter("hold_settling");
  settling_held_ = hold;
}

void FakeDeviceApi::let_connect(std::uint64_t calls) {
  const Lock lock = enter("let_connect");
  may_connect_ = calls;
}

void FakeDeviceApi::let_go() {
  const Lock lock = enter("let_go");
  let_go_ = true;
}

Result<bool> FakeDeviceApi::comm_settled(CommId id) {
  const Lock lock = enter("comm_settled");
  const auto at = comms_.find(id);
  if (at == comms_.end()) {
    violation("comm_settled: a communicator that does not exist");
    return true;
  }
  if (at->second.error) return tl::unexpected(*at->second.error);
  if (options_.faults.collectives_report_faults && lost_.contains(at->second.device)) {
    return fail(ErrorCode::kDevice, "unhandled cuda error");
  }
  Party& party = *at->second.party;
  const bool connects = !party.never && party.number < may_connect_;
  if (!connects || at->second.set->joined < at->second.set->size) return false;
  if (party.settle_in != 0) {
    --party.settle_in;
    return false;
  }
  if (settling_held_ || (party.settles_ns != 0 && steady_ns() < party.settles_ns)) return false;
  for (auto& [stream, operation] : party.launches) --streams_.at(stream).unsettled;
  for (auto& [stream, operation] : party.launches) {
    // As if it had been called now: the host knows no less.
    const char* call = name(operation.collective->kind);
    put(call, stream, std::move(operation));
  }
  party.launches.clear();
  return true;
}

Status FakeDeviceApi::group_start() {
  const Lock lock = enter("group_start");
  ++groups_[std::this_thread::get_id()].depth;
  return {};
}

Status FakeDeviceApi::group_end() {
  const Lock lock = enter("group_end");
  Group& group = groups_[std::this_thread::get_id()];
  if (--group.depth < 0) violation("group_end without group_start");
  if (group.depth != 0) return {};
  groups_ended_ += group.comms.empty() ? 0 : 1;
  for (const CommId id : group.comms) {
    if (!comms_.contains(id)) continue;
    const CommSet& set = *comms_.at(id).set;
    Party& party = *comms_.at(id).party;
    if (!party.launches.empty() && options_.settle_ns == 0) party.settle_in = random_() % kMostQuestions;
    if (!party.launches.empty() && options_.settle_ns != 0) party.settles_ns = steady_ns() + options_.settle_ns;
    for (const CommId other : party.comms) {
      // With a planned failure of a call the others never come.
      if (comms_.contains(other) && comms_.at(other).calls != comms_.at(id).calls && !set.broken) {
        violation("group_end: not every communicator of the group has been called");
      }
    }
  }
  group.comms.clear();
  return {};
}

Status FakeDeviceApi::collective(CollectiveKind kind, CommId id, StreamId stream, const float* send, float* receive,
                                 std::size_t count) {
  const char* call = name(kind);
  const auto at = comms_.find(id);
  if (at == comms_.end()) {
    violation(std::string(call) + " on a communicator that does not exist");
    return {};
  }
  Comm& comm = at->second;
  CommSet& set = *comm.set;
  Party& party = *comm.party;
  Group& group = groups_[std::this_thread::get_id()];
  if (party.never || set.joined < set.size || (party.settle_in != 0 && party.launches.empty())) {
    violation(std::string(call) + " on a communicator that is not connected yet");
  }
  if (group.depth == 0 && party.comms.size() > 1) violation(std::string(call) + " outside of a group");
  if (streams_.at(stream).device != comm.device) violation(std::string(call) + " on another device's stream");
  const std::uint64_t number = comm.calls++;
  const FakeFaults& faults = options_.faults;
  using Fault = FakeFaults::Collective;
  if (faults.collective == Fault::kCallFails && number == faults.at && comm.rank == faults.position) {
    set.broken = true;
    return tl::unexpected(error(comm.device, call, "planned failure"));
  }
  if (number - set.first >= set.open.size()) {
    auto fresh = std::make_shared<Collective>();
    fresh->set = comm.set;
    fresh->kind = kind;
    fresh->count = count;
    if (faults.collective == Fault::kLate && number == faults.at) fresh->due = turns_ + faults.turns;
    set.open.push_back(std::move(fresh));
  }
  const std::shared_ptr<Collective>& one = set.open[number - set.first];
  if (one->kind != kind) violation(std::string(call) + ": another rank calls another collective in its place");
  if (one->count != count) violation(std::string(call) + ": another rank's count differs");
  one->parts.push_back({id, stream, send, receive, false});
  Operation operation{.kind = Operation::Kind::kCollective, .what = call, .collective = one};
  ++streams_.at(stream).unsettled;
  party.launches.emplace_back(stream, std::move(operation));
  group.comms.insert(id);
  return {};
}

Status FakeDeviceApi::reduce_scatter(CommId comm, StreamId stream, const float* send, float* receive,
                                     std::size_t count) {
  const Lock lock = enter("reduce_scatter");
  return collective(CollectiveKind::kReduceScatter, comm, stream, send, receive, count);
}

Status FakeDeviceApi::all_gather(CommId comm, StreamId stream, float* gathered, std::size_t count) {
  const Lock lock = enter("all_gather");
  return collective(CollectiveKind::kAllGather, comm, stream, gathered, gathered, count);
}

Status FakeDeviceApi::all_reduce(CommId comm, StreamId stream, float* values, std::size_t count) {
  const Lock lock = enter("all_reduce");
  return collective(CollectiveKind::kAllReduce, comm, stream, values, values, count);
}

// All ranks have come to it, and the one before it is done.
bool FakeDeviceApi::can_execute(const Collective& collective) {
  if (collective.executed || collective.due.value_or(0) > turns_) return false;
  const CommSet& set = *collective.set;
  if (set.broken || collective.parts.size() != set.size || set.open.front().get() != &collective) return false;
  if (options_.faults.collective == FakeFaults::Collective::kHangs && set.first == options_.faults.at) return false;
  return std::ranges::all_of(collective.parts, [&](const Collective::Part& part) {
    const Stream& stream = streams_.at(part.stream);
    return !lost_.contains(stream.device) && !stream.operations.empty() &&
           stream.operations.front().collective.get() == &collective;
  });
}

void FakeDeviceApi::execute_collective(Collective& collective) {
  CommSet& set = *collective.set;
  if (options_.faults.collective == FakeFaults::Collective::kFailsAsync && set.first == options_.faults.at) {
    set.broken = true;
    const CommId failing = set.comms.at(options_.faults.position);
    comms_.at(failing).error = error(comms_.at(failing).device, name(collective.kind), "planned asynchronous failure");
    for (auto& part : collective.parts) part.over = part.comm == failing;
    return;
  }
  // Everybody has come to it: each knows what the others knew when they came, not that they are done.
  Clock all;
  for (const auto& part : collective.parts) {
    Stream& stream = streams_.at(part.stream);
    stream.clock.join(stream.operations.front().issued);
    all.join(stream.clock);
  }
  const std::size_t share = collective.count * sizeof(float);
  const std::size_t whole = collective.parts.size() * share;
  for (auto& part : collective.parts) {
    Stream& stream = streams_.at(part.stream);
    stream.clock.join(all);
    const std::uint64_t time = stream.clock.tick(stream.actor);
    const std::string& by = stream.operations.front().what;
    if (collective.kind == CollectiveKind::kReduceScatter) {
      touch({part.send, whole, false}, stream.actor, time, stream.clock, by);
    }
    const std::size_t received = collective.kind == CollectiveKind::kAllGather ? whole : share;
    touch({part.receive, received, true}, stream.actor, time, stream.clock, by);
    part.over = true;
  }
  move_values(collective);
  collective.executed = true;
  ++executed_;
  set.open.pop_front();
  ++set.first;
}

void FakeDeviceApi::move_values(const Collective& collective) {
  std::vector<const Collective::Part*> ranks(collective.parts.size());
  for (const auto& part : collective.parts) ranks[comms_.at(part.comm).rank] = &part;
  const std::size_t n = collective.count;
  // The sum over ranks of what each sends from `first` on.
  const auto sum = [&](std::size_t first) {
    std::vector<float> values(ranks[0]->send + first, ranks[0]->send + first + n);
    for (std::size_t from = 1; from < ranks.size(); ++from) {
      for (std::size_t i = 0; i < n; ++i) values[i] = values[i] + ranks[from]->send[first + i];
    }
    return values;
  };
  std::vector<float> same;
  if (collective.kind == CollectiveKind::kAllReduce) same = sum(0);
  for (std::size_t to = 0; to < ranks.size(); ++to) {
    if (collective.kind == CollectiveKind::kReduceScatter) {
      std::ranges::copy(sum(to * n), ranks[to]->receive);
    } else if (collective.kind == CollectiveKind::kAllReduce) {
      std::ranges::copy(same, ranks[to]->receive);
    } else {
      for (std::size_t from = 0; from < ranks.size(); ++from) {
        if (from != to) std::copy_n(ranks[from]->send + from * n, n, ranks[to]->receive + from * n);
      }
    }
  }
}

// Nothing waits for this communicator any more: its started operations complete without a result.
void FakeDeviceApi::drop(CommId id, Comm& known) {
  const std::shared_ptr<CommSet> set = known.set;
  set->broken = set->broken || !set->open.empty();
  for (const auto& collective : set->open) {
    for (auto& part : collective->parts) {
      if (part.comm == id) part.over = true;
    }
  }
  std::erase_if(known.party->launches, [&](auto& launch) {
    const bool mine = streams_.at(launch.first).device == known.device;
    if (mine) --streams_.at(launch.first).unsettled;
    return mine;
  });
  set->comms.erase(known.rank);
  if (set->comms.empty()) set->open.clear();  // which refer to the set
  comms_.erase(id);
}

void FakeDeviceApi::abort(CommId id) {
  const Lock lock = enter("abort");
  const auto at = comms_.find(id);
  if (at == comms_.end()) return violation("abort: a communicator that does not exist");
  ++aborted_;
  drop(id, at->second);
}

void FakeDeviceApi::destroy(CommId id) {
  const Lock lock = enter("destroy");
  const auto at = comms_.find(id);
  if (at == comms_.end()) return violation("destroy: a communicator that does not exist");
  if (!at->second.set->open.empty()) violation("destroy: a communicator with collectives under way");
  drop(id, at->second);
}

}  // namespace tributary::testing
