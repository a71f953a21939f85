#include "server/checkpoint/checkpoint_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/layout.h"

namespace tributary {
namespace {

constexpr char kMagic[8] = {'T', 'R', 'I', 'B', 'C', 'K', 'P', 'T'};

struct FileHeader {
  char magic[8] = {};
  std::uint32_t format = kCheckpointFileFormat;
  std::uint32_t shard = 0;
  std::uint64_t round = 0;
  std::uint64_t layout_hash = 0;
  std::uint64_t checksum = 0;
};
struct EntryHeader {
  std::uint32_t key_bytes = 0;
  std::uint32_t zero = 0;
  std::uint64_t value_bytes = 0;
  std::uint64_t checksum = 0;
};
static_assert(sizeof(FileHeader) == 40 && sizeof(EntryHeader) == 24);

std::uint64_t checksum_of(const FileHeader& header) {
  return XXH3_64bits(&header, offsetof(FileHeader, checksum));
}

std::uint64_t checksum_of(const EntryHeader& header, std::string_view key, std::string_view value) {
  return Checksum64().add(&header, offsetof(EntryHeader, checksum)).add(key).add(value).value();
}

// Bound on a chunk's header, however many nodes it names.
constexpr std::uint64_t kMaxHeaderBytes = 1u << 20;

// Returns whether the entry has a possible size. array_bytes: of each array of its chunk.
bool possible(const EntryHeader& header, std::string_view key, std::uint64_t array_bytes) {
  if (part_of_key(key) == kHeaderPart) return header.value_bytes <= kMaxHeaderBytes;
  return header.value_bytes == array_bytes;
}

bool possible(const EntryHeader& header) {
  return header.zero == 0 && header.key_bytes >= kMinChunkKey && header.key_bytes <= kMaxChunkKey;
}

Error damaged(const std::string& path, const std::string& flaw) {
  return {ErrorCode::kStore, "'" + path + "': " + flaw};
}

}  // namespace

Result<std::unique_ptr<CheckpointFileWriter>> CheckpointFileWriter::create(std::string path,
                                                                           const CheckpointFileInfo& info) {
  Result<std::unique_ptr<UncachedFileWriter>> file = UncachedFileWriter::create(std::move(path));
  if (!file) return tl::unexpected(file.error());
  FileHeader header;
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.shard = info.shard.value;
  header.round = info.round.value;
  header.layout_hash = info.layout_hash;
  header.checksum = checksum_of(header);
  if (Status written = (*file)->put(&header, sizeof header); !written) return tl::unexpected(written.error());
  return std::unique_ptr<CheckpointFileWriter>(new CheckpointFileWriter(std::move(*file)));
}

Status CheckpointFileWriter::add(const StoredChunk& chunk) {
  for (const StoredEntry& entry : chunk.entries) {
    EntryHeader header{static_cast<std::uint32_t>(entry.key.size()), 0, entry.value.size(), 0};
    header.checksum = checksum_of(header, entry.key, entry.value);
    Status written = file_->put(&header, sizeof header);
    if (written) written = file_->put(entry.key.data(), entry.key.size());
    if (written) written = file_->put(entry.value.data(), entry.value.size());
    if (!written) return written;
  }
  return {};
}

CheckpointFile::CheckpointFile(std::string path, FileDescriptor file)
    : path_(std::move(path)), file_(std::move(file)) {}

Result<std::unique_ptr<CheckpointFile>> CheckpointFile::open(std::string path) {
  Result<FileDescriptor> descriptor = open_to_read(path);
  if (!descriptor) return tl::unexpected(descriptor.error());
  const Result<std::uint64_t> size = size_of(*descriptor, path);
  if (!size) return tl::unexpected(size.error());
  std::unique_ptr<CheckpointFile> file(new CheckpointFile(std::move(path), std::move(*descriptor)));
  file->size_ = *size;
  if (Status read = file->read_header(); !read) return tl::unexpected(read.error());
  return file;
}

Status CheckpointFile::read_header() {
  FileHeader header;
  if (Status read = read_at(file_, path_, 0, &header, sizeof header); !read) return read;
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) {
    return tl::unexpected(damaged(path_, "it is no file of a checkpoint"));
  }
  if (header.format != kCheckpointFileFormat) {
    return fail(ErrorCode::kStoreFormat, "'" + path_ + "' has format " + std::to_string(header.format) +
                                             ", this program reads format " + std::to_string(kCheckpointFileFormat) +
                                             "; use the release that wrote it");
  }
  if (header.checksum != checksum_of(header) || header.shard > 0xffff) {
    return tl::unexpected(damaged(path_, "its header is damaged"));
  }
  info_ = {ShardIndex(static_cast<std::uint16_t>(header.shard)), Round(header.round), header.layout_hash};
  return {};
}

