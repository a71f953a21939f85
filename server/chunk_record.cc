#include "server/chunk_record.h"

#include "common/assert.h"
#include "common/checksum.h"
#include "common/codec_fields.h"
#include "schema/records.capnp.h"
#include "server/record_seal.h"

namespace tributary::records {

using namespace codec;

std::string seal(const ChunkHeader& record, std::uint32_t format) {
  capnp::MallocMessageBuilder builder;
  auto out = builder.initRoot<record::ChunkHeader>();
  out.setFormat(format);
  ChunkHeader::fields(record, Writer(out));
  if (record.gate.known()) GateDecision::fields(record.gate, Writer(out.initGate()));
  return seal_message(builder);
}

Result<ChunkHeader> unseal_chunk(std::string_view bytes, std::string_view what) {
  return unseal_message<ChunkHeader, record::ChunkHeader>(bytes, what, [](record::ChunkHeader::Reader in) {
    ChunkHeader out;
    ChunkHeader::fields(out, Reader(in));
    GateDecision::fields(out.gate, Reader(in.getGate()));
    out.gate.check();
    for (std::size_t i = 0; i < out.residual_nodes.size(); ++i) {
      if (out.residual_nodes[i] >= out.nodes || (i > 0 && out.residual_nodes[i] <= out.residual_nodes[i - 1])) {
        throw Malformed{"it claims residuals of nodes that are not there"};
      }
    }
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
