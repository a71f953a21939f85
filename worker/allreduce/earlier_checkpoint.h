// Checkpoints of all-reduce jobs in the form that releases up to protocol 9 wrote. They are only read, once: the newest
// is written again in the form that servers and workers share (worker/allreduce/replica_checkpoints.h).
//
//   STORE/allreduce/JOB-HASH/round-R.ckpt     JOB: the job's name, made fit for a file name; HASH: 16 digits
//   header | name, a zero, the job's JSON, padded with zeros to 8 bytes |
//   per chunk: record, parameters, state arrays (fp32)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/layout.h"
#include "common/base/result.h"

namespace tributary {

struct EarlierCheckpoint {
  Round round;
  std::string path;
  std::string job_json;                    // empty in the oldest
  std::vector<std::vector<float>> arrays;  // parameters, then state arrays: layout.flat_elements() values each
  std::vector<std::uint64_t> steps;        // by chunk
};

// Returns the job's newest complete checkpoint. An error if there are files but none that is complete and has this
// layout; the error names the newest and its flaw.
Result<std::optional<EarlierCheckpoint>> newest_earlier(const std::string& store_path, std::string_view job_name,
                                                        const Layout& layout);

}  // namespace tributary
