// How a store sets RocksDB up: for a few small records, and large values that are written and read once.
#pragma once

#include <rocksdb/options.h>

#include <string>

namespace tributary {

// folder: one on the store's file system, where a file may be made: it says whether that takes O_DIRECT.
rocksdb::Options rocks_options(const std::string& folder);

}  // namespace tributary
