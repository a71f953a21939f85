// A safetensors file as a checkpoint of round 0: one shard file, which restore deals to any number of servers.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "common/base/checksum.h"
#include "common/config/job_json.h"
#include "common/config/json_text.h"
#include "common/config/optimizer_config.h"
#include "kernels/cast.h"
#include "server/checkpoint/checkpoint_convert.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/checkpoint/checkpoint_file.h"
#include "server/checkpoint/safetensors.h"
#include "server/chunk/chunk_record.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

struct Source {
  std::string path;
  FileDescriptor file;
  std::uint64_t data = 0;  // where the tensors' bytes begin
  SafetensorsHeader header;
};

Result<Source> open_source(const std::string& path) {
  Result<FileDescriptor> file = open_to_read(path, Links::kFollow);
  if (!file) return tl::unexpected(file.error());
  Source source{path, std::move(*file), 0, {}};
  const Result<std::uint64_t> size = size_of(source.file, path);
  if (!size) return tl::unexpected(size.error());
  unsigned char prefix[kSafetensorsPrefix] = {};
  if (Status read = read_at(source.file, path, 0, prefix, sizeof prefix); !read) return tl::unexpected(read.error());
  const Result<std::uint64_t> bytes = safetensors_json_bytes(prefix, *size);
  if (!bytes) return fail(bytes.error().code, "'" + path + "': " + bytes.error().message);
  std::string json(*bytes, '\0');
  if (Status read = read_at(source.file, path, kSafetensorsPrefix, json.data(), json.size()); !read) {
    return tl::unexpected(read.error());
  }
  source.data = kSafetensorsPrefix + *bytes;
  Result<SafetensorsHeader> header = parse_safetensors(json, *size - source.data);
  if (!header) return fail(header.error().code, "'" + path + "': " + header.error().message);
  source.header = std::move(*header);
  if (source.header.tensors.empty()) return fail(ErrorCode::kMalformed, "'" + path + "' has no tensors");
  return source;
}

// "layer12.weight" -> (12, 0): how tributary-train names its tensors (train/mlp_shape.h).
std::optional<std::pair<std::uint32_t, int>> layer_of(const std::string& name) {
  constexpr std::string_view kLayer = "layer";
  if (!name.starts_with(kLayer)) return std::nullopt;
  std::uint32_t layer = 0;
  const auto [end, error] = std::from_chars(name.data() + kLayer.size(), name.data() + name.size(), layer);
  if (error != std::errc()) return std::nullopt;
  const std::string_view rest(end, static_cast<std::size_t>(name.data() + name.size() - end));
  if (rest == ".weight") return std::pair(layer, 0);
  if (rest == ".bias") return std::pair(layer, 1);
  return std::nullopt;
}

// The order in which the job's trainers declare the tensors, which a file need not keep (writers sort by name): the one
// that our export noted, that of the built-in trainer's names, else the file's.
std::vector<std::string> import_order(const SafetensorsHeader& header) {
  std::vector<std::string> names;
  for (const SafetensorsEntry& tensor : header.tensors) names.push_back(tensor.name);
  if (const auto noted = header.metadata.find("tributary.order"); noted != header.metadata.end()) {
    const nlohmann::json list = json_in(noted->second);
    std::vector<std::string> order;
    for (const auto& name : list.is_array() ? list : nlohmann::json::array()) {
      if (name.is_string()) order.push_back(name.get<std::string>());
    }
    if (!order.empty()) return order;
  }
  if (std::ranges::all_of(names, [](const std::string& name) { return layer_of(name).has_value(); })) {
    std::ranges::sort(names, {}, [](const std::string& name) { return *layer_of(name); });
  }
  return names;
}

// The file's tensors in the order of `names`. Tensors that are not named there (optimizer state of an export) stay out
// if the order was noted by an export; every name must be in the file.
Result<std::vector<const SafetensorsEntry*>> in_order(const Source& source, const std::vector<std::string>& names) {
  std::map<std::string_view, const SafetensorsEntry*> by_name;
  for (const SafetensorsEntry& tensor : source.header.tensors) by_name[tensor.name] = &tensor;
  std::vector<const SafetensorsEntry*> out;
  for (const std::string& name : names) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      return fail(ErrorCode::kLayoutMismatch,
                  "'" + source.path + "' has no tensor '" + name + "', which is in the order of the job's tensors");
    }
    out.push_back(found->second);
  }
  return out;
}

// `elements` values of a tensor from its element `first` on, as fp32.
Status read_values(const Source& source, const SafetensorsEntry& tensor, std::uint64_t first, std::uint64_t elements,
                   std::vector<std::uint16_t>& halves, float* out) {
  const std::uint64_t at = source.data + tensor.begin + first * bytes_of(tensor.type);
  if (tensor.type == SafetensorsType::kF32) return read_at(source.file, source.path, at, out, elements * sizeof(float));
  halves.resize(elements);
  if (Status read = read_at(source.file, source.path, at, halves.data(), elements * sizeof(std::uint16_t)); !read) {
    return read;
  }
  if (tensor.type == SafetensorsType::kF16) {
    kernels::fp16_to_fp32(halves.data(), elements, out);
  } else {
    kernels::bf16_to_fp32(halves.data(), elements, out);
  }
  return {};
}

