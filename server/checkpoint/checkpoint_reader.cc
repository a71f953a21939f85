#include "server/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/checksum.h"
#include "server/checkpoint/checkpoint_file.h"
#include "server/chunk/chunk_record.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kShownTensors = 3;

class Reading {
 public:
  Reading(const std::string& path, const Manifest& manifest, const CheckpointVisitor& visitor)
      : path_(path),
        manifest_(manifest),
        layout_(layout_of(manifest)),
        optimizer_(job_of(manifest).optimizer),
        slots_(state_names(optimizer_).size()),
        visitor_(visitor) {}

  // Reads the files of `whole`, and of other files only these chunks.
  Status run(const std::set<ShardIndex>& whole, const std::set<ChunkIndex>& chunks) {
    std::set<ShardIndex> shards = whole;
    for (const ChunkIndex chunk : chunks) shards.insert(layout_.owner(chunk).shard);
    for (const ManifestShard& shard : manifest_.shards) {
      if (!shards.contains(shard.shard)) continue;
      if (Status opened = open(shard); !opened) return opened;
    }
    for (std::uint32_t c = 0; c < layout_.chunks(); ++c) {
      const auto at = files_.find(layout_.owner(ChunkIndex(c)).shard);
      if (at == files_.end() || !at->second.file->chunks().contains(ChunkIndex(c))) continue;
      if (!whole.contains(at->first) && !chunks.contains(ChunkIndex(c))) continue;
      if (Status read = read_chunk(at->second, ChunkIndex(c)); !read) return read;
    }
    for (const auto& [shard, file] : files_) {
      if (!whole.contains(shard) || file.flawed || file.whole.hex() == file.entry->checksum) continue;
      Status told = visitor_.flaw(file.entry->file + " has the checksum " + file.whole.hex() + ", the manifest says " +
                                  file.entry->checksum + ": it is the file of another checkpoint");
      if (!told) return told;
    }
    return {};
  }

 private:
  struct File {
    const ManifestShard* entry = nullptr;
    std::unique_ptr<CheckpointFile> file;
    Checksum128 whole;    // of what was read so far: the header, and the chunks one after the other
    bool flawed = false;  // told already
  };

  // A file that is not the manifest's by its size or header is not looked into.
  Status open(const ManifestShard& shard) {
    auto opened = CheckpointFile::open((fs::path(path_) / shard.file).string());
    if (!opened) {
      return visitor_.flaw(opened.error().code == ErrorCode::kNotFound ? shard.file + " is missing"
                                                                       : opened.error().message);
    }
    File file{&shard, std::move(*opened), {}, false};
    if (const std::uint64_t size = file.file->bytes(); size != shard.bytes) {
      return visitor_.flaw(shard.file + " has " + std::to_string(size) + " bytes, the manifest says " +
                           std::to_string(shard.bytes) + (size < shard.bytes ? ": it was cut short" : ""));
    }
    const CheckpointFileInfo& info = file.file->info();
    if (info != CheckpointFileInfo{shard.shard, manifest_.round, layout_.hash()}) {
      return visitor_.flaw(shard.file + " holds shard " + std::to_string(info.shard.value) + " at round " +
                           std::to_string(info.round.value) + " of " +
                           (info.layout_hash == layout_.hash() ? "this" : "another") +
                           " model, the manifest says shard " + std::to_string(shard.shard.value) + " at round " +
                           std::to_string(manifest_.round.value));
    }
    Status found = file.file->find_chunks(layout_);
    if (found) found = file.file->add_header_to(file.whole);
    if (!found) return visitor_.flaw(found.error().message);
    for (const auto& [chunk, place] : file.file->chunks()) {
      if (layout_.owner(chunk).shard == shard.shard) continue;
      Status told =
          flaw(file, shard.file + " has chunk " + std::to_string(chunk.value) + ", which the manifest puts elsewhere");
      if (!told) return told;
    }
    for (std::uint32_t c = 0; c < layout_.chunks(); ++c) {
      const ChunkIndex chunk(c);
      if (layout_.owner(chunk).shard != shard.shard || file.file->chunks().contains(chunk)) continue;
      if (Status told = flaw(file, shard.file + " lacks " + chunk_in_words(layout_, chunk)); !told) return told;
    }
    files_.emplace(shard.shard, std::move(file));
    return {};
  }

  Status flaw(File& file, std::string what) {
    file.flawed = true;
    return visitor_.flaw(std::move(what));
  }

  Status read_chunk(File& file, ChunkIndex chunk) {
    const Result<StoredChunk> stored = file.file->read(chunk, &file.whole);
    if (!stored) return flaw(file, stored.error().message + "; " + chunk_in_words(layout_, chunk));
    if (Status whole = check(*stored); !whole) {
      return flaw(file, file.entry->file + ": " + chunk_in_words(layout_, chunk) + " " + whole.error().message);
    }
    return visitor_.chunk(*stored);
  }

  // Checks a chunk's header against the manifest and the job, and its arrays against the header (as a store will).
  Status check(const StoredChunk& stored) const {
    const Result<records::ChunkHeader> header = records::unseal_chunk(stored.entries.front().value, "its header");
    if (!header) return fail(ErrorCode::kStore, "is damaged: " + header.error().message);
    const std::uint64_t elements = layout_.chunk(stored.chunk).elements;
    if (header->round != manifest_.round || header->chunk != stored.chunk || header->elements != elements) {
      return fail(ErrorCode::kStore, "is chunk " + std::to_string(header->chunk.value) + " of round " +
                                         std::to_string(header->round.value) + " with " +
                                         std::to_string(header->elements) + " elements by its header; it must be of " +
                                         "round " + std::to_string(manifest_.round.value) + " with " +
                                         std::to_string(elements));
    }
    if (header->slots != slots_ || header->optimizer != optimizer_.name) {
      return fail(ErrorCode::kStore, "has " + std::to_string(header->slots) + " state arrays of optimizer '" +
                                         header->optimizer + "', the job needs " + std::to_string(slots_) + " of '" +
                                         optimizer_.name + "'");
    }
    const Status whole = records::check_arrays(*header, stored);
    if (!whole) return fail(ErrorCode::kStore, "is damaged: " + whole.error().message);
    return {};
  }

  const std::string& path_;
  const Manifest& manifest_;
  const Layout layout_;
  const OptimizerConfig optimizer_;
  const std::size_t slots_;
  const CheckpointVisitor& visitor_;
  std::map<ShardIndex, File> files_;
};

}  // namespace

Status read_checkpoint(const std::string& path, const Manifest& manifest, const std::set<ShardIndex>& shards,
                       const CheckpointVisitor& visitor) {
  return Reading(path, manifest, visitor).run(shards, {});
}

Status read_chunks(const std::string& path, const Manifest& manifest, const std::set<ChunkIndex>& chunks,
                   const std::set<ShardIndex>& whole, const CheckpointVisitor& visitor) {
  return Reading(path, manifest, visitor).run(whole, chunks);
}

std::string chunk_in_words(const Layout& layout, ChunkIndex chunk) {
  const auto [first, last] = layout.tensors_of(chunk);
  std::string names;
  for (std::size_t t = first; t < last && t < first + kShownTensors; ++t) {
    names += (names.empty() ? "'" : ", '") + layout.tensors()[t].name + "'";
  }
  if (last > first + kShownTensors) names += " and " + std::to_string(last - first - kShownTensors) + " more";
  return "chunk " + std::to_string(chunk.value) + " (of " + (last - first == 1 ? "tensor " : "tensors ") + names + ")";
}

}  // namespace tributary
