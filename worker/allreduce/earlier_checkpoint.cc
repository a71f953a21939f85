#include "worker/allreduce/earlier_checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <utility>

#include "common/base/checksum.h"
#include "common/files/durable_file.h"
#include "kernels/step/optimizer.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMagic = 0x74706b6354524942ull;
constexpr std::size_t kMaxHeadBytes = 64u << 10;  // with the JSON

struct Header {
  std::uint64_t magic = 0;
  std::uint32_t format = 0, slots = 0;
  std::uint64_t layout_hash = 0, round = 0, chunks = 0, elements = 0;
  std::uint64_t name_bytes = 0;  // of the name, the zero and the JSON
  std::uint64_t checksum = 0;    // XXH3-64 of this header with checksum 0, and of those
};
struct Record {
  std::uint64_t chunk = 0, step = 0, elements = 0;
  std::uint64_t checksum = 0;  // XXH3-64 of the three above and of the arrays
};
static_assert(sizeof(Header) == 64 && sizeof(Record) == 32);

// Reads one file. No value: the checkpoint is another job's.
Result<std::optional<EarlierCheckpoint>> read_file(const std::string& path, std::string_view job_name,
                                                   const Layout& layout) {
  const Result<FileDescriptor> file = open_to_read(path);
  if (!file) return tl::unexpected(file.error());
  std::uint64_t at = 0;
  const auto take = [&](void* data, std::size_t bytes) {
    const Status read = read_at(*file, path, at, data, bytes);
    at += bytes;
    return read;
  };
  const auto flaw = [&](const std::string& what) {
    return fail(ErrorCode::kStore, "checkpoint '" + path + "': " + what);
  };
  Header header;
  if (Status read = take(&header, sizeof header); !read) return tl::unexpected(read.error());
  if (header.magic != kMagic || header.format != 1 || header.name_bytes > kMaxHeadBytes) {
    return flaw("its header is damaged");
  }
  std::string name((header.name_bytes + 7) / 8 * 8, '\0');
  if (Status read = take(name.data(), name.size()); !read) return tl::unexpected(read.error());
  name.resize(header.name_bytes);
  const std::uint64_t checksum = std::exchange(header.checksum, 0);
  const std::size_t end = name.find('\0');
  if (Checksum64().add(&header, sizeof header).add(name).value() != checksum || end == std::string::npos) {
    return flaw("its header is damaged");
  }
  if (name.substr(0, end) != job_name) return std::optional<EarlierCheckpoint>();
  if (header.layout_hash != layout.hash() || header.chunks != layout.chunks() ||
      header.elements != layout.flat_elements() || header.slots > kernels::kMaxSlots) {
    return fail(ErrorCode::kConfigMismatch, "checkpoint '" + path +
                                                "' is of other tensors, or of another [job] chunk_bytes; train what it "
                                                "was, give the job another name, or remove the file to begin anew");
  }
  EarlierCheckpoint found;
  found.round = Round(header.round);
  found.path = path;
  found.job_json = name.substr(end + 1);
  found.arrays.assign(1 + header.slots, std::vector<float>(layout.flat_elements()));
  for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
    const ChunkRange range = layout.chunk(ChunkIndex(c));
    Record record;
    if (Status read = take(&record, sizeof record); !read) return tl::unexpected(read.error());
    Checksum64 hash;
    hash.add(&record, sizeof record - sizeof record.checksum);
    for (std::vector<float>& array : found.arrays) {
      const std::size_t bytes = range.elements * sizeof(float);
      if (Status read = take(array.data() + range.begin, bytes); !read) return tl::unexpected(read.error());
      hash.add(array.data() + range.begin, bytes);
    }
    if (record.chunk != c || record.elements != range.elements || hash.value() != record.checksum ||
        record.step > header.round) {
      return flaw("chunk " + std::to_string(c) + " is damaged");
    }
    found.steps.push_back(record.step);
  }
  return std::optional(std::move(found));
}

}  // namespace

Result<std::optional<EarlierCheckpoint>> newest_earlier(const std::string& store_path, std::string_view job_name,
                                                        const Layout& layout) {
  const std::string prefix = plain_file_name(job_name.substr(0, 64)) + "-";
  std::vector<std::pair<std::uint64_t, std::string>> files;  // round and path
  std::error_code ignored;
  for (fs::recursive_directory_iterator at(fs::path(store_path) / "allreduce", ignored), end; !ignored && at != end;
       at.increment(ignored)) {
    const fs::path& path = at->path();
    unsigned long long round = 0;
    if (path.extension() != ".ckpt" || std::sscanf(path.stem().c_str(), "round-%llu", &round) != 1) continue;
    if (path.parent_path().filename().string().starts_with(prefix)) files.emplace_back(round, path.string());
  }
  std::ranges::sort(files, std::greater());
  std::optional<Error> first;
  for (const auto& [round, path] : files) {
    auto found = read_file(path, job_name, layout);
    if (found && !*found) continue;
    if (found || found.error().code == ErrorCode::kConfigMismatch) return found;
    if (!first) first = found.error();
  }
  if (!first) return std::optional<EarlierCheckpoint>();
  return tl::unexpected(*first);
}

}  // namespace tributary