Status CheckpointFile::find_chunks(const Layout& layout) {
  chunks_.clear();
  auto last = chunks_.end();
  std::string last_key;
  for (std::uint64_t at = sizeof(FileHeader); at < size_;) {
    const std::string after =
        last == chunks_.end() ? "before its first chunk" : "in or after chunk " + std::to_string(last->first.value);
    const auto damaged_here = [&] {
      return tl::unexpected(damaged(path_, "it is damaged " + after + ", at byte " + std::to_string(at)));
    };
    struct {
      EntryHeader entry;
      char key[kMaxChunkKey];
    } piece;
    const std::size_t there = std::min<std::uint64_t>(sizeof piece, size_ - at);
    if (there < sizeof(EntryHeader) + kMinChunkKey) return tl::unexpected(damaged(path_, "it is cut short " + after));
    if (Status read = read_at(file_, path_, at, &piece, there); !read) return read;
    if (!possible(piece.entry)) return damaged_here();
    const std::string_view key(piece.key, piece.entry.key_bytes);
    const ChunkIndex chunk = chunk_of_key(key);
    // Keys ascend, so a chunk has a bounded number of entries, the header first.
    if (chunk.value >= layout.chunks() || key <= last_key) return damaged_here();
    if (!possible(piece.entry, key, layout.chunk(chunk).elements * sizeof(float))) return damaged_here();
    const std::uint64_t end = at + sizeof(EntryHeader) + piece.entry.key_bytes + piece.entry.value_bytes;
    if (end > size_) return tl::unexpected(damaged(path_, "it is cut short " + after));
    const bool begins = last == chunks_.end() || chunk != last->first;
    if (begins != (part_of_key(key) == kHeaderPart)) return damaged_here();
    if (begins) last = chunks_.emplace_hint(chunks_.end(), chunk, Place{at, end});
    last->second.end = end;
    last_key = key;
    at = end;
  }
  return {};
}

Result<StoredChunk> CheckpointFile::read(ChunkIndex chunk, Checksum128* whole) {
  const auto place = chunks_.find(chunk);
  if (place == chunks_.end()) {
    return fail(ErrorCode::kStore, "'" + path_ + "' lacks chunk " + std::to_string(chunk.value));
  }
  const std::string what = "chunk " + std::to_string(chunk.value);
  StoredChunk out{chunk, {}};
  std::size_t count = 0;
  for (std::uint64_t at = place->second.begin; at < place->second.end; ++count) {
    EntryHeader header;
    if (Status read = read_at(file_, path_, at, &header, sizeof header); !read) return tl::unexpected(read.error());
    // Was checked when the chunks were found; the file may have been written to since.
    const std::uint64_t left = place->second.end - at - std::min<std::uint64_t>(sizeof header, place->second.end - at);
    if (!possible(header) || header.value_bytes > left || header.key_bytes > left - header.value_bytes) {
      return tl::unexpected(damaged(path_, what + " is damaged"));
    }
    if (count == entries_.size()) entries_.emplace_back();
    std::vector<char>& entry = entries_[count];
    entry.resize(header.key_bytes + header.value_bytes);
    at += sizeof header;
    if (Status read = read_at(file_, path_, at, entry.data(), entry.size()); !read) {
      return tl::unexpected(read.error());
    }
    at += entry.size();
    if (whole) whole->add(&header, sizeof header);
    if (whole) whole->add(entry.data(), entry.size());
    const std::string_view key(entry.data(), header.key_bytes);
    const std::string_view value(entry.data() + header.key_bytes, header.value_bytes);
    if (checksum_of(header, key, value) != header.checksum) {
      return tl::unexpected(damaged(
          path_, what + ": " + part_in_words(key) + (part_of_key(key) == kParamsPart ? " are" : " is") + " damaged"));
    }
    out.entries.push_back({std::string(key), value});
  }
  return out;
}

Status CheckpointFile::add_header_to(Checksum128& whole) {
  FileHeader header;
  if (Status read = read_at(file_, path_, 0, &header, sizeof header); !read) return read;
  whole.add(&header, sizeof header);
  return {};
}

}  // namespace tributary
