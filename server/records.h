// Stored records <-> bytes (schema/records.capnp). A record on disk:
//
//   u64 XXH3-64 of all that follows | Cap'n Proto message whose root begins with u32 format
//
// unseal_*() never trusts its input: a wrong checksum or nonsense gives kStore, a newer format kStoreFormat; both name
// `what`, the record in words ("the registry record of job 12").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "common/result.h"
#include "server/coordinator_core.h"
#include "server/store.h"

namespace tributary::records {

struct StoreIdentity {
  std::uint16_t server_index = 0;
};

// info.chunks == chunks.size().
struct SnapshotRecord {
  SnapshotInfo info;
  std::uint32_t generation = 0;
  std::uint64_t bytes = 0;
  std::vector<ChunkIndex> chunks;
};

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
  GateDecision gate;                          // of a job with a gate
};

// `format`: for tests of refusal, as if written by another version of the program.
std::string seal(const StoreIdentity& record, std::uint32_t format = kStoreFormat);
std::string seal(const SnapshotRecord& record, std::uint32_t format = kStoreFormat);
std::string seal(const ChunkHeader& record, std::uint32_t format = kStoreFormat);
std::string seal(const JobRecord& record, std::uint32_t format = kStoreFormat);

Result<StoreIdentity> unseal_identity(std::string_view bytes, std::string_view what);
Result<SnapshotRecord> unseal_snapshot(std::string_view bytes, std::string_view what);
Result<ChunkHeader> unseal_chunk(std::string_view bytes, std::string_view what);
Result<JobRecord> unseal_job(std::string_view bytes, std::string_view what);

}  // namespace tributary::records
