#include "server/redo_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <map>
#include <utility>

#include "common/assert.h"
#include "common/durable_file.h"
#include "common/printed.h"
#include "server/disk_space.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".log";

std::optional<std::uint64_t> name_of(const fs::path& path) {
  const std::string file = path.filename().string();
  std::uint64_t name = 0;
  const auto [end, error] = std::from_chars(file.data(), file.data() + file.size(), name);
  if (error != std::errc() || std::string_view(end) != kSuffix || name == 0) return std::nullopt;
  return name;
}

bool all_zero(const std::byte* bytes, std::size_t count) {
  return std::all_of(bytes, bytes + count, [](std::byte b) { return b == std::byte{0}; });
}

LoggedStep step_of(const RedoHead& head) {
  LoggedStep step;
  step.job = JobId(head.job);
  step.view = ViewId(head.view);
  step.chunk = ChunkIndex(head.chunk);
  step.version = Version(head.version);
  step.step = head.step;
  step.scale = head.scale;
  step.lr = head.lr;
  step.gate = {static_cast<GateVerdict>(head.gate_verdict), head.gate_coefficient, head.gate_norm, head.gate_loss_scale,
               head.gate_good_rounds};
  step.elements = head.elements;
  return step;
}

}  // namespace

Result<std::unique_ptr<RedoLog>> RedoLog::open(std::string folder, JobId job) {
  std::unique_ptr<RedoLog> log(new RedoLog(std::move(folder), job));
  if (Status scanned = log->scan(); !scanned) return tl::unexpected(scanned.error());
  return log;
}

RedoLog::~RedoLog() {
  (void)sync();  // what is not durable is found when the log is opened again
  end_file();
}

std::string RedoLog::path_of(std::uint64_t name) const {
  return folder_ + "/" + printed("%08llu", static_cast<unsigned long long>(name)) + std::string(kSuffix);
}

void RedoLog::set_chunks(std::uint32_t chunks) {
  chunks_ = chunks;
  index_.set_chunks(chunks);
}

std::uint64_t RedoLog::bytes() const {
  std::uint64_t sum = 0;
  for (const File& file : files_) sum += file.bytes;
  return sum;
}

// ---- What is there ----

// Reads all heads, in order, and ends the log where the first record is damaged or missing.
Status RedoLog::scan() {
  std::error_code failed;
  fs::directory_iterator listing(folder_, failed);
  if (failed == std::errc::no_such_file_or_directory) return {};
  if (failed) return fail(ErrorCode::kIo, "cannot read the redo log in " + folder_ + ": " + failed.message());
  for (const auto& entry : listing) {
    if (const auto name = name_of(entry.path())) files_.push_back({*name, 0, 0});
  }
  std::ranges::sort(files_, {}, &File::name);
  std::vector<Entry> entries;
  std::string why;
  std::size_t read = 0;
  while (read < files_.size() && why.empty()) {
    if (Status status = scan_file(files_[read], entries, why); !status) return status;
    ++read;
  }
  std::size_t good = entries.size();
  if (Status status = check_tail(entries, why, good); !status) return status;
  if (!why.empty()) {
    damage_ = why;
    Entry end{files_[read - 1].name, files_[read - 1].bytes};
    if (good < entries.size()) end = entries[good];
    if (Status status = end_at(end); !status) return status;
    entries.resize(good);
  }
  for (File& file : files_) {
    if (Status status = settle(file); !status) return status;
  }
  for (const Entry& entry : entries) {
    next_ = entry.number + 1;
    if (entry.kind == RedoHead::kCut) {
      index_.cut(Version(entry.version));
    } else {
      index_.note(ChunkIndex(entry.chunk), Version(entry.version));
    }
  }
  synced_ = next_;
  return {};
}

// What a process that was killed left: records that are on their way to the disk, and space that it did not need.
Status RedoLog::settle(const File& file) const {
  const std::string path = path_of(file.name);
  const FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(file.bytes)) != 0)
    return tl::unexpected(file_error("cut off the unused end of", path, errno));
  return tributary::sync(fd, path);
}

