#include "server/store/rocks_options.h"

#include <fcntl.h>
#include <rocksdb/env.h>
#include <rocksdb/table.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <memory>
#include <utility>

#include "common/system/file_descriptor.h"

namespace tributary {
namespace {

bool takes_direct_io(const std::string& folder) {
  std::string path = folder + "/direct-XXXXXX";
  const FileDescriptor file(::mkostemp(path.data(), O_CLOEXEC | O_DIRECT));
  if (file) ::unlink(path.c_str());
  return static_cast<bool>(file);
}

// Passes warnings and errors on. RocksDB's own log keeps every header in memory, to write it again into each new file,
// and every column family that is made, which is every snapshot, is some kilobytes of headers.
class RocksLog final : public rocksdb::Logger {
 public:
  explicit RocksLog(std::function<void(const std::string&)> warn)
      : rocksdb::Logger(rocksdb::InfoLogLevel::WARN_LEVEL), warn_(std::move(warn)) {}

  void LogHeader(const char*, va_list) override {}
  using rocksdb::Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    Logv(rocksdb::InfoLogLevel::INFO_LEVEL, format, arguments);
  }
  void Logv(const rocksdb::InfoLogLevel level, const char* format, va_list arguments) override {
    if (!warn_ || level < rocksdb::InfoLogLevel::WARN_LEVEL || level > rocksdb::InfoLogLevel::FATAL_LEVEL) return;
    char line[1024];  // longer ones are cut
    std::vsnprintf(line, sizeof(line), format, arguments);
    warn_(std::string("RocksDB: ") + line);
  }

 private:
  const std::function<void(const std::string&)> warn_;
};

}  // namespace

rocksdb::Options rocks_options(const std::string& folder, std::function<void(const std::string&)> warn) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;  // fp32 state does not compress, and cores are for training
  options.bottommost_compression = rocksdb::kDisableCompressionOption;
  options.disable_auto_compactions = true;  // snapshots are sorted already; see record_options()
  options.level0_slowdown_writes_trigger = 1 << 30;
  options.level0_stop_writes_trigger = 1 << 30;
  options.write_buffer_size = 256u << 10;  // small records only; the write-ahead log is as long
  options.arena_block_size = 16u << 10;    // of each column family
  options.manifest_preallocation_size = 64u << 10;
  options.max_manifest_file_size = 256u << 10;  // it lists every snapshot that there was; then a new one is begun
  options.max_background_jobs = 1;
  options.max_open_files = 128;                  // a large shard has hundreds of files, and descriptors are for sockets
  options.bytes_per_sync = 4u << 20;             // write back steadily instead of in one burst at the end
  options.avoid_unnecessary_blocking_io = true;  // files of dropped snapshots are deleted in the background
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.info_log = std::make_shared<RocksLog>(std::move(warn));
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;  // every value is read once
  table.checksum = rocksdb::kXXH3;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  // Every value is read once, and is large: the kernel would copy it out of the page cache in one go, which keeps a
  // core for ten milliseconds from every thread that trains.
  options.use_direct_reads = takes_direct_io(folder);
  return options;
}

rocksdb::ColumnFamilyOptions record_options(const rocksdb::Options& options) {
  rocksdb::ColumnFamilyOptions records(options);
  records.disable_auto_compactions = false;
  records.level0_file_num_compaction_trigger = 4;
  return records;
}

}  // namespace tributary
