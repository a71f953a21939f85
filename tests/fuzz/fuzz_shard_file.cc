// Shard files of checkpoints, and the chunks in them: from a disk, or from the checkpoint's author.
#include <xxhash.h>

#include <cstring>

#include "server/checkpoint/checkpoint_file.h"
#include "server/chunk/chunk_record.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace tributary::fuzz::shard_file {
namespace {

// As server/checkpoint/checkpoint_file.h says.
constexpr std::size_t kFileHeader = 40, kEntryHeader = 24, kChecksum = sizeof(std::uint64_t);

// Two small chunks, because tensors with other holders share none.
const Layout& layout() {
  static const Layout made = *Layout::unowned({{"a", {16}, 0, {0}}, {"b", {32}, 0, {1}}});
  return made;
}

template <class T>
T number_at(const Bytes& file, std::size_t at) {
  T value;
  std::memcpy(&value, file.data() + at, sizeof value);
  return value;
}

// Makes every checksum right, which mutations would not.
void mend(Bytes& file) {
  const auto put = [&](std::size_t at, std::uint64_t checksum) {
    std::memcpy(file.data() + at, &checksum, sizeof checksum);
  };
  if (file.size() < kFileHeader) return;
  put(kFileHeader - kChecksum, XXH3_64bits(file.data(), kFileHeader - kChecksum));
  for (std::size_t at = kFileHeader; file.size() - at >= kEntryHeader;) {
    const std::size_t key = at + kEntryHeader, left = file.size() - key;
    const auto key_bytes = number_at<std::uint32_t>(file, at);
    const auto value_bytes = number_at<std::uint64_t>(file, at + 8);
    if (key_bytes > left || value_bytes > left - key_bytes) return;
    const std::size_t value = key + key_bytes;
    if (key_bytes >= kMinChunkKey && part_of_key(text_of(std::span(file).subspan(key, key_bytes))) == kHeaderPart &&
        value_bytes > kChecksum) {
      put(value, XXH3_64bits(file.data() + value + kChecksum, value_bytes - kChecksum));
    }
    put(at + kEntryHeader - kChecksum, Checksum64()
                                           .add(file.data() + at, kEntryHeader - kChecksum)
                                           .add(file.data() + key, key_bytes + value_bytes)
                                           .value());
    at = value + value_bytes;
  }
}

void append(Bytes& file, const void* data, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  file.insert(file.end(), begin, begin + bytes);
}

}  // namespace

std::vector<Bytes> seeds() {
  Bytes file = bytes_of(std::string_view("TRIBCKPT"));
  append(file, &kCheckpointFileFormat, sizeof kCheckpointFileFormat);
  file.resize(kFileHeader);
  for (std::uint32_t c = 0; c < layout().chunks(); ++c) {
    const std::size_t bytes = layout().chunk(ChunkIndex(c)).elements * sizeof(float);
    ChunkState state;
    state.nodes = 2;
    state.params = BufferRef::alone(bytes);
    state.slots[0] = BufferRef::alone(bytes);
    state.estimate = BufferRef::alone(bytes);
    state.residuals = {NodeResidual::of(1, state.params)};
    for (BufferRef* array : state.arrays()) {
      if (*array) std::ranges::fill(array->floats(), 0.5f);
    }
    records::ChunkHeader header;
    header.chunk = ChunkIndex(c);
    header.optimizer = "sgd";
    std::string sealed;
    for (const StoredEntry& entry : records::compose_chunk(header, state, sealed).entries) {
      const std::uint32_t key[2] = {static_cast<std::uint32_t>(entry.key.size()), 0};
      const std::uint64_t value[2] = {entry.value.size(), 0};
      append(file, key, sizeof key);
      append(file, value, sizeof value);
      append(file, entry.key.data(), entry.key.size());
      append(file, entry.value.data(), entry.value.size());
    }
  }
  mend(file);
  return {file};
}

void run(std::span<const std::byte> input) {
  static MemoryFile memory;
  Bytes bytes(input.begin(), input.end());
  mend(bytes);
  memory.write(bytes);
  const auto file = CheckpointFile::open(memory.path());
  if (!file || !(*file)->find_chunks(layout())) return;
  for (const auto& [chunk, place] : (*file)->chunks()) {
    const Result<StoredChunk> stored = (*file)->read(chunk);
    if (!stored) continue;
    const auto header = records::unseal_chunk(stored->entries.front().value, "it");
    if (!header || !records::check_arrays(*header, *stored)) continue;
    const ChunkState state = records::state_of(*header, *stored);
    records::ChunkHeader named;
    named.chunk = chunk;
    std::string sealed;
    const StoredChunk again = records::compose_chunk(std::move(named), state, sealed);
    const auto arrays = std::span(stored->entries).subspan(1), written = std::span(again.entries).subspan(1);
    require(std::ranges::equal(arrays, written, {}, &StoredEntry::key, &StoredEntry::key) &&
                std::ranges::equal(arrays, written, {}, &StoredEntry::value, &StoredEntry::value),
            "what was read is written as it was");
  }
}

Target target() {
  return {"shard_file", seeds, run};
}

}  // namespace tributary::fuzz::shard_file
