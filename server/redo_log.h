// RedoLog: the log of one job on one server: what its steps depended on, on disk, so that they can be taken again after
// a snapshot was loaded. server/redo_record.h has the records; server/redo_logs.h writes them in the background.
//
//     FOLDER/00000001.log, 00000002.log, ...   records one after another; a file's rest is zeros
//
// Files are appended to by the process that made them only, and go as a whole, oldest first, when a snapshot covers all
// that they have. Disk space is taken file by file, so that a full disk is met there and not in the middle of a record.
//
// Whether a record reached the disk is not known before sync(). Every head says up to which record the log was synced
// when it was written; the sums of those after it are checked when the log is opened, and where a record is damaged, or
// one is missing, the log ends: the rest is removed.
//
// Written with O_DIRECT where the file system can, so that it costs hardly any processor time and no page cache.
// RocksDB's write-ahead log would take 3 to 5 processor seconds a GB (bench/RESULTS.md).
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/file_descriptor.h"
#include "common/messages.h"
#include "common/result.h"
#include "server/redo_index.h"
#include "server/redo_record.h"

namespace tributary {

class RedoLog {
 public:
  static constexpr std::size_t kMaxBatch = 64;  // records in one write

  struct Limits {
    std::uint64_t file_bytes = 64u << 20;
    std::uint64_t bound_bytes = 4ull << 30;  // of all files
  };
  // A step read back.
  using Each = std::function<Status(const LoggedStep&, std::span<const float> sum)>;

  // What is in the folder, if there is one. kIo: the system's reason.
  static Result<std::unique_ptr<RedoLog>> open(std::string folder, JobId job);
  ~RedoLog();
  RedoLog(const RedoLog&) = delete;
  RedoLog& operator=(const RedoLog&) = delete;

  void set_limits(Limits limits) { limits_ = limits; }
  void set_chunks(std::uint32_t chunks);

  // Writes the first of these steps, as many as fit into one write, and returns how many; their blocks' heads are
  // filled in. kLimit: the log has all the space that it may have; kIo: the disk has no more, or is broken. Then
  // nothing was written, and it can be tried again.
  Result<std::size_t> append(std::span<const LoggedStep> steps);
  // The job begins again after `version`: what there is of later ones is void. Has room in a log that is at its bound.
  Status cut(Version version);
  // What was appended is durable.
  Status sync();
  bool synced() const { return synced_ == next_; }

  // Removes files that have nothing after `round`.
  void trim(Round round);
  // All of it, and the folder.
  void remove();

  // The steps after `after` up to `to`, in an order that has each chunk's versions ascending. kUnavailable if there are
  // none of these, or a damaged one (what comes after it is void then), else what `each` returns.
  Status replay(Round after, Round to, const Each& each);

  LoggedRounds range() const { return index_.range(); }
  std::uint64_t bytes() const;
  // What open() had to cut off, in words; empty: nothing.
  const std::string& damage() const { return damage_; }

 private:
  struct File {
    std::uint64_t name = 0;
    std::uint64_t bytes = 0;   // on disk
    std::uint64_t newest = 0;  // version
  };
  struct Entry {
    std::uint64_t file = 0, offset = 0;  // file: its name
    std::uint64_t number = 0, synced = 0, version = 0;
    std::uint32_t chunk = 0, kind = 0;
  };

  RedoLog(std::string folder, JobId job) : folder_(std::move(folder)), job_(job) {}
  std::string path_of(std::uint64_t name) const;
  Status scan();
  Status settle(const File& file) const;
  // Adds its records; `why` says why it ends before it should. Sets file.bytes and file.newest.
  Status scan_file(File& file, std::vector<Entry>& entries, std::string& why);
  Status check_tail(const std::vector<Entry>& entries, std::string& why, std::size_t& good) const;
  Status end_at(const Entry& first_bad);  // of which file and offset count
  // exact: no larger than that, and beyond the log's bound if need be.
  Status begin_file(std::uint64_t at_least, bool exact = false);
  void end_file();
  Status write(std::span<const std::span<const std::byte>> records);
  RedoHead head_of(const LoggedStep& step, std::uint64_t number) const;

  const std::string folder_;
  const JobId job_;
  Limits limits_;
  std::uint32_t chunks_ = 0;
  std::deque<File> files_;  // ascending; the last one is open for writing if file_ is
  FileDescriptor file_;
  std::uint64_t offset_ = 0;             // in it
  std::uint64_t next_ = 1, synced_ = 1;  // record numbers
  RedoIndex index_;
  std::string damage_;
};

}  // namespace tributary
