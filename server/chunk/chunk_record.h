// A chunk's state in a store or a checkpoint: a header (server/chunk/record_seal.h) and the arrays behind it.
// This is the one place that knows both the type (server/chunk/chunk_state.h) and the record (schema/records.capnp).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "server/chunk/chunk_state.h"
#include "server/chunk/record_seal.h"
#include "server/chunk/stored_chunk.h"

namespace tributary::records {

struct ChunkHeader : ChunkProgress {
  JobId job;
  Round round;
  ChunkIndex chunk;
  std::string optimizer;
  // The arrays behind the header:
  std::uint64_t elements = 0;  // of each array
  std::uint8_t slots = 0;
  bool estimate = false;
  std::vector<std::uint32_t> residual_nodes;  // ascending
  std::uint64_t checksum = 0;

  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.round, TRIB_WIRE(Round));
    field(m.chunk, TRIB_WIRE(Chunk));
    field(m.elements, TRIB_WIRE(Elements));
    field(m.slots, TRIB_WIRE(Slots));
    field(m.optimizer, TRIB_WIRE(Optimizer), AtMost{kMaxNameBytes, "the optimizer's name"});
    field(m.checksum, TRIB_WIRE(Checksum));
    field(m.estimate, TRIB_WIRE(Estimate));
    field(m.residual_nodes, TRIB_WIRE(ResidualNodes));
    ChunkProgress::fields(m, field);
  }
};

// `format`: for tests of refusal, as if written by another version of the program.
std::string seal(const ChunkHeader& record, std::uint32_t format = kStoreFormat);
Result<ChunkHeader> unseal_chunk(std::string_view bytes, std::string_view what);

// Builds a chunk, whose entries point into the state's arrays. Job, round, chunk and optimizer come from `header`, the
// rest from the state. `sealed` gets the header's bytes and must outlive the chunk.
StoredChunk compose_chunk(ChunkHeader header, const ChunkState& state, std::string& sealed);

// The same of a snapshot's chunk, under that job's id.
StoredChunk compose_chunk(const ChunkSnapshot& chunk, JobId job, const std::string& optimizer, std::string& sealed);

// Gives the chunk a header that names `job`. `sealed` holds that header while `chunk` is used.
Status rename_job(StoredChunk& chunk, JobId job, std::string& sealed);

// Checks that the arrays are those that the header names, with its checksum. kStore: the flaw, in words that continue
// "chunk ... is damaged: ".
Status check_arrays(const ChunkHeader& header, const StoredChunk& stored);
// Copies a chunk's state. REQUIRES: check_arrays() has succeeded.
ChunkState state_of(const ChunkHeader& header, const StoredChunk& stored);

}  // namespace tributary::records
