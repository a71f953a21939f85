// A chunk's state, as it goes from a server's memory to its store, into checkpoints, and back into a server's memory.
// Each part of a chunk's progress is a member here, its line next to it, and a field of its record
// (schema/records.capnp). Each array is in arrays().
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/math/gate_decision.h"
#include "common/system/buffer_pool.h"
#include "common/wire/payload.h"
#include "kernels/step/optimizer.h"

namespace tributary {

// The parts of a chunk's state other than arrays.
struct ChunkProgress {
  Version version;
  std::uint64_t step = 0;             // rounds applied (differs from version once rounds can be skipped)
  std::uint32_t nodes = 0;            // of the view that made it
  std::vector<std::uint64_t> clocks;  // by node: its newest push that is in here; empty in jobs without clocks
  GateDecision gate;                  // about the round that made it; kNone in jobs without a gate

  // All but the gate, which is written where there is one.
  static void fields(auto& m, auto&& field) {
    field(m.version, TRIB_WIRE(Version));
    field(m.step, TRIB_WIRE(Step));
    field(m.nodes, TRIB_WIRE(Nodes));
    field(m.clocks, TRIB_WIRE(Clocks));
  }
};

// The error that a push leaves for the node's next one (error feedback): fp32 at any address.
struct NodeResidual {
  std::uint32_t node = 0;
  std::shared_ptr<const Payload> values;

  std::span<const std::byte> bytes() const { return values->bytes(); }
  static NodeResidual of(std::uint32_t node, Payload values) {
    return {node, std::make_shared<const Payload>(std::move(values))};
  }
  static NodeResidual of(std::uint32_t node, const BufferRef& values) {
    return of(node, Payload(BufferRef(values), values.bytes()));
  }
};

// A chunk's state at one version. A copy shares the arrays; a writer first checks that it is alone (BufferRef::unique).
struct ChunkState : ChunkProgress {
  BufferRef params;
  BufferRef slots[kernels::kMaxSlots];  // the optimizer's state arrays; those it does not have are empty
  BufferRef estimate;                   // delta encodings: what all workers hold; empty: the parameters
  std::vector<NodeResidual> residuals;  // ascending nodes

  // Parameters, slots and estimate, also those that are empty. The order is that of their keys on disk.
  static constexpr std::size_t kArrays = 2 + kernels::kMaxSlots;
  std::array<BufferRef*, kArrays> arrays() {
    std::array<BufferRef*, kArrays> all{&params};
    for (std::size_t s = 0; s < kernels::kMaxSlots; ++s) all[1 + s] = &slots[s];
    all.back() = &estimate;
    return all;
  }
  std::array<const BufferRef*, kArrays> arrays() const {
    std::array<const BufferRef*, kArrays> all{};
    std::ranges::copy(const_cast<ChunkState*>(this)->arrays(), all.begin());
    return all;
  }
  // The parameters as nodes hold them at this version.
  const BufferRef& held_by_nodes() const { return estimate ? estimate : params; }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const BufferRef* array : arrays()) sum += array->size();
    for (const NodeResidual& residual : residuals) sum += residual.bytes().size();
    return sum;
  }
};

// A chunk that was captured for a snapshot. Its buffers are never written while this holds them.
struct ChunkSnapshot {
  JobId job;
  ViewId view;
  Round round;  // of the snapshot; equals the version unless nodes have clocks
  ChunkIndex chunk;
  ChunkState state;
};

}  // namespace tributary