Status RedoLog::scan_file(File& file, std::vector<Entry>& entries, std::string& why) {
  const std::string path = path_of(file.name);
  auto fd = open_to_read(path);
  if (!fd) return tl::unexpected(fd.error());
  const auto size = size_of(*fd, path);
  if (!size) return tl::unexpected(size.error());
  std::array<std::byte, kRedoHead> bytes;
  std::uint64_t offset = 0;
  const auto damaged = [&](const std::string& what) {
    why = what + " at byte " + std::to_string(offset) + " of " + path;
  };
  for (; offset + kRedoAlign <= *size;) {
    if (const Status status = read_at(*fd, path, offset, bytes.data(), bytes.size()); !status) {
      damaged("an unreadable record (" + status.error().message + ")");
      break;
    }
    const auto head = unseal_redo_head(bytes.data());
    if (!head && all_zero(bytes.data(), bytes.size())) break;
    if (!head) {
      damaged("a damaged record");
      break;
    }
    if (JobId(head->job) != job_ || (!entries.empty() && head->number != entries.back().number + 1)) {
      damaged(JobId(head->job) != job_ ? "a record of another job" : "a record is missing before the one");
      break;
    }
    if (offset + head->record_bytes() > *size) {
      damaged("half a record");
      break;
    }
    entries.push_back({file.name, offset, head->number, head->synced, head->version, head->chunk, head->kind});
    if (chunks_ == 0 && head->chunks != 0) set_chunks(head->chunks);
    if (head->kind == RedoHead::kStep) file.newest = std::max(file.newest, head->version);
    offset += head->record_bytes();
  }
  file.bytes = offset;
  return {};
}

// The sums of the records that were not known to be durable.
Status RedoLog::check_tail(const std::vector<Entry>& entries, std::string& why, std::size_t& good) const {
  if (entries.empty()) return {};
  const std::uint64_t synced = entries.back().synced;
  auto at = std::ranges::find_if(entries, [&](const Entry& entry) { return entry.number >= synced; });
  FileDescriptor fd;
  std::uint64_t open = 0;
  std::vector<std::byte> record;
  for (; at != entries.end(); ++at) {
    const std::string path = path_of(at->file);
    if (open != at->file) {
      auto opened = open_to_read(path);
      if (!opened) return tl::unexpected(opened.error());
      fd = std::move(*opened);
      open = at->file;
    }
    record.resize(kRedoHead);
    Status status = read_at(fd, path, at->offset, record.data(), kRedoHead);
    const auto head = status ? unseal_redo_head(record.data()) : std::nullopt;
    std::vector<float> sum(head ? head->elements : 0);
    if (head) status = read_at(fd, path, at->offset + kRedoHead, sum.data(), sum.size() * sizeof(float));
    if (head && status && sum_intact(*head, sum)) continue;
    good = static_cast<std::size_t>(at - entries.begin());
    why = (status ? "a damaged sum" : "an unreadable record (" + status.error().message + ")") + " at byte " +
          std::to_string(at->offset) + " of " + path;
    return {};
  }
  return {};
}

// Nothing from this record on is a part of the log any more.
Status RedoLog::end_at(const Entry& first_bad) {
  while (!files_.empty() && files_.back().name > first_bad.file) {
    std::error_code failed;
    fs::remove(path_of(files_.back().name), failed);
    if (failed) return fail(ErrorCode::kIo, "cannot remove " + path_of(files_.back().name) + ": " + failed.message());
    files_.pop_back();
  }
  TRIB_ASSERT(!files_.empty() && files_.back().name == first_bad.file);
  File& file = files_.back();
  const std::string path = path_of(file.name);
  const std::uint64_t end = std::min(first_bad.offset, file.bytes);
  const FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(end)) != 0)
    return tl::unexpected(file_error("cut off the damaged end of", path, errno));
  if (Status status = tributary::sync(fd, path); !status) return status;
  file.bytes = end;
  return sync_directory(folder_);
}

// ---- Writing ----

