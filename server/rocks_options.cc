#include "server/rocks_options.h"

#include <fcntl.h>
#include <rocksdb/table.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/file_descriptor.h"

namespace tributary {
namespace {

bool takes_direct_io(const std::string& folder) {
  std::string path = folder + "/direct-XXXXXX";
  const FileDescriptor file(::mkostemp(path.data(), O_CLOEXEC | O_DIRECT));
  if (file) ::unlink(path.c_str());
  return static_cast<bool>(file);
}

}  // namespace

rocksdb::Options rocks_options(const std::string& folder) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;  // fp32 state does not compress, and cores are for training
  options.bottommost_compression = rocksdb::kDisableCompressionOption;
  options.disable_auto_compactions = true;  // snapshots are sorted already; the small records are few
  options.level0_slowdown_writes_trigger = 1 << 30;
  options.level0_stop_writes_trigger = 1 << 30;
  options.write_buffer_size = 1u << 20;  // small records only
  options.arena_block_size = 16u << 10;  // of each column family
  options.manifest_preallocation_size = 64u << 10;
  options.max_background_jobs = 1;
  options.max_open_files = 128;                  // a large shard has hundreds of files, and descriptors are for sockets
  options.bytes_per_sync = 4u << 20;             // write back steadily instead of in one burst at the end
  options.avoid_unnecessary_blocking_io = true;  // files of dropped snapshots are deleted in the background
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.info_log_level = rocksdb::WARN_LEVEL;
  options.max_log_file_size = 1u << 20;
  options.keep_log_file_num = 2;
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;  // every value is read once
  table.checksum = rocksdb::kXXH3;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  // Every value is read once, and is large: the kernel would copy it out of the page cache in one go, which keeps a
  // core for ten milliseconds from every thread that trains.
  options.use_direct_reads = takes_direct_io(folder);
  return options;
}

}  // namespace tributary
