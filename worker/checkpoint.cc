#include "worker/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "common/assert.h"
#include "common/checksum.h"
#include "common/durable_file.h"
#include "common/job_json.h"
#include "common/printed.h"
#include "kernels/optimizer.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKept = 2;
constexpr std::size_t kMaxNameBytes = 64u << 10;  // with the JSON
constexpr std::size_t kBlockBytes = 1u << 20;     // of a read that only checks
constexpr char kPrefix[] = "round-", kSuffix[] = ".ckpt";

Error flawed(const std::string& path, const std::string& flaw) {
  return {ErrorCode::kStoreFormat, "checkpoint '" + path + "': " + flaw};
}

// What the file system said (common/durable_file.h), about a checkpoint.
Error about(const std::string& path, Error error) {
  error.message =
      "checkpoint '" + path + "': " + error.message + "; look at the place that [store] path in worker.toml names";
  return error;
}

std::uint64_t header_checksum(CheckpointHeader header, std::string_view name) {
  header.checksum = 0;
  return Checksum64().add(&header, sizeof header).add(name.data(), name.size()).value();
}

std::size_t padded(std::size_t bytes) {
  return (bytes + 7) / 8 * 8;
}

// Every folder of jobs whose names have `job_name`'s form begins so.
std::string folder_prefix(std::string_view job_name) {
  return plain_file_name(job_name.substr(0, 64)) + "-";
}

// The hash keeps apart jobs whose names differ only in what fits no file name.
fs::path directory_of(const std::string& store_path, std::string_view job_name) {
  const std::uint64_t hash = Checksum64().add(job_name.data(), job_name.size()).value();
  return fs::path(store_path) / "allreduce" /
         (folder_prefix(job_name) + printed("%016llx", static_cast<unsigned long long>(hash)));
}

std::string file_name(Round round) {
  return kPrefix + std::to_string(round.value) + kSuffix;
}

// Rounds of the files in `directory`, newest first. No directory: none.
std::vector<Round> rounds_in(const fs::path& directory) {
  std::vector<Round> rounds;
  std::error_code ignored;
  for (fs::directory_iterator at(directory, ignored), end; !ignored && at != end; at.increment(ignored)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    const char* first = name.data() + sizeof kPrefix - 1;
    const char* last = name.data() + name.size() - (sizeof kSuffix - 1);
    std::uint64_t round = 0;
    const auto [stop, error] = std::from_chars(first, last, round);
    if (error == std::errc() && stop == last && round > 0) rounds.push_back(Round(round));
  }
  std::ranges::sort(rounds, std::greater());
  return rounds;
}

struct Found {
  Round round;
  fs::path path;
};

// What may be a checkpoint of the job, newest first. Folders of format 1 have a hash of the layout in their names, too;
// what is in a folder of such a name and is another job's is left out. A file that cannot be read is not.
std::vector<Found> files_of(const std::string& store_path, std::string_view job_name);

Status write_file(const std::string& path, const CheckpointView& view) {
  const Layout& layout = *view.layout;
  const Result<FileDescriptor> file = open_to_write(path);
  if (!file) return tl::unexpected(about(path, file.error()));
  Status written;
  const auto put = [&](const void* data, std::size_t bytes) {
    if (written) written = write_all(*file, path, data, bytes);
  };
  CheckpointHeader header;
  header.slots = static_cast<std::uint32_t>(view.slots.size());
  header.layout_hash = layout.hash();
  header.round = view.round.value;
  header.chunks = layout.chunks();
  header.elements = layout.flat_elements();
  std::string name(view.job_name);
  name += '\0';
  name += view.job_json;
  header.name_bytes = name.size();
  header.checksum = header_checksum(header, name);
  name.resize(padded(name.size()));
  put(&header, sizeof header);
  put(name.data(), name.size());
  for (std::uint32_t c = 0; c < layout.chunks() && written; ++c) {
    const ChunkRange range = layout.chunk(ChunkIndex(c));
    ChunkRecord record{c, view.steps[c], range.elements, 0};
    const std::size_t bytes = range.elements * sizeof(float);
    Checksum64 hash;
    hash.add(&record, sizeof record - sizeof record.checksum).add(view.parameters + range.begin, bytes);
    for (const float* slot : view.slots) hash.add(slot + range.begin, bytes);
    record.checksum = hash.value();
    put(&record, sizeof record);
    put(view.parameters + range.begin, bytes);
    for (const float* slot : view.slots) put(slot + range.begin, bytes);
  }
  if (written) written = sync(*file, path);
  if (!written) return tl::unexpected(about(path, written.error()));
  return {};
}

