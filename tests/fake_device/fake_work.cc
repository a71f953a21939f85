// Copies, kernels and collectives of the fake.
#include <algorithm>
#include <cstring>

#include "common/encoding.h"
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

// ---- Collectives ----

Result<std::vector<CommId>> FakeDeviceApi::create_comms(std::span<const DeviceIndex> devices) {
  const Lock lock = enter("create_comms");
  if (options_.faults.communicators_fail) return fail(ErrorCode::kNotFound, *options_.faults.communicators_fail);
  auto set = std::make_shared<CommSet>();
  set->size = devices.size();
  set->settle_in = random_() % kMostQuestions;
  set->never = options_.faults.communicators_hang;
  for (const DeviceIndex device : devices) {
    const CommId id(++last_id_);
    Comm& comm = comms_[id];
    comm.set = set;
    comm.rank = static_cast<std::uint32_t>(set->comms.size());
    comm.device = device.value;
    const auto same = std::ranges::count(devices, device);
    if (same != 1) violation("create_comms: a device is named twice");
    set->comms.push_back(id);
  }
  return set->comms;
}

Result<bool> FakeDeviceApi::comm_settled(CommId id) {
  const Lock lock = enter("comm_settled");
  const auto at = comms_.find(id);
  if (at == comms_.end()) {
    violation("comm_settled: a communicator that does not exist");
    return true;
  }
  if (at->second.error) return tl::unexpected(*at->second.error);
  CommSet& set = *at->second.set;
  if (set.never) return false;
  if (set.settle_in != 0) {
    --set.settle_in;
    return false;
  }
  for (auto& [stream, operation] : set.launches) {
    --streams_.at(stream).unsettled;
    // As if it had been called now: the host knows no less.
    const char* call = operation.collective->scatters ? "ncclReduceScatter" : "ncclAllGather";
    put(call, stream, std::move(operation));
  }
  set.launches.clear();
  return true;
}

Status FakeDeviceApi::group_start() {
  const Lock lock = enter("group_start");
  ++group_depth_;
  return {};
}

Status FakeDeviceApi::group_end() {
  const Lock lock = enter("group_end");
  if (--group_depth_ < 0) violation("group_end without group_start");
  if (group_depth_ != 0) return {};
  for (const CommId id : in_group_) {
    CommSet& set = *comms_.at(id).set;
    if (!set.launches.empty()) set.settle_in = random_() % kMostQuestions;
    for (const CommId other : set.comms) {
      // With a planned failure of a call the others never come.
      if (comms_.contains(other) && comms_.at(other).calls != comms_.at(id).calls && !set.broken) {
        violation("group_end: not every communicator of the group has been called");
      }
    }
  }
  in_group_.clear();
  return {};
}

Status FakeDeviceApi::collective(const char* call, CommId id, StreamId stream, bool scatters, const float* send,
                                 float* receive, std::size_t count) {
  const auto at = comms_.find(id);
  if (at == comms_.end()) {
    violation(std::string(call) + " on a communicator that does not exist");
    return {};
  }
  Comm& comm = at->second;
  CommSet& set = *comm.set;
  if (set.never || (set.settle_in != 0 && set.launches.empty())) {
    violation(std::string(call) + " on a communicator that is not connected yet");
  }
  if (group_depth_ == 0 && set.size > 1) violation(std::string(call) + " outside of a group");
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
    fresh->scatters = scatters;
    fresh->count = count;
    if (faults.collective == Fault::kLate && number == faults.at) fresh->due = turns_ + faults.turns;
    set.open.push_back(std::move(fresh));
  }
  const std::shared_ptr<Collective>& one = set.open[number - set.first];
  if (one->scatters != scatters) violation(std::string(call) + ": another rank calls another collective in its place");
  if (one->count != count) violation(std::string(call) + ": another rank's count differs");
  one->parts.push_back({id, stream, send, receive, false});
  Operation operation;
  operation.kind = Operation::Kind::kCollective;
  operation.what = call;
  operation.collective = one;
  ++streams_.at(stream).unsettled;
  set.launches.emplace_back(stream, std::move(operation));
  in_group_.insert(id);
  return {};
}

