// A checkpoint's arrays, tensor by tensor, into one safetensors file.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "common/safetensors.h"
#include "server/checkpoint_convert.h"
#include "server/checkpoint_directory.h"
#include "server/checkpoint_file.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

// Ranges of a checkpoint's flat arrays, out of its files. Ranges come in ascending order, so one chunk is remembered.
class ArrayReader {
 public:
  ArrayReader(std::string path, const Manifest& manifest, const Layout& layout)
      : path_(std::move(path)), manifest_(manifest), layout_(layout) {}

  // Bytes of `elements` values of the array `part` from flat element `begin` on, all within one chunk.
  Result<std::string_view> read(std::uint8_t part, std::uint64_t begin, std::uint64_t elements) {
    const ChunkIndex chunk(static_cast<std::uint32_t>(begin / layout_.chunk_elements()));
    if (!loaded_ || chunk != chunk_.chunk) {
      if (Status loaded = load(chunk); !loaded) return tl::unexpected(loaded.error());
    }
    const ChunkRange range = layout_.chunk(chunk);
    const auto entry =
        std::ranges::find_if(chunk_.entries, [&](const StoredEntry& e) { return part_of_key(e.key) == part; });
    if (entry == chunk_.entries.end() || entry->value.size() != range.elements * sizeof(float)) {
      return fail(ErrorCode::kStore, "checkpoint '" + path_ + "': " + chunk_in_words(layout_, chunk) + " lacks " +
                                         part_in_words(chunk_key(chunk, part)));
    }
    return entry->value.substr((begin - range.begin) * sizeof(float), elements * sizeof(float));
  }

 private:
  Status load(ChunkIndex chunk) {
    const ShardIndex shard = manifest_.chunk_shards[chunk.value];
    std::unique_ptr<CheckpointFile>& file = files_[shard];
    if (!file) {
      auto opened = CheckpointFile::open((fs::path(path_) / shard_file_name(shard)).string());
      if (!opened) return tl::unexpected(opened.error());
      file = std::move(*opened);
    }
    loaded_ = false;
    Result<StoredChunk> read = file->read(chunk);
    if (!read) return tl::unexpected(read.error());
    // The entries' values lie in the file's own buffer, which another chunk of that file would overwrite.
    chunk_ = std::move(*read);
    loaded_ = true;
    return {};
  }

  const std::string path_;
  const Manifest& manifest_;
  const Layout& layout_;
  std::map<ShardIndex, std::unique_ptr<CheckpointFile>> files_;
  StoredChunk chunk_;
  bool loaded_ = false;
};

struct Array {
  std::size_t tensor = 0;
  std::uint8_t part = kParamsPart;
};

Status write_array(const FileDescriptor& out, const std::string& path, const Layout& layout, const Array& array,
                   ArrayReader& reader) {
  std::uint64_t at = layout.tensor_offset(array.tensor);
  const std::uint64_t end = at + layout.tensors()[array.tensor].elements();
  while (at < end) {
    const std::uint64_t in_chunk = layout.chunk_elements() - at % layout.chunk_elements();
    const std::uint64_t now = std::min(in_chunk, end - at);
    const Result<std::string_view> values = reader.read(array.part, at, now);
    if (!values) return tl::unexpected(values.error());
    if (Status written = write_all(out, path, values->data(), values->size()); !written) return written;
    at += now;
  }
  return {};
}

}  // namespace

Result<ConversionResult> export_safetensors(const std::string& checkpoint, const std::string& file, bool state) {
  const Result<Manifest> manifest = open_checkpoint(checkpoint);
  if (!manifest) return tl::unexpected(manifest.error());
  const Layout layout = layout_of(*manifest);
  const JobConfig job = job_of(*manifest);
  std::vector<std::string> suffixes = {""};
  if (state) {
    for (const std::string& name : state_names(job.optimizer)) suffixes.push_back("." + name);
  }

  SafetensorsHeader header;
  std::vector<Array> arrays;
  std::set<std::string> names;
  nlohmann::json order = nlohmann::json::array();
  std::uint64_t at = 0;
  for (std::size_t part = 0; part < suffixes.size(); ++part) {
    for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
      const TensorSpec& tensor = layout.tensors()[t];
      const std::string name = tensor.name + suffixes[part];
      if (name == "__metadata__" || !names.insert(name).second) {
        return fail(ErrorCode::kInvalidArgument,
                    "two arrays would have the name '" + name + "' in the file; export without --optimizer");
      }
      const std::uint64_t bytes = tensor.elements() * sizeof(float);
      header.tensors.push_back({name, SafetensorsType::kF32, tensor.shape, at, at + bytes});
      arrays.push_back({t, static_cast<std::uint8_t>(kParamsPart + part)});
      if (part == 0) order.push_back(tensor.name);
      at += bytes;
    }
  }
  header.metadata = {{"format", "pt"},
                     {"tributary.job", job.name},
                     {"tributary.round", std::to_string(manifest->round.value)},
                     {"tributary.order", order.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)}};

  const std::string partial = file + kPartialSuffix;
  const auto out = open_to_write(partial);
  if (!out) return tl::unexpected(out.error());
  const std::string prefix = safetensors_prefix(header);
  Status done = write_all(*out, partial, prefix.data(), prefix.size());
  ArrayReader reader(checkpoint, *manifest, layout);
  for (std::size_t i = 0; i < arrays.size() && done; ++i) done = write_array(*out, partial, layout, arrays[i], reader);
  if (done) done = sync(*out, partial);
  if (done) done = rename_durably(partial, file);
  if (!done) {
    std::error_code ignored;
    fs::remove(partial, ignored);
    return tl::unexpected(done.error());
  }
  return ConversionResult{file, header.tensors.size(), layout.parameters(), prefix.size() + at};
}

}  // namespace tributary
