// Checkpoints of all-reduce jobs: the state of all chunks at one round, in one file of node 0's worker.
//
//   STORE/allreduce/JOB-HASH/round-R.ckpt     JOB: the job's name, made fit for a file name; HASH: of name and layout
//
//   header (64 bytes): magic, format, state arrays, layout hash, round, chunks, checksum of name and header
//   the job's name
//   per chunk: index, version, step, elements, XXH3 of what follows; parameters, state arrays (fp32)
//
// All numbers little-endian. A file is written beside its place, synced and renamed, so that what bears the name is
// complete; every value is checked all the same when it is read. The newest two are kept.
#pragma once

#include <cstdint>
#include <string>

#include "common/ids.h"
#include "common/layout.h"
#include "common/result.h"

namespace tributary {

// The newest round whose checkpoint of this job is whole: it can be read and its checksums hold. Round 0: there is
// none. An error if files are there but none of them is whole; it names the newest and what is wrong with it.
Result<Round> newest_checkpoint(const std::string& store_path, const std::string& job_name, std::uint64_t layout_hash);

}  // namespace tributary
