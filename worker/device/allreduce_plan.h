// AllreducePlan: the tasks of a node's devices in an all-reduce job over devices (docs/allreduce-gpu.md). Every local
// rank has a device of its own: position and local rank are the same number.
//
// Sharded (algorithm "hierarchical", several devices): a group is as many chunks as there are devices; chunk p of a
// group is device p's, which adds it up over the nodes and steps it. Otherwise a group is one chunk, and every device
// adds up and steps all of them.
#pragma once

#include "worker/device/device_plan.h"

namespace tributary {

struct AllreducePlan {
  DevicePlan node;  // layout, devices; its own groups and encodings are not used
  bool flat = false;
  std::uint32_t nodes = 1;
  NodeRank rank;  // of this node

  std::uint32_t devices() const { return node.width(); }
  bool sharded() const { return !flat && devices() > 1; }
  std::uint32_t width() const { return sharded() ? devices() : 1; }  // chunks of a group
  std::size_t chunk_elements() const { return node.chunk_elements(); }
  std::uint32_t chunks() const { return static_cast<std::uint32_t>(node.layout->chunks()); }
  std::uint32_t groups() const { return (chunks() + width() - 1) / width(); }
  std::uint32_t group_of(ChunkIndex chunk) const { return chunk.value / width(); }
  std::uint32_t chunks_in(std::uint32_t group) const { return std::min(width(), chunks() - group * width()); }
  // The chunk of `group` that the device at `position` steps; there may be none in a sharded plan's last group.
  ChunkIndex chunk_of(std::uint32_t group, std::uint32_t position) const {
    return ChunkIndex(group * width() + (sharded() ? position : 0));
  }
  bool exists(ChunkIndex chunk) const { return chunk.value < chunks(); }
  std::size_t elements(ChunkIndex chunk) const { return node.elements(chunk); }
  // A device that has the stepped chunk, and its state.
  std::uint32_t owner_of(ChunkIndex chunk) const { return sharded() ? chunk.value % width() : 0; }

  // Elements of a device's gradients and parameters: whole groups; and of each of its state arrays.
  std::size_t padded_elements() const { return std::size_t{groups()} * width() * chunk_elements(); }
  std::size_t state_elements() const { return std::size_t{groups()} * chunk_elements(); }

  // The communicators between nodes: one over all ranks (flat), or one for each position, over the nodes.
  std::uint32_t communicators() const { return flat ? 1 : devices(); }
  std::uint32_t communicator_of(std::uint32_t position) const { return flat ? 0 : position; }
  std::uint32_t members() const { return flat ? nodes * devices() : nodes; }  // of each
  std::uint32_t member(std::uint32_t position) const { return flat ? rank.value * devices() + position : rank.value; }
  bool between_nodes() const { return members() > 1 || node.always_collectives; }
  // Whether NCCL is needed at all.
  bool collectives() const { return between_nodes() || sharded(); }
};

}  // namespace tributary
