// Records on disk (schema/records.capnp): from a store or a checkpoint that a disk, or a person, has changed.
#include <xxhash.h>

#include "server/coordinator/cluster/job_record_seal.h"
#include "server/store/records.h"
#include "tests/fuzz/fuzz_target.h"

namespace tributary::fuzz::records {
namespace {

using namespace tributary::records;

constexpr std::size_t kKinds = 4;

// The input: a kind, and a sealed record without its checksum, which mutations would hardly find.
Bytes input_of(std::uint8_t kind, const std::string& sealed) {
  return bytes_of(static_cast<char>(kind) + sealed.substr(kChecksumBytes));
}

template <class Record>
void must_seal_again(const std::string& sealed, Result<Record> (*unseal)(std::string_view, std::string_view)) {
  const Result<Record> record = unseal(sealed, "it");
  if (!record) {
    require(record.error().code == ErrorCode::kStore || record.error().code == ErrorCode::kStoreFormat,
            "a record that cannot be read is the store's trouble");
    return;
  }
  const std::string again = seal(*record);
  const Result<Record> same = unseal(again, "it");
  require(same.has_value(), "what was read is read when it is sealed again");
  require(seal(*same) == again, "what is sealed again is the same");
}

}  // namespace

std::vector<Bytes> seeds() {
  ChunkHeader chunk;
  chunk.chunk = ChunkIndex(3);
  chunk.round = Round(7);
  chunk.optimizer = "adamw";
  chunk.elements = 1000;
  chunk.slots = 2;
  chunk.nodes = 2;
  chunk.residual_nodes = {0, 1};
  ChunkHeader clocked = chunk;
  clocked.clocks = {6, 7};
  clocked.gate.verdict = GateVerdict::kClipped;
  JobRecord job;
  job.job = JobId(5);
  job.job_json = R"({"job":{"name":"mlp"}})";
  job.tensors = {{"w", {128, 784}}, {"b", {128}, 1, {0, 1}}, {"scale", {}}};
  job.chunk_elements = 65536;
  job.owners = {{ShardIndex(0), LaneIndex(0)}, {ShardIndex(1), LaneIndex(3)}};
  job.members = {0, 3};
  job.rank_states[{3, 1}] = {std::byte{7}, std::byte{0}};
  job.computed_with = {"torch 2.13.0 Zen"};
  SnapshotRecord snapshot{.info = {JobId(5), "mlp", Round(7), 0xabcdef, "adamw", 2},
                          .chunks = {ChunkIndex(1), ChunkIndex(4)}};
  return {input_of(0, seal(chunk)), input_of(0, seal(clocked)), input_of(1, seal(job)), input_of(2, seal(snapshot)),
          input_of(3, seal(StoreIdentity{1}))};
}

void run(std::span<const std::byte> bytes) {
  Choices input(bytes);
  const std::size_t kind = input.number() % kKinds;
  const std::string body(text_of(input.rest()));
  const std::uint64_t checksum = XXH3_64bits(body.data(), body.size());
  const std::string sealed = std::string(reinterpret_cast<const char*>(&checksum), sizeof checksum) + body;
  if (kind == 0) must_seal_again(sealed, unseal_chunk);
  if (kind == 1) must_seal_again(sealed, unseal_job);
  if (kind == 2) must_seal_again(sealed, unseal_snapshot);
  if (kind == 3) must_seal_again(sealed, unseal_identity);
}

Target target() {
  return {"records", seeds, run};
}

}  // namespace tributary::fuzz::records