// What a file holds, told piece by piece.
class Reader {
 public:
  Reader(std::string path, std::string_view job_name)
      : path_(std::move(path)), job_name_(job_name), file_(open_to_read(path_)) {}

  Status header(Round round) {
    if (!file_) return tl::unexpected(about(path_, file_.error()));
    if (Status read = take(&header_, sizeof header_); !read) return read;
    if (header_.magic != kCheckpointMagic) return broken("it is no checkpoint of ours");
    if (header_.format != kCheckpointFormat) {
      return broken("it has format " + std::to_string(header_.format) + ", this release reads format " +
                    std::to_string(kCheckpointFormat));
    }
    if (header_.name_bytes > kMaxNameBytes) return broken("its header is damaged");
    std::string name(padded(header_.name_bytes), '\0');
    if (Status read = take(name.data(), name.size()); !read) return read;
    name.resize(header_.name_bytes);
    if (header_checksum(header_, name) != header_.checksum) return broken("the checksum of its header does not fit");
    const std::size_t end = name.find('\0');
    if (end == std::string::npos) return broken("its header is damaged");
    job_json_ = name.substr(end + 1);
    name.resize(end);
    foreign_ = name != job_name_;
    if (foreign_) return broken("it belongs to job '" + name + "'");
    if (header_.round != round.value) return broken("it holds round " + std::to_string(header_.round));
    if (header_.slots > kernels::kMaxSlots || header_.chunks > kMaxChunks || header_.elements > kMaxParameters * 2) {
      return broken("its header has impossible numbers");
    }
    return {};
  }

  // One chunk's arrays, into `arrays` (parameters, slots), or only checked when it is empty.
  Status chunk(std::uint64_t index, std::optional<std::uint64_t> elements, std::span<float* const> arrays,
               std::uint64_t& step) {
    ChunkRecord record;
    if (Status read = take(&record, sizeof record); !read) return read;
    if (record.chunk != index || record.elements > kMaxChunkBytes / sizeof(float) ||
        (elements && record.elements != *elements)) {
      return broken("the record of chunk " + std::to_string(index) + " is damaged");
    }
    Checksum64 hash;
    hash.add(&record, sizeof record - sizeof record.checksum);
    const std::size_t bytes = record.elements * sizeof(float);
    for (std::uint32_t a = 0; a < 1 + header_.slots; ++a) {
      if (arrays.empty()) block_.resize(kBlockBytes);
      for (std::size_t done = 0; done < bytes;) {
        const std::size_t now = arrays.empty() ? std::min(bytes - done, kBlockBytes) : bytes;
        void* to = arrays.empty() ? block_.data() : static_cast<void*>(arrays[a]);
        if (Status read = take(to, now); !read) return read;
        hash.add(to, now);
        done += now;
      }
    }
    if (hash.value() != record.checksum)
      return broken("the checksum of chunk " + std::to_string(index) + " does not fit");
    step = record.step;
    return {};
  }

  Status end() {
    const Result<std::uint64_t> size = size_of(*file_, path_);
    if (!size) return tl::unexpected(about(path_, size.error()));
    return *size > offset_ ? broken("it has more bytes than its header says") : Status{};
  }

  const CheckpointHeader& header() const { return header_; }
  const std::string& job_json() const { return job_json_; }
  bool foreign() const { return foreign_; }  // whole, as far as its header goes, but another job's
  Status broken(const std::string& flaw) const { return tl::unexpected(flawed(path_, flaw)); }

 private:
  Status take(void* data, std::size_t bytes) {
    const Status read = read_at(*file_, path_, offset_, data, bytes);
    offset_ += bytes;
    if (read) return {};
    return read.error().code == ErrorCode::kStore ? broken("it is cut short")
                                                  : tl::unexpected(about(path_, read.error()));
  }

  const std::string path_;
  const std::string_view job_name_;
  const Result<FileDescriptor> file_;
  std::uint64_t offset_ = 0;
  CheckpointHeader header_;
  std::string job_json_;
  bool foreign_ = false;
  std::vector<char> block_;
};

std::vector<Found> files_of(const std::string& store_path, std::string_view job_name) {
  constexpr std::size_t kHashDigits = 16;
  const fs::path own = directory_of(store_path, job_name);
  const std::string prefix = folder_prefix(job_name);
  std::vector<Found> found;
  std::error_code ignored;
  for (fs::directory_iterator at(fs::path(store_path) / "allreduce", ignored), end; !ignored && at != end;
       at.increment(ignored)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(prefix) || name.size() != prefix.size() + kHashDigits) continue;
    for (const Round round : rounds_in(at->path())) {
      const fs::path path = at->path() / file_name(round);
      if (at->path() != own) {
        Reader reader(path, job_name);
        if (!reader.header(round) && reader.foreign()) continue;
      }
      found.push_back({round, path});
    }
  }
  std::ranges::stable_sort(found, [](const Found& a, const Found& b) { return a.round > b.round; });
  return found;
}