Status RedoLog::begin_file(std::uint64_t at_least, bool exact) {
  const std::uint64_t size = exact ? at_least : std::max(limits_.file_bytes, at_least);
  if (!exact && bytes() + size > limits_.bound_bytes) {
    return fail(ErrorCode::kLimit, "the redo log in " + folder_ + " has " + std::to_string(bytes() >> 20) +
                                       " MiB, and may have " + std::to_string(limits_.bound_bytes >> 20) +
                                       " (recovery.log_mb) until a snapshot covers some of it");
  }
  std::error_code failed;
  const bool made = fs::create_directories(folder_, failed);
  if (failed) return fail(ErrorCode::kIo, "cannot create " + folder_ + ": " + failed.message());
  if (made) {  // the folder of all logs, too, if this is the first one
    const fs::path parent = fs::path(folder_).parent_path();
    if (Status status = sync_directory(parent.string()); !status) return status;
    if (Status status = sync_directory(parent.parent_path().string()); !status) return status;
  }
  // Nothing may follow what is not durable: sync() asks for the open file only.
  if (Status status = sync(); !status) return status;
  if (Status room = room_on_disk(folder_, size + kSpareBytes); !room) return room;
  const std::uint64_t name = files_.empty() ? 1 : files_.back().name + 1;
  const std::string path = path_of(name);
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  FileDescriptor file(::open(path.c_str(), kFlags | O_DIRECT, 0644));
  if (!file && errno == EINVAL) file = FileDescriptor(::open(path.c_str(), kFlags, 0644));
  if (!file) return tl::unexpected(file_error("create", path, errno));
  int got = ::fallocate(file.get(), 0, 0, static_cast<off_t>(size));
  if (got != 0 && errno == EOPNOTSUPP) got = ::ftruncate(file.get(), static_cast<off_t>(size));
  if (got == 0) got = ::fsync(file.get());
  if (got != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    return tl::unexpected(file_error("get " + std::to_string(size >> 20) + " MiB for", path, error));
  }
  if (Status status = sync_directory(folder_); !status) {
    ::unlink(path.c_str());
    return status;
  }
  end_file();
  file_ = std::move(file);
  offset_ = 0;
  files_.push_back({name, size, 0});
  return {};
}

// What it does not need is given back.
void RedoLog::end_file() {
  if (!file_) return;
  if (::ftruncate(file_.get(), static_cast<off_t>(offset_)) == 0) files_.back().bytes = offset_;
  file_.reset();
}

RedoHead RedoLog::head_of(const LoggedStep& step, std::uint64_t number) const {
  RedoHead head;
  head.number = number;
  head.synced = synced_;
  head.job = job_.value;
  head.version = step.version.value;
  head.step = step.step;
  head.lr = step.lr;
  head.scale = step.scale;
  head.view = step.view.value;
  head.chunk = step.chunk.value;
  head.chunks = chunks_;
  head.gate_verdict = static_cast<std::uint32_t>(step.gate.verdict);
  head.gate_coefficient = step.gate.coefficient;
  head.gate_norm = step.gate.norm;
  head.gate_loss_scale = step.gate.loss_scale;
  head.gate_good_rounds = step.gate.good_rounds;
  head.elements = step.elements;
  return head;
}

Status RedoLog::write(std::span<const std::span<const std::byte>> records) {
  std::array<iovec, kMaxBatch> pieces;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    pieces[i] = {const_cast<std::byte*>(records[i].data()), records[i].size()};
    bytes += records[i].size();
  }
  const auto count = static_cast<int>(records.size());
  ssize_t done;
  do {
    done = ::pwritev(file_.get(), pieces.data(), count, static_cast<off_t>(offset_));
    if (done < 0 && errno == EINVAL && (::fcntl(file_.get(), F_GETFL) & O_DIRECT) != 0) {
      // The device wants another alignment than any that we know of: through the page cache, then.
      if (::fcntl(file_.get(), F_SETFL, 0) == 0) errno = EINTR;
    }
  } while (done < 0 && errno == EINTR);
  if (done != static_cast<ssize_t>(bytes)) {
    return tl::unexpected(file_error("write", path_of(files_.back().name), done < 0 ? errno : ENOSPC));
  }
  offset_ += bytes;
  return {};
}

Result<std::size_t> RedoLog::append(std::span<const LoggedStep> steps) {
  TRIB_ASSERT(!steps.empty());
  const std::uint64_t first = redo_record_bytes(steps[0].elements);
  if (!file_ || offset_ + first > files_.back().bytes) {
    if (Status begun = begin_file(first); !begun) return tl::unexpected(begun.error());
  }
  std::array<std::span<const std::byte>, kMaxBatch> records;
  std::size_t count = 0;
  std::uint64_t end = offset_;
  while (count < steps.size() && count < kMaxBatch) {
    const LoggedStep& step = steps[count];
    const std::size_t bytes = redo_record_bytes(step.elements);
    if (end + bytes > files_.back().bytes) break;
    std::byte* record = redo_record_in(step.block);
    seal(head_of(step, next_ + count), {redo_sum_in(step.block), step.elements}, record);
    records[count++] = {record, bytes};
    end += bytes;
  }
  if (Status written = write({records.data(), count}); !written) return tl::unexpected(written.error());
  next_ += count;
  for (std::size_t i = 0; i < count; ++i) {
    index_.note(steps[i].chunk, steps[i].version);
    files_.back().newest = std::max(files_.back().newest, steps[i].version.value);
  }
  return count;
}

