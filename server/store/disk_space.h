// Checks for room on the disk of a server's store, before it is used.
//
// RocksDB does not recover from a failed write of its own log as it should: 7.8.3 may stop the process when it is
// resumed, that is, at the next snapshot. (Durable data is not lost, and a restarted process can write again.) So all
// large writers (snapshots, redo logs, checkpoints on the same disk) leave kSpareBytes to it: the largest record is
// that of a job, with its ranks' states. And a record is not written without room for its size and kRecordBytes: a full
// disk is an error before the write, and the write is retried.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.h"

namespace tributary {

inline constexpr std::uint64_t kSpareBytes = 20u << 20, kRecordBytes = 1u << 20;

// kIo, naming path and figures ("No space left on device"), if there are less.
Status room_on_disk(const std::string& path, std::uint64_t bytes);

}  // namespace tributary