// Is every byte of the file as it was written? reader: new.
Status check(Reader& reader, Round round) {
  if (Status read = reader.header(round); !read) return read;
  std::uint64_t step = 0;
  for (std::uint64_t c = 0; c < reader.header().chunks; ++c) {
    if (Status read = reader.chunk(c, std::nullopt, {}, step); !read) return read;
  }
  return reader.end();
}

constexpr char kOtherLayout[] = "other tensors, or another [job] chunk_bytes";

}  // namespace

Status write_checkpoint(const std::string& store_path, const CheckpointView& view) {
  TRIB_ASSERT(view.layout != nullptr && view.steps.size() == view.layout->chunks());
  const fs::path directory = directory_of(store_path, view.job_name);
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) {
    return tl::unexpected(about(directory, file_error("create the directory", directory, error.value())));
  }
  const std::string path = directory / file_name(view.round);
  const std::string beside = path + ".part";
  Status written = write_file(beside, view);
  if (written && ::rename(beside.c_str(), path.c_str()) != 0) {
    written = tl::unexpected(about(path, file_error("rename a file to", path, errno)));
  }
  if (written) {
    if (const Status synced = sync_directory(directory); !synced) written = tl::unexpected(about(path, synced.error()));
  }
  if (!written) {
    ::unlink(beside.c_str());
    return written;
  }
  const std::vector<Round> rounds = rounds_in(directory);
  for (std::size_t i = kKept; i < rounds.size(); ++i) fs::remove(directory / file_name(rounds[i]), error);
  return {};
}

Status read_checkpoint(const std::string& store_path, std::string_view job_name, const Layout& layout, Round round,
                       const CheckpointTarget& target) {
  TRIB_ASSERT(target.steps.size() == layout.chunks());
  const std::vector<Found> files = files_of(store_path, job_name);
  const auto of_round = std::ranges::find(files, round, &Found::round);
  Reader reader(of_round != files.end() ? of_round->path : directory_of(store_path, job_name) / file_name(round),
                job_name);
  if (Status read = reader.header(round); !read) return read;
  const CheckpointHeader& header = reader.header();
  if (header.layout_hash != layout.hash() || header.chunks != layout.chunks() ||
      header.elements != layout.flat_elements()) {
    return reader.broken(std::string("it was written for ") + kOtherLayout);
  }
  if (header.slots != target.slots.size()) {
    return reader.broken("it has " + std::to_string(header.slots) + " state arrays, the job's optimizer has " +
                         std::to_string(target.slots.size()));
  }
  for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
    const ChunkRange range = layout.chunk(ChunkIndex(c));
    std::vector<float*> arrays{target.parameters + range.begin};
    for (float* slot : target.slots) arrays.push_back(slot + range.begin);
    if (Status read = reader.chunk(c, range.elements, arrays, target.steps[c]); !read) return read;
    if (target.steps[c] > round.value)
      return reader.broken("chunk " + std::to_string(c) + " claims more steps than rounds");
  }
  return reader.end();
}

Result<Round> newest_checkpoint(const std::string& store_path, std::string_view job_name, std::uint64_t layout_hash,
                                std::string_view job_json) {
  if (store_path.empty()) return Round(0);
  std::optional<Error> first;
  fs::path directory;
  for (const auto& [round, path] : files_of(store_path, job_name)) {
    Reader reader(path, job_name);
    if (Status whole = check(reader, round); !whole) {
      if (!first) {
        first = whole.error();
        directory = path.parent_path();
      }
      continue;
    }
    std::string difference;
    if (!job_json.empty() && !reader.job_json().empty())
      difference = describe_config_difference(reader.job_json(), job_json);
    if (difference.empty() && reader.header().layout_hash != layout_hash) difference = kOtherLayout;
    if (difference.empty()) return round;
    return fail(ErrorCode::kConfigMismatch, "job '" + std::string(job_name) + "' has a checkpoint of round " +
                                                std::to_string(round.value) + " of another training: " + difference +
                                                "; train what it was, give the job another name, or remove '" +
                                                path.parent_path().string() + "' to begin anew");
  }
  if (!first) return Round(0);
  first->message += "; no other checkpoint of the job is whole: remove '" + directory.string() +
                    "' to begin the job anew, or bring the file back";
  return tl::unexpected(*first);
}

}  // namespace tributary
