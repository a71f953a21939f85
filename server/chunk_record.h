// A chunk's header as it lies on disk (server/record_seal.h), and a chunk put together with it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/gate_decision.h"
#include "common/ids.h"
#include "common/result.h"
#include "server/record_seal.h"
#include "server/stored_chunk.h"

namespace tributary::records {

struct ChunkHeader {
  JobId job;
  Round round;
  ChunkIndex chunk;
  Version version;
  std::uint64_t step = 0;
  std::uint64_t elements = 0;
  std::uint8_t slots = 0;
  std::string optimizer;
  std::uint64_t checksum = 0;
  bool estimate = false;
  std::uint32_t nodes = 0;
  std::vector<std::uint32_t> residual_nodes;  // ascending
  std::vector<std::uint64_t> clocks;          // by node
  GateDecision gate;                          // of a job with a gate; beside the list, which always writes all of it

  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.round, TRIB_WIRE(Round));
    field(m.chunk, TRIB_WIRE(Chunk));
    field(m.version, TRIB_WIRE(Version));
    field(m.step, TRIB_WIRE(Step));
    field(m.elements, TRIB_WIRE(Elements));
    field(m.slots, TRIB_WIRE(Slots));
    field(m.optimizer, TRIB_WIRE(Optimizer), AtMost{kMaxNameBytes, "the optimizer's name"});
    field(m.checksum, TRIB_WIRE(Checksum));
    field(m.estimate, TRIB_WIRE(Estimate));
    field(m.nodes, TRIB_WIRE(Nodes));
    field(m.residual_nodes, TRIB_WIRE(ResidualNodes));
    field(m.clocks, TRIB_WIRE(Clocks));
  }
};

// `format`: for tests of refusal, as if written by another version of the program.
std::string seal(const ChunkHeader& record, std::uint32_t format = kStoreFormat);
Result<ChunkHeader> unseal_chunk(std::string_view bytes, std::string_view what);

// The chunk with these arrays (all of header.elements values) behind its header, whose checksum is set. `sealed` gets
// the header's bytes and must outlive the chunk.
StoredChunk compose_chunk(ChunkHeader header, std::vector<StoredEntry> arrays, std::string& sealed);

// Entries of a chunk's parameters and state arrays, in this order.
std::vector<StoredEntry> stored_state(ChunkIndex chunk, std::span<const float* const> arrays, std::uint64_t elements);

}  // namespace tributary::records