Status FakeDeviceApi::reduce_scatter(CommId comm, StreamId stream, const float* send, float* receive,
                                     std::size_t count) {
  const Lock lock = enter("reduce_scatter");
  return collective("ncclReduceScatter", comm, stream, true, send, receive, count);
}

Status FakeDeviceApi::all_gather(CommId comm, StreamId stream, float* gathered, std::size_t count) {
  const Lock lock = enter("all_gather");
  return collective("ncclAllGather", comm, stream, false, gathered, gathered, count);
}

// All ranks have come to it, and the one before it is done.
bool FakeDeviceApi::can_execute(const Collective& collective) {
  if (collective.executed || collective.due.value_or(0) > turns_) return false;
  const CommSet& set = *collective.set;
  if (set.broken || collective.parts.size() != set.size || set.open.front().get() != &collective) return false;
  if (options_.faults.collective == FakeFaults::Collective::kHangs && set.first == options_.faults.at) return false;
  return std::ranges::all_of(collective.parts, [&](const Collective::Part& part) {
    const Stream& stream = streams_.at(part.stream);
    return !stream.operations.empty() && stream.operations.front().collective.get() == &collective;
  });
}

void FakeDeviceApi::execute_collective(Collective& collective) {
  CommSet& set = *collective.set;
  if (options_.faults.collective == FakeFaults::Collective::kFailsAsync && set.first == options_.faults.at) {
    set.broken = true;
    const CommId failing = set.comms.at(options_.faults.position);
    comms_.at(failing).error =
        error(comms_.at(failing).device, collective.scatters ? "ncclReduceScatter" : "ncclAllGather",
              "planned asynchronous failure");
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
  const std::size_t whole = collective.parts.size() * collective.count * sizeof(float);
  const std::size_t share = collective.count * sizeof(float);
  for (auto& part : collective.parts) {
    Stream& stream = streams_.at(part.stream);
    stream.clock.join(all);
    const std::uint64_t time = stream.clock.tick(stream.actor);
    const std::string& by = stream.operations.front().what;
    if (collective.scatters) touch({part.send, whole, false}, stream.actor, time, stream.clock, by);
    touch({part.receive, collective.scatters ? share : whole, true}, stream.actor, time, stream.clock, by);
    part.over = true;
  }
  move_values(collective);
  collective.executed = true;
  ++executed_;
  set.open.pop_front();
  ++set.first;
}

void FakeDeviceApi::move_values(const Collective& collective) {
  const auto rank_of = [this](const Collective::Part& part) { return comms_.at(part.comm).rank; };
  std::vector<const Collective::Part*> ranks(collective.parts.size());
  for (const auto& part : collective.parts) ranks[rank_of(part)] = &part;
  const std::size_t n = collective.count;
  for (std::size_t to = 0; to < ranks.size(); ++to) {
    for (std::size_t from = 0; from < ranks.size(); ++from) {
      if (!collective.scatters) {
        if (from != to) std::copy_n(ranks[from]->send + from * n, n, ranks[to]->receive + from * n);
        continue;
      }
      const float* values = ranks[from]->send + to * n;
      for (std::size_t i = 0; i < n; ++i) {
        float& sum = ranks[to]->receive[i];
        sum = from == 0 ? values[i] : sum + values[i];
      }
    }
  }
}

// Nothing waits for this communicator any more: what it began goes on without a result.
void FakeDeviceApi::drop(CommId id, Comm& known) {
  CommSet& set = *known.set;
  set.broken = set.broken || !set.open.empty();
  for (const auto& collective : set.open) {
    for (auto& part : collective->parts) {
      if (part.comm == id) part.over = true;
    }
  }
  std::erase_if(set.launches, [&](auto& launch) {
    const bool mine = streams_.at(launch.first).device == known.device;
    if (mine) --streams_.at(launch.first).unsettled;
    return mine;
  });
  std::erase(set.comms, id);
  if (set.comms.empty()) set.open.clear();  // which refer to the set
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
