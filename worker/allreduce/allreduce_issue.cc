// AllreduceEngine's work on the streams, stage by stage. Read with the picture in allreduce_engine.h.
#include <algorithm>
#include <cstring>

#include "common/base/assert.h"
#include "worker/allreduce/allreduce_engine.h"

namespace tributary {

// The device's contribution to the sum over nodes, and afterwards that sum.
float* AllreduceEngine::values(std::uint32_t position, const Flight& flight) const {
  return plan().sharded() ? devices_->share(position, flight.slot)
                          : devices_->gradients(position, plan().chunk_of(flight.group, position));
}

// The tail on its way to the device, and the sum in the node.
Status AllreduceEngine::sum(const Flight& flight) {
  for (std::uint32_t position = 0; plan().between_nodes() && position < plan().devices(); ++position) {
    const ChunkIndex chunk = plan().chunk_of(flight.group, position);
    if (!plan().exists(chunk)) continue;
    // The tail is the node's: only one of the members that add up this chunk here brings it.
    const bool brings = plan().sharded() || position == 0;
    const BucketTail tail = flight.trial ? BucketTail{1, 0} : brings ? tails_[chunk.value] : BucketTail{};
    float* out = devices_->tail_out(position, flight.slot);
    api_.host_access(std::as_bytes(std::span(out, kTailParts)), true);
    put_tail(tail, out);
    const Status copied = api_.copy_to_device(parts_[position].main, devices_->tail(position, flight.slot),
                                              reinterpret_cast<const std::byte*>(out), kTailParts * sizeof(float));
    if (!copied) return copied;
  }
  if (!plan().sharded()) return {};
  return collectives([&](std::uint32_t position) {
    const Device& part = parts_[position];
    return api_.reduce_scatter(part.in_node, part.main, devices_->gradients(position, first(flight)),
                               devices_->share(position, flight.slot), plan().chunk_elements());
  });
}

Status AllreduceEngine::exchange(const Flight& flight) {
  return collectives([&](std::uint32_t position) -> Status {
    const ChunkIndex chunk = plan().chunk_of(flight.group, position);
    if (!plan().exists(chunk)) return {};
    const Device& part = parts_[position];
    Status status = api_.all_reduce(part.between, part.main, values(position, flight), plan().elements(chunk));
    if (status) {
      status = api_.all_reduce(part.between, part.main, devices_->tail(position, flight.slot), kTailParts);
    }
    return status;
  });
}

Status AllreduceEngine::collect(Flight& flight) {
  for (std::uint32_t position = 0; position < plan().devices(); ++position) {
    if (!plan().exists(plan().chunk_of(flight.group, position))) continue;
    const Device& part = parts_[position];
    const EventId summed = part.summed[flight.slot];
    Status status = api_.record(summed, part.main);
    if (status) status = api_.wait(part.out, summed);
    if (status) {
      status = api_.copy_to_host(part.out, reinterpret_cast<std::byte*>(devices_->tail_in(position, flight.slot)),
                                 devices_->tail(position, flight.slot), kTailParts * sizeof(float));
    }
    if (status) {
      status = api_.call_host(part.out, &DeviceCallback::post,
                              summed_[std::size_t{flight.group} * plan().devices() + position]);
    }
    if (!status) return status;
    ++flight.missing;
  }
  return {};
}

Result<std::uint64_t> AllreduceEngine::total_of(std::uint32_t position, const Flight& flight) {
  if (!plan().between_nodes()) {
    return flight.trial ? plan().members() : tails_[plan().chunk_of(flight.group, position).value].weight;
  }
  const float* in = devices_->tail_in(position, flight.slot);
  api_.host_access(std::as_bytes(std::span(in, kTailParts)), false);
  const std::uint64_t total = take_weight(in);
  if (!flight.trial && !same_digest(tails_[plan().chunk_of(flight.group, position).value].digest, plan().nodes, in)) {
    return tl::unexpected(output_.replicas_differ(flight.round));
  }
  if (flight.trial && total != plan().members()) {
    return fail(ErrorCode::kDevice, devices_->describe(position) + ": ncclAllReduce of a 1 from each of " +
                                        std::to_string(plan().members()) + " ranks made " + std::to_string(total));
  }
  return total;
}

Status AllreduceEngine::step_group(const Flight& flight) {
  for (std::uint32_t position = 0; position < plan().devices(); ++position) {
    const ChunkIndex chunk = plan().chunk_of(flight.group, position);
    if (!plan().exists(chunk)) continue;
    const Result<std::uint64_t> total = total_of(position, flight);
    if (!total) return tl::unexpected(total.error());
    if (flight.trial || *total == 0) continue;  // as on servers: a round without samples changes nothing
    if (plan().sharded() || position == 0) ++steps_[chunk.value];
    if (Status stepped = step_chunk(position, chunk, flight, *total); !stepped) return stepped;
  }
  if (!plan().sharded()) return {};
  return collectives([&](std::uint32_t position) {
    const Device& part = parts_[position];
    return api_.all_gather(part.in_node, part.main, devices_->parameters(position, first(flight)),
                           plan().chunk_elements());
  });
}

Status AllreduceEngine::step_chunk(std::uint32_t position, ChunkIndex chunk, const Flight& flight,
                                   std::uint64_t total) {
  const std::uint64_t step = steps_[chunk.value];
  kernels::BlockArgs block;
  block.count = plan().elements(chunk);
  block.grad = values(position, flight);
  block.grad_scale = static_cast<float>(1.0 / static_cast<double>(total));
  block.param_in = block.param_out = devices_->parameters(position, chunk);
  for (std::uint32_t array = 0; array < devices_->state_arrays(); ++array) {
    block.state_in[array] = block.state_out[array] = devices_->state(position, array, chunk);
  }
  Status stepped;
  std::size_t first = 0;
  for (const StepRun& run : runs_.of(*job_, *plan().node.layout, chunk, step, step, output_.settings(chunk))) {
    if (stepped) {
      stepped = api_.step(parts_[position].main, *job_->optimizer, run.scalars, block.part(first, run.end));
    }
    first = run.end;
  }
  return stepped;
}

Status AllreduceEngine::finish(Flight& flight) {
  for (std::uint32_t i = 0; !flight.trial && i < plan().chunks_in(flight.group); ++i) {
    const ChunkIndex chunk(first(flight).value + i);
    captured_[chunk.value] = output_.wants(chunk, flight.round);
  }
  for (std::uint32_t position = 0; position < plan().devices(); ++position) {
    const Device& part = parts_[position];
    const EventId stepped = part.stepped[flight.slot];
    Status status = api_.record(stepped, part.main);
    if (status) status = api_.wait(part.out, stepped);
    const ChunkIndex chunk = plan().chunk_of(flight.group, position);
    const bool captures =
        !flight.trial && plan().exists(chunk) && captured_[chunk.value] && plan().owner_of(chunk) == position;
    for (std::uint32_t array = 0; captures && status && array <= devices_->state_arrays(); ++array) {
      const float* from =
          array == 0 ? devices_->parameters(position, chunk) : devices_->state(position, array - 1, chunk);
      status =
          api_.copy_to_host(part.out, reinterpret_cast<std::byte*>(devices_->passage(position, flight.slot, array)),
                            from, plan().elements(chunk) * sizeof(float));
    }
    if (status) {
      status = api_.call_host(part.out, &DeviceCallback::post,
                              ended_[std::size_t{flight.group} * plan().devices() + position]);
    }
    if (!status) return status;
    ++flight.missing;
  }
  return {};
}

// ---- From the host and back, chunk by chunk, while nothing else is under way ----

Status AllreduceEngine::load(ReplicaState& state, const Wait& wait) {
  Status moved = move_values(state, true, wait);
  if (moved) steps_.assign(state.steps().begin(), state.steps().end());
  return moved;
}

Status AllreduceEngine::save(ReplicaState& state, const Wait& wait) {
  return move_values(state, false, wait);
}

Status AllreduceEngine::move_values(ReplicaState& state, bool to_device, const Wait& wait) {
  for (std::uint32_t c = 0; c < plan().chunks(); ++c) {
    const ChunkIndex chunk(c);
    if (Status moved = move_chunk(chunk, state, to_device); !moved) return moved;
    while (!quiet()) {
      if (!wait()) return fail(ErrorCode::kStopped, "the view is over");
    }
    if (to_device) continue;
    const std::size_t bytes = plan().elements(chunk) * sizeof(float);
    for (std::uint32_t array = 0; array <= devices_->state_arrays(); ++array) {
      const auto* passage = reinterpret_cast<const std::byte*>(devices_->passage(plan().owner_of(chunk), 0, array));
      api_.host_access({passage, bytes}, false);
      std::memcpy(state.array(array) + plan().node.layout->chunk(chunk).begin, passage, bytes);
    }
    state.steps()[c] = steps_[c];
  }
  return {};
}

// Puts a chunk's way from or to the host on the streams.
Status AllreduceEngine::move_chunk(ChunkIndex chunk, ReplicaState& state, bool to_device) {
  const std::size_t bytes = plan().elements(chunk) * sizeof(float);
  for (std::uint32_t position = 0; position < plan().devices(); ++position) {
    const bool owns = !plan().sharded() || plan().owner_of(chunk) == position;
    if (!to_device && plan().owner_of(chunk) != position) continue;
    for (std::uint32_t array = 0; array <= (owns ? devices_->state_arrays() : 0); ++array) {
      float* device = array == 0 ? devices_->parameters(position, chunk) : devices_->state(position, array - 1, chunk);
      auto* passage = reinterpret_cast<std::byte*>(devices_->passage(position, 0, array));
      const StreamId main = parts_[position].main;
      Status moved;
      if (to_device) {
        api_.host_access({passage, bytes}, true);
        std::memcpy(passage, state.array(array) + plan().node.layout->chunk(chunk).begin, bytes);
        moved = api_.copy_to_device(main, device, passage, bytes);
      } else {
        moved = api_.copy_to_host(main, passage, device, bytes);
      }
      if (!moved) return moved;
    }
  }
  return {};
}

}  // namespace tributary