Status RedoLog::cut(Version version) {
  if (files_.empty()) {
    index_.cut(version);
    return {};
  }
  if (!file_ || offset_ + kRedoAlign > files_.back().bytes) {
    Status begun = begin_file(kRedoAlign);
    if (!begun) begun = begin_file(kRedoAlign, true);
    if (!begun) return begun;
  }
  alignas(kRedoAlign) std::array<std::byte, kRedoAlign> record{};
  RedoHead head = head_of({}, next_);
  head.kind = RedoHead::kCut;
  head.version = version.value;
  seal(head, {}, record.data());
  const std::span<const std::byte> bytes(record);
  if (Status written = write({&bytes, 1}); !written) return written;
  ++next_;
  index_.cut(version);
  return sync();
}

Status RedoLog::sync() {
  if (synced() || !file_) return {};
  const std::uint64_t written = next_;
  if (::fdatasync(file_.get()) != 0) return tl::unexpected(file_error("sync", path_of(files_.back().name), errno));
  synced_ = written;
  return {};
}

void RedoLog::trim(Round round) {
  while (!files_.empty() && files_.front().newest <= round.value) {
    const bool open = files_.size() == 1 && file_;
    if (open && offset_ == 0) return;  // nothing in it yet
    if (open) {
      file_.reset();
      synced_ = next_;
    }
    std::error_code failed;
    fs::remove(path_of(files_.front().name), failed);
    if (failed) return;  // is tried again with the next snapshot
    files_.pop_front();
  }
}

void RedoLog::remove() {
  file_.reset();
  files_.clear();
  index_ = RedoIndex(chunks_);
  synced_ = next_;
  std::error_code ignored;  // what cannot be removed is found, and dropped, when the log is opened again
  fs::remove_all(folder_, ignored);
}

// ---- Reading back ----

Status RedoLog::replay(Round after, Round to, const Each& each) {
  if (to <= after) return {};
  // What is valid: the newest record of each version, without those that a cut made void.
  std::vector<Entry> entries;
  std::string why;
  for (File file : files_) {
    if (Status status = scan_file(file, entries, why); !status) return status;
    if (!why.empty()) break;
  }
  ValidSteps<Entry> valid;
  for (const Entry& entry : entries) {
    if (entry.kind == RedoHead::kCut) {
      valid.cut(Version(entry.version));
    } else {
      valid.note(ChunkIndex(entry.chunk), Version(entry.version), entry);
    }
  }
  std::vector<Entry> wanted;
  if (const auto missing = valid.between(after, to, wanted)) {
    return fail(ErrorCode::kUnavailable,
                "the redo log in " + folder_ + " lacks version " + std::to_string(missing->version) + " of chunk " +
                    std::to_string(missing->chunk.value) + (why.empty() ? "" : " (" + why + ")") + "; attach again");
  }
  if (valid.chunks() < chunks_) {
    return fail(ErrorCode::kUnavailable, "the redo log in " + folder_ + " has " + std::to_string(valid.chunks()) +
                                             " of " + std::to_string(chunks_) + " chunks; attach again");
  }
  std::ranges::sort(wanted, {}, &Entry::number);
  FileDescriptor fd;
  std::uint64_t open = 0;
  std::array<std::byte, kRedoHead> head_bytes;
  std::vector<float> sum;
  for (const Entry& entry : wanted) {
    const std::string path = path_of(entry.file);
    if (open != entry.file) {
      auto opened = open_to_read(path);
      if (!opened) return tl::unexpected(opened.error());
      fd = std::move(*opened);
      open = entry.file;
      ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    }
    Status read = read_at(fd, path, entry.offset, head_bytes.data(), head_bytes.size());
    const auto head = read ? unseal_redo_head(head_bytes.data()) : std::nullopt;
    if (head) {
      sum.resize(head->elements);
      read = read_at(fd, path, entry.offset + kRedoHead, sum.data(), sum.size() * sizeof(float));
    }
    if (!head || !read || !sum_intact(*head, sum)) {
      const std::string doubt = cut(Version(entry.version - 1)) ? "" : " (and it cannot be cut off)";
      return fail(ErrorCode::kUnavailable, "the redo log's record of version " + std::to_string(entry.version) +
                                               " of chunk " + std::to_string(entry.chunk) + " in " + path +
                                               " is damaged; check the disk. The job goes on before it" + doubt +
                                               "; attach again");
    }
    if (Status taken = each(step_of(*head), sum); !taken) return taken;
  }
  return {};
}

}  // namespace tributary
