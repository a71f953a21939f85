// The records of a store other than chunks and jobs (schema/records.capnp), as they lie on disk:
// server/chunk/record_seal.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "server/chunk/chunk_record.h"
#include "server/chunk/record_seal.h"
#include "server/store/store.h"

namespace tributary::records {

struct StoreIdentity {
  std::uint16_t server_index = 0;
  SeatTerms terms;

  static void fields(auto& m, auto&& field) {
    field(m.server_index, TRIB_WIRE(ServerIndex));
    field(m.terms.promised, TRIB_WIRE(Promised));
    field(m.terms.owned, TRIB_WIRE(Owned));
  }
};

// info.chunks == chunks.size().
struct SnapshotRecord {
  SnapshotInfo info;
  std::uint32_t generation = 0;
  std::uint64_t bytes = 0;
  std::vector<ChunkIndex> chunks;

  static void fields(auto& m, auto&& field) {
    field(m.info.job, TRIB_WIRE(Job));
    field(m.info.job_name, TRIB_WIRE(JobName), AtMost{kMaxNameBytes, "the job's name"});
    field(m.info.round, TRIB_WIRE(Round));
    field(m.info.layout_hash, TRIB_WIRE(LayoutHash));
    field(m.info.optimizer, TRIB_WIRE(Optimizer), AtMost{kMaxNameBytes, "the optimizer's name"});
    field(m.generation, TRIB_WIRE(Generation));
    field(m.bytes, TRIB_WIRE(Bytes));
    field(m.chunks, TRIB_WIRE(Chunks));
    field(m.info.shard, TRIB_WIRE(Shard));
  }
};

// `format`: for tests of refusal, as if written by another version of the program.
std::string seal(const StoreIdentity& record, std::uint32_t format = kStoreFormat);
std::string seal(const SnapshotRecord& record, std::uint32_t format = kStoreFormat);

Result<StoreIdentity> unseal_identity(std::string_view bytes, std::string_view what);
Result<SnapshotRecord> unseal_snapshot(std::string_view bytes, std::string_view what);

}  // namespace tributary::records
