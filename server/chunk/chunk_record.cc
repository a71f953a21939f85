#include "server/chunk/chunk_record.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "common/base/assert.h"
#include "common/base/checksum.h"
#include "common/wire/codec_fields.h"
#include "schema/records.capnp.h"
#include "server/chunk/record_seal.h"

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

namespace {

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Returns the entry's number of an array. position: in ChunkState::arrays().
std::uint8_t part_of_array(std::size_t position) {
  if (position + 1 == ChunkState::kArrays) return kEstimatePart;
  return static_cast<std::uint8_t>(kParamsPart + position);
}

bool has_array(const ChunkHeader& header, std::size_t position) {
  return position + 1 == ChunkState::kArrays ? header.estimate : position <= header.slots;
}

}  // namespace

StoredChunk compose_chunk(ChunkHeader header, const ChunkState& state, std::string& sealed) {
  static_cast<ChunkProgress&>(header) = state;
  header.elements = state.params.size() / sizeof(float);
  header.slots = static_cast<std::uint8_t>(std::ranges::count_if(state.slots, &BufferRef::operator bool));
  header.estimate = static_cast<bool>(state.estimate);
  StoredChunk out{header.chunk, {{chunk_key(header.chunk, kHeaderPart), {}}}};
  Checksum64 checksum;
  const auto add = [&](std::string key, std::span<const std::byte> values) {
    TRIB_ASSERT(values.size() == header.elements * sizeof(float));
    checksum.add(as_text(values));
    out.entries.push_back({std::move(key), as_text(values)});
  };
  for (std::size_t i = 0; const BufferRef* array : state.arrays()) {
    if (*array) add(chunk_key(header.chunk, part_of_array(i)), array->bytes());
    ++i;
  }
  for (const NodeResidual& residual : state.residuals) {
    header.residual_nodes.push_back(residual.node);
    add(residual_key(header.chunk, residual.node), residual.bytes());
  }
  header.checksum = checksum.value();
  sealed = seal(header);
  out.entries.front().value = sealed;
  return out;
}

Status check_arrays(const ChunkHeader& header, const StoredChunk& stored) {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < ChunkState::kArrays; ++i) {
    if (has_array(header, i)) keys.push_back(chunk_key(stored.chunk, part_of_array(i)));
  }
  for (const std::uint32_t node : header.residual_nodes) keys.push_back(residual_key(stored.chunk, node));
  const auto arrays = std::span(stored.entries).subspan(1);
  Checksum64 checksum;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i >= arrays.size() || arrays[i].key != keys[i]) {
      return fail(ErrorCode::kStore, part_in_words(keys[i]) + (i == 0 ? " are" : " is") + " missing");
    }
    if (arrays[i].value.size() != header.elements * sizeof(float)) {
      return fail(ErrorCode::kStore, part_in_words(keys[i]) + (i == 0 ? " have " : " has ") +
                                         std::to_string(arrays[i].value.size()) + " bytes, not " +
                                         std::to_string(header.elements * sizeof(float)));
    }
    checksum.add(arrays[i].value);
  }
  if (arrays.size() != keys.size()) return fail(ErrorCode::kStore, "it has arrays that its header does not name");
  if (checksum.value() != header.checksum) return fail(ErrorCode::kStore, "its checksum does not match its values");
  return {};
}

ChunkState state_of(const ChunkHeader& header, const StoredChunk& stored) {
  ChunkState state;
  static_cast<ChunkProgress&>(state) = header;
  auto entry = stored.entries.begin() + 1;
  const auto copy = [&] {
    BufferRef values = BufferRef::alone(entry->value.size());
    std::memcpy(values.data(), entry->value.data(), entry->value.size());
    ++entry;
    return values;
  };
  for (std::size_t i = 0; BufferRef * array : state.arrays()) {
    if (has_array(header, i++)) *array = copy();
  }
  for (const std::uint32_t node : header.residual_nodes) state.residuals.push_back(NodeResidual::of(node, copy()));
  return state;
}

StoredChunk compose_chunk(const ChunkSnapshot& chunk, JobId job, const std::string& optimizer, std::string& sealed) {
  ChunkHeader header;
  header.job = job;
  header.round = chunk.round;
  header.chunk = chunk.chunk;
  header.optimizer = optimizer;
  return compose_chunk(std::move(header), chunk.state, sealed);
}

Status rename_job(StoredChunk& chunk, JobId job, std::string& sealed) {
  Result<ChunkHeader> header =
      unseal_chunk(chunk.entries.front().value, "the header of chunk " + std::to_string(chunk.chunk.value));
  if (!header) return tl::unexpected(header.error());
  header->job = job;
  sealed = seal(*header);
  chunk.entries.front().value = sealed;
  return {};
}

}  // namespace tributary::records
