// A checkpoint's arrays, tensor by tensor, into one safetensors file.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/printed.h"
#include "common/files/durable_file.h"
#include "server/checkpoint/checkpoint_convert.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/safetensors.h"
#include "server/chunk/chunk_record.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

// Puts a chunk's arrays where their tensors lie in the file: array `part` of tensor t begins at offsets[part][t].
Status write_chunk(const FileDescriptor& out, const std::string& path, const Layout& layout,
                   const std::vector<std::vector<std::uint64_t>>& offsets, const StoredChunk& chunk) {
  const ChunkRange range = layout.chunk(chunk.chunk);
  const auto [first, last] = layout.tensors_of(chunk.chunk);
  for (const StoredEntry& entry : chunk.entries) {
    const std::size_t part = part_of_key(entry.key);
    if (part < kParamsPart || part - kParamsPart >= offsets.size()) continue;  // not exported
    for (std::size_t t = first; t < last; ++t) {
      const std::uint64_t tensor = layout.tensor_offset(t);
      const std::uint64_t begin = std::max(tensor, range.begin);
      const std::uint64_t end = std::min(tensor + layout.tensors()[t].elements(), range.begin + range.elements);
      if (begin >= end) continue;
      Status written =
          write_at(out, path, offsets[part - kParamsPart][t] + (begin - tensor) * sizeof(float),
                   entry.value.data() + (begin - range.begin) * sizeof(float), (end - begin) * sizeof(float));
      if (!written) return written;
    }
  }
  return {};
}

// The width is fixed: the header is written before the chunks that determine the step.
std::string step_text(std::uint64_t step) {
  return printed("%020ju", std::uintmax_t{step});
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
  std::vector<std::vector<std::uint64_t>> offsets(suffixes.size());  // by array and tensor
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
      offsets[part].push_back(at);
      if (part == 0) order.push_back(tensor.name);
      at += bytes;
    }
  }
  header.metadata = {{"format", "pt"},
                     {"tributary.job", job.name},
                     {"tributary.round", std::to_string(manifest->round.value)},
                     {"tributary.step", step_text(0)},
                     {"tributary.order", order.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)}};

  const std::string partial = file + kPartialSuffix;
  const auto out = open_to_write(partial);
  if (!out) return tl::unexpected(out.error());
  const std::uint64_t data_at = safetensors_prefix(header).size();
  for (auto& array : offsets) {
    for (std::uint64_t& offset : array) offset += data_at;
  }
  std::uint64_t step = 0;
  CheckpointVisitor visitor;
  visitor.chunk = [&](const StoredChunk& chunk) -> Status {
    const auto said = records::unseal_chunk(chunk.entries.front().value, "its header");
    if (!said) return tl::unexpected(said.error());
    step = std::max(step, said->step);
    return write_chunk(*out, partial, layout, offsets, chunk);
  };
  visitor.flaw = [&](const std::string& what) -> Status {
    return fail(ErrorCode::kStore, "checkpoint '" + checkpoint + "': " + what);
  };
  Status done = read_checkpoint(checkpoint, *manifest, shards_of(*manifest), visitor);
  if (done) {
    header.metadata["tributary.step"] = step_text(step);
    const std::string prefix = safetensors_prefix(header);
    done = write_at(*out, partial, 0, prefix.data(), prefix.size());
  }
  if (done) done = sync(*out, partial);
  if (done) done = rename_durably(partial, file);
  if (!done) {
    std::error_code ignored;
    fs::remove(partial, ignored);
    return tl::unexpected(done.error());
  }
  return ConversionResult{file, header.tensors.size(), layout.parameters(), data_at + at};
}

}  // namespace tributary
