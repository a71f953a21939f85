// How a store sets RocksDB up: for a few small records, and large values that are written and read once.
#pragma once

#include <rocksdb/options.h>

#include <functional>
#include <string>

namespace tributary {

// folder: one on the store's file system, for a trial file: does the file system take O_DIRECT? warn: gets RocksDB's
// warnings and errors, on any of its threads; may be empty.
rocksdb::Options rocks_options(const std::string& folder, std::function<void(const std::string&)> warn);

// The same for the column family of the small records: records come for as long as the store lives, and overwritten or
// deleted ones go when their files are merged.
rocksdb::ColumnFamilyOptions record_options(const rocksdb::Options& options);

}  // namespace tributary
