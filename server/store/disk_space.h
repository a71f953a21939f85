// Room on the disk of a server's store, asked for before it is used.
//
// RocksDB does not come back from a failed write of its own log as it should: 7.8.3 may stop the process when it is
// told to go on, which it is at the next snapshot (that loses nothing that is durable, and a process that begins anew
// can write again). So whatever is large (snapshots, redo logs, checkpoints on the same disk) leaves kSpareBytes to it:
// the largest record is that of a job, with what its ranks keep. And a record is not written if there is not its size
// and kRecordBytes: a full disk is an error that is met before the write, and tried again.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.h"

namespace tributary {

inline constexpr std::uint64_t kSpareBytes = 20u << 20, kRecordBytes = 1u << 20;

// kIo, naming path and figures ("No space left on device"), if there are less.
Status room_on_disk(const std::string& path, std::uint64_t bytes);

}  // namespace tributary
