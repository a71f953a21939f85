// LargePartStore: keeps large parts of ranks' states (common/wire/state_head.h) beyond the coordinator's process,
// in pieces of kPartBytes. A server's store has one (server/store/large_part_families.h).
//
// A large part is complete when finish() has succeeded. A part without finish() is gone after a restart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/wire/state_head.h"

namespace tributary {

class LargePartStore {
 public:
  using Complete = std::map<JobId, std::set<LargePart>>;

  virtual ~LargePartStore() = default;
  virtual Complete complete() const = 0;
  // An unfinished one of its name goes. kStore: there is no room for it.
  virtual Status begin(JobId job, const LargePart& large) = 0;
  // A piece, at a multiple of kPartBytes, of what was begun. kNotFound: it was dropped since.
  virtual Status add(JobId job, const LargePart& large, std::uint64_t offset, std::span<const std::byte> piece) = 0;
  // REQUIRES: all pieces are there, and its checksum is right. Durable before it returns.
  virtual Status finish(JobId job, const LargePart& large) = 0;
  // The piece at this offset of a complete one. kNotFound: it is not here.
  virtual Result<std::vector<std::byte>> read(JobId job, const LargePart& large, std::uint64_t offset) const = 0;
  // All others of this job go, finished or not.
  virtual Status drop(JobId job, const std::set<LargePart>& but_these) = 0;

  // Makes a complete part of job `from` one of job `to`, too. each: a piece of so many bytes is there; an error ends it.
  Status take_along(JobId from, JobId to, const LargePart& large, const std::function<Status(std::size_t)>& each) {
    Status status = begin(to, large);
    for (std::uint64_t offset = 0; status && offset < large.bytes; offset += kPartBytes) {
      const auto piece = read(from, large, offset);
      status = piece ? add(to, large, offset, *piece) : tl::unexpected(piece.error());
      if (status) status = each(piece->size());
    }
    return status ? finish(to, large) : status;
  }
};

}  // namespace tributary
