#include "server/chunk_record.h"

#include "common/assert.h"
#include "common/checksum.h"
#include "common/codec_util.h"
#include "schema/records.capnp.h"
#include "server/record_seal.h"

namespace tributary::records {

using namespace codec;

std::string seal(const ChunkHeader& record, std::uint32_t format) {
  capnp::MallocMessageBuilder builder;
  auto out = builder.initRoot<record::ChunkHeader>();
  out.setFormat(format);
  out.setJob(record.job.value);
  out.setRound(record.round.value);
  out.setChunk(record.chunk.value);
  out.setSlots(record.slots);
  out.setVersion(record.version.value);
  out.setStep(record.step);
  out.setElements(record.elements);
  out.setOptimizer(text(record.optimizer));
  out.setChecksum(record.checksum);
  out.setEstimate(record.estimate);
  out.setNodes(static_cast<std::uint16_t>(record.nodes));
  auto residuals = out.initResidualNodes(static_cast<unsigned>(record.residual_nodes.size()));
  for (unsigned i = 0; i < residuals.size(); ++i)
    residuals.set(i, static_cast<std::uint16_t>(record.residual_nodes[i]));
  auto clocks = out.initClocks(static_cast<unsigned>(record.clocks.size()));
  for (unsigned i = 0; i < clocks.size(); ++i) clocks.set(i, record.clocks[i]);
  if (record.gate.known()) write_gate(out.initGate(), record.gate);
  return seal_message(builder);
}

Result<ChunkHeader> unseal_chunk(std::string_view bytes, std::string_view what) {
  return unseal_message<ChunkHeader, record::ChunkHeader>(bytes, what, [](record::ChunkHeader::Reader in) {
    ChunkHeader out;
    out.job = JobId(in.getJob());
    out.round = Round(in.getRound());
    out.chunk = ChunkIndex(in.getChunk());
    out.version = Version(in.getVersion());
    out.step = in.getStep();
    out.elements = in.getElements();
    out.slots = in.getSlots();
    out.optimizer = read_text(in.getOptimizer(), kMaxNameBytes, "the optimizer's name");
    out.checksum = in.getChecksum();
    out.estimate = in.getEstimate();
    out.nodes = in.getNodes();
    for (const std::uint16_t node : in.getResidualNodes()) {
      if (node >= out.nodes || (!out.residual_nodes.empty() && node <= out.residual_nodes.back())) {
        throw Malformed{"it claims residuals of nodes that are not there"};
      }
      out.residual_nodes.push_back(node);
    }
    for (const std::uint64_t clock : in.getClocks()) out.clocks.push_back(clock);
    out.gate = read_gate(in.getGate());
    if (!out.clocks.empty() && out.clocks.size() != out.nodes) throw Malformed{"it has not every node's clock"};
    if (out.elements > kMaxChunkBytes / sizeof(float) || out.slots > kernels::kMaxSlots) {
      throw Malformed{"it claims " + std::to_string(out.elements) + " elements and " + std::to_string(out.slots) +
                      " state arrays"};
    }
    return out;
  });
}

StoredChunk compose_chunk(ChunkHeader header, std::vector<StoredEntry> arrays, std::string& sealed) {
  Checksum64 checksum;
  for (const StoredEntry& array : arrays) {
    TRIB_ASSERT(array.value.size() == header.elements * sizeof(float));
    checksum.add(array.value);
  }
  header.checksum = checksum.value();
  sealed = seal(header);
  StoredChunk out{header.chunk, {{chunk_key(header.chunk, kHeaderPart), sealed}}};
  out.entries.insert(out.entries.end(), std::make_move_iterator(arrays.begin()), std::make_move_iterator(arrays.end()));
  return out;
}

std::vector<StoredEntry> stored_state(ChunkIndex chunk, std::span<const float* const> arrays, std::uint64_t elements) {
  std::vector<StoredEntry> out;
  for (const float* array : arrays) {
    out.push_back({chunk_key(chunk, static_cast<std::uint8_t>(kParamsPart + out.size())),
                   {reinterpret_cast<const char*>(array), elements * sizeof(float)}});
  }
  return out;
}

}  // namespace tributary::records