Status read_chunk(const Source& source, const std::vector<const SafetensorsEntry*>& tensors, const Layout& layout,
                  ChunkIndex chunk, std::vector<std::uint16_t>& halves, std::span<float> out) {
  const ChunkRange range = layout.chunk(chunk);
  std::ranges::fill(out, 0.0f);  // padding is 0
  const auto [first, last] = layout.tensors_of(chunk);
  for (std::size_t t = first; t < last; ++t) {
    const std::uint64_t offset = layout.tensor_offset(t);
    const std::uint64_t begin = std::max(offset, range.begin);
    const std::uint64_t end = std::min(offset + layout.tensors()[t].elements(), range.begin + range.elements);
    if (begin >= end) continue;
    Status read =
        read_values(source, *tensors[t], begin - offset, end - begin, halves, out.data() + (begin - range.begin));
    if (!read) return read;
  }
  return {};
}

Result<Layout> lay_out(const std::vector<const SafetensorsEntry*>& tensors, const ImportOptions& options) {
  std::vector<TensorSpec> specs;
  for (const SafetensorsEntry* tensor : tensors) specs.push_back({tensor->name, tensor->shape});
  const Result<Layout> probe = Layout::unowned(specs);
  if (!probe) return probe;
  const std::vector<ShardSlots> shards(options.servers);
  const std::uint64_t elements = options.job.chunk_bytes != 0
                                     ? options.job.chunk_bytes / sizeof(float)
                                     : default_chunk_elements(probe->flat_elements(), shards, options.nodes, false);
  return Layout::unowned(std::move(specs), elements);
}

}  // namespace

Result<ConversionResult> import_safetensors(const std::string& file, const ImportOptions& options) {
  const Result<Source> source = open_source(file);
  if (!source) return tl::unexpected(source.error());
  const auto tensors = in_order(*source, options.order.empty() ? import_order(source->header) : options.order);
  if (!tensors) return tl::unexpected(tensors.error());
  const Result<Layout> layout = lay_out(*tensors, options);
  if (!layout) return fail(layout.error().code, "'" + file + "': " + layout.error().message);
  const auto optimizer = make_optimizer(options.job.optimizer);
  if (!optimizer) return fail(ErrorCode::kConfig, "optimizer.name = \"" + options.job.optimizer.name + "\" is unknown");

  const std::string target = (fs::path(options.directory) / checkpoint_name(options.job.name, Round(0))).string();
  const std::string partial = target + kPartialSuffix;
  std::error_code error;
  fs::create_directories(partial, error);
  if (error) return fail(ErrorCode::kIo, "cannot create the directory '" + partial + "': " + error.message());
  const auto give_up = [&](const Error& why) {
    fs::remove_all(partial, error);
    return tl::unexpected(why);
  };
  const ShardIndex shard(0);
  auto writer = CheckpointFileWriter::create((fs::path(partial) / shard_file_name(shard)).string(),
                                             {shard, Round(0), layout->hash()});
  if (!writer) return give_up(writer.error());
  std::vector<std::uint16_t> halves;
  for (std::uint32_t c = 0; c < layout->chunks(); ++c) {
    const std::uint64_t elements = layout->chunk(ChunkIndex(c)).elements;
    ChunkState state;
    state.params = BufferRef::alone(elements * sizeof(float));
    for (int slot = 0; slot < optimizer->slots(); ++slot) {
      state.slots[slot] = BufferRef::alone(elements * sizeof(float));
      std::ranges::fill(state.slots[slot].floats(), optimizer->initial_state(slot));
    }
    Status done = read_chunk(*source, *tensors, *layout, ChunkIndex(c), halves, state.params.floats());
    if (!done) return give_up(done.error());
    records::ChunkHeader header;
    header.chunk = ChunkIndex(c);
    header.optimizer = optimizer->name();
    std::string sealed;
    done = (*writer)->add(records::compose_chunk(std::move(header), state, sealed));
    if (!done) return give_up(done.error());
  }
  if (Status done = (*writer)->finish(); !done) return give_up(done.error());

  Manifest manifest;
  manifest.created = options.created;
  manifest.job_json = to_canonical_json(options.job);
  manifest.tensors = layout->tensors();
  manifest.chunk_elements = layout->chunk_elements();
  manifest.chunk_shards.assign(layout->chunks(), shard);
  manifest.shards = {{shard_file_name(shard), shard, static_cast<std::uint32_t>(layout->chunks()), (*writer)->bytes(),
                      (*writer)->checksum()}};
  const Result<bool> sealed = seal_checkpoint(partial, target, to_json(manifest));
  if (!sealed) return give_up(sealed.error());
  return ConversionResult{target, tensors->size(), layout->parameters(), (*writer)->bytes()};
}

}  // namespace tributary
