// DeviceEngine's work on the streams, group by group. Read with the table of events in docs/gpu-nodes.md.
#include "common/base/assert.h"
#include "worker/device/device_engine.h"

namespace tributary {
std::span<const float* const> DeviceEngine::gradients_of(std::uint32_t position, std::uint32_t group) {
  const std::vector<std::uint32_t>& ranks = devices_[position].ranks;
  for (std::size_t i = 0; i < ranks.size(); ++i) inputs_[i] = memory_->gradients(ranks[i], group);
  return {inputs_.data(), ranks.size()};
}

// Issues work up to the collective, which may not be on its streams yet when this returns.
Status DeviceEngine::scatter() {
  for (std::uint32_t position = 0; position < plan_.width(); ++position) {
    const Device& device = devices_[position];
    for (std::size_t i = 0; i < begun_.size(); ++i) {
      const Issued& issued = begun_[i];
      // The stream waits until the frame of the slot's previous use has been copied to the host.
      if (Status done = api_.wait(device.up, device.slots[issued.slot].sent); !done) return done;
      if (!plan_.collectives() || device.ranks.size() == 1) continue;
      const Status summed = api_.sum(device.up, gradients_of(position, issued.group), plan_.group_elements(),
                                     memory_->slot(position, issued.slot).sum);
      if (!summed) return summed;
    }
  }
  return collectives_of_begun([this](std::uint32_t position, const Issued& issued) {
    const Device& device = devices_[position];
    const DeviceMemory::Slot& staging = memory_->slot(position, issued.slot);
    const float* gradient = device.ranks.size() == 1 ? memory_->gradients(device.ranks[0], issued.group) : staging.sum;
    return api_.reduce_scatter(device.comm, device.up, gradient, staging.share, plan_.chunk_elements());
  });
}

// One NCCL group, of all that has begun.
template <class Each>
Status DeviceEngine::collectives_of_begun(Each each) {
  if (!plan_.collectives()) return {};
  return collectives([&](std::uint32_t position) {
    Status status;
    for (std::size_t i = 0; i < begun_.size() && status; ++i) status = each(position, begun_[i]);
    return status;
  });
}

Status DeviceEngine::finish_reduce(std::uint32_t group, std::uint32_t slot) {
  for (std::uint32_t position = 0; position < plan_.width(); ++position) {
    const Device& device = devices_[position];
    const Device::Slot& events = device.slots[slot];
    if (plan_.collectives()) {
      if (Status done = api_.record(events.scattered, device.up); !done) return done;
    }
    const ChunkIndex chunk = plan_.chunk_at(group, position);
    if (!plan_.exists(chunk)) continue;
    const Result<const void*> encoded = encode(position, chunk, slot);
    if (!encoded) return tl::unexpected(encoded.error());
    Status status = api_.record(events.encoded, device.up);
    if (status) status = api_.wait(device.out, events.encoded);
    if (status) status = api_.copy_to_host(device.out, memory_->frame(chunk), *encoded, memory_->frame_bytes(chunk));
    const ChunkState& state = chunks_[chunk.value];
    if (status && state.with_residual) {
      status = api_.copy_to_host(device.out, memory_->residual_behind(chunk), memory_->residual(chunk, state.turn),
                                 plan_.elements(chunk) * sizeof(float));
    }
    if (status) status = api_.record(events.sent, device.out);
    if (status) status = tell(device.told_out, events.sent, reduced_[chunk.value]);
    if (!status) return status;
  }
  return {};
}

// The chunk's frame on the device: encoded into the slot, or where the values are if they travel as they are.
Result<const void*> DeviceEngine::encode(std::uint32_t position, ChunkIndex chunk, std::uint32_t slot) {
  const Device& device = devices_[position];
  const DeviceMemory::Slot& staging = memory_->slot(position, slot);
  const float* const share[] = {staging.share};
  const std::span<const float* const> values =
      plan_.collectives() ? std::span<const float* const>(share) : gradients_of(position, plan_.group_of(chunk));
  const std::size_t elements = plan_.elements(chunk);
  if (plan_.push->id() != EncodingId::kFp32) {
    ChunkState& state = chunks_[chunk.value];
    state.encoded = true;
    const bool keeps = plan_.push->keeps_residual();
    if (keeps) state.turn ^= 1;
    const DeviceApi::Encode work{.encoding = plan_.push->spec(),
                                 .inputs = values,
                                 .elements = elements,
                                 .scale = plan_.push->push_scale(state.weight),
                                 .residual_before = keeps ? memory_->residual(chunk, state.turn ^ 1u) : nullptr,
                                 .residual = keeps ? memory_->residual(chunk, state.turn) : nullptr,
                                 .frame = staging.frame,
                                 .scratch = staging.scratch};
    if (Status done = api_.encode(device.up, work); !done) return tl::unexpected(done.error());
    return staging.frame;
  }
  if (values.size() == 1) return values[0];
  if (Status done = api_.sum(device.up, values, elements, staging.share); !done) return tl::unexpected(done.error());
  return staging.share;
}

// Whether the answer's frame is the parameters as they are.
bool DeviceEngine::copies_directly(ChunkIndex chunk) const {
  return chunks_[chunk.value].full || plan_.pull->id() == EncodingId::kFp32;
}

Status DeviceEngine::deliver_chunk(std::uint32_t position, ChunkIndex chunk, std::uint32_t slot) {
  const Device& device = devices_[position];
  const Device::Slot& events = device.slots[slot];
  const bool direct = copies_directly(chunk);
  const std::size_t elements = plan_.elements(chunk);
  float* parameters = memory_->parameters(position, plan_.group_of(chunk)) + position * plan_.chunk_elements();
  std::byte* staging = memory_->slot(position, slot).answer;
  Status status;
  if (direct) {
    status = api_.copy_to_device(device.in, parameters, memory_->answer(chunk), elements * sizeof(float));
  } else {
    status = api_.wait(device.in, events.decoded);
    if (status) status = api_.copy_to_device(device.in, staging, memory_->answer(chunk), plan_.pull->bytes(elements));
  }
  if (status) status = api_.record(events.arrived, device.in);
  if (status && !direct) {
    status = api_.wait(device.down, events.arrived);
    if (status) status = api_.apply(device.down, plan_.pull->spec(), staging, elements, parameters);
    if (status) status = api_.record(events.decoded, device.down);
  }
  if (!status) return status;
  const EventId there = direct ? events.arrived : events.decoded;
  // A device alone has all of the group.
  return tell(device.told_in, there, plan_.collectives() ? arrived_[chunk.value] : delivered_[plan_.group_of(chunk)]);
}

Status DeviceEngine::begin_gather() {
  begun_line_ = &deliver_;
  for (; !gathers_.empty(); gathers_.pop()) {
    Issued* issued = deliver_.issued.find(
        [group = gathers_.front()](const Issued& one) { return one.group == group && one.missing != 0; });
    TRIB_ASSERT(issued);
    issued->number = ++issued_count_;
    begun_.push(*issued);
  }
  const Status begun = collectives_of_begun([this](std::uint32_t position, const Issued& issued) {
    const Device& device = devices_[position];
    return api_.all_gather(device.comm, device.down, memory_->parameters(position, issued.group),
                           plan_.chunk_elements());
  });
  return !begun || settling() ? begun : settled();
}

Status DeviceEngine::finish_deliver(std::uint32_t group, std::uint32_t slot) {
  for (std::uint32_t position = 0; position < plan_.width(); ++position) {
    const Device& device = devices_[position];
    const EventId gathered = device.slots[slot].gathered;
    Status status = api_.record(gathered, device.down);
    if (status) status = tell(device.told_down, gathered, delivered_[group * plan_.width() + position]);
    if (!status) return status;
  }
  return {};
}

// Copies a residual between the device and the chunk's place behind its frame. To the device on `up`, in order with the
// encodes; to the host on `out`, where a push may be copying the residual of an open round to the same place. The
// residual of the last answered round is certainly on the device, because its push came from there.
Status DeviceEngine::move_residual(const Move& move) {
  const Device& device = devices_[plan_.position_of(move.chunk)];
  ChunkState& chunk = chunks_[move.chunk.value];
  chunk.moving = true;
  const std::size_t bytes = plan_.elements(move.chunk) * sizeof(float);
  std::byte* place = memory_->residual_behind(move.chunk);
  const StreamId stream = move.to_device ? device.up : device.out;
  Status status;
  if (move.to_device) {
    status = api_.copy_to_device(stream, memory_->residual(move.chunk, chunk.turn), place, bytes);
  } else {
    chunk.with_residual = false;  // should the open round still be issued: its residual is not wanted any more
    const bool turned = move.before && chunk.encoded;
    status =
        api_.copy_to_host(stream, place, memory_->residual(move.chunk, turned ? chunk.turn ^ 1u : chunk.turn), bytes);
  }
  if (status) status = api_.call_host(stream, &DeviceCallback::post, moved_[move.chunk.value]);
  return status;
}

// Returns the error that names the step that the oldest group of a direction waits for, and its devices.
Status DeviceEngine::stuck(const Line& line) const {
  const Issued& issued = line.issued.front();
  const bool reduces = &line == &reduce_;
  std::string collecting, other;
  for (std::uint32_t position = 0; position < plan_.width(); ++position) {
    const Device::Slot& events = devices_[position].slots[issued.slot];
    const std::string device = plan_.describe(api_, position);
    const auto passed = [this](EventId event) {
      const Result<bool> reached = api_.reached(event);
      return reached && *reached;
    };
    const auto add = [&device](std::string& list) { list += (list.empty() ? "" : "; ") + device; };
    const bool exists = plan_.exists(plan_.chunk_at(issued.group, position));
    if (issued.arriving != 0) {
      const bool direct = exists && copies_directly(plan_.chunk_at(issued.group, position));
      if (exists && !passed(direct ? events.arrived : events.decoded)) add(other);
    } else if (plan_.collectives() && !passed(reduces ? events.scattered : events.gathered)) {
      add(collecting);
    } else if (reduces && exists && !passed(events.sent)) {
      add(other);
    } else if (!reduces && !plan_.collectives()) {
      add(other);
    }
  }
  if (!collecting.empty()) return collective_is_slow(line, issued.group, collecting);
  const std::string what = reduces ? "the encoding and copy to the host of " : "the copy to the device of ";
  return too_slow(what + chunks_in_words(plan_.chunk_at(issued.group, 0), plan_.chunks_in(issued.group)),
                  other.empty() ? "its devices" : other);
}

Status DeviceEngine::collective_is_slow(const Line& line, std::uint32_t group, const std::string& where) const {
  return too_slow(
      std::string(line.collective) + " of " + chunks_in_words(plan_.chunk_at(group, 0), plan_.chunks_in(group)), where);
}

}  // namespace tributary
