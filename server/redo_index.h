// RedoIndex: which versions of a shard's chunks a log has. Pure. A chunk has one run of versions without a gap, the
// newest; what came before a gap is of no use to who must begin at a snapshot behind it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

#include "common/ids.h"
#include "common/messages.h"

namespace tributary {

class RedoIndex {
 public:
  // chunks: how many the shard owns. Each begins empty.
  explicit RedoIndex(std::uint32_t chunks = 0) : chunks_(chunks) {}

  void note(ChunkIndex chunk, Version version) {
    const auto [run, fresh] = runs_.try_emplace(chunk, Run{version.value, version.value});
    if (fresh) return;
    if (version.value != run->second.last + 1) run->second.first = version.value;
    run->second.last = version.value;
  }
  // Versions after `version` are void.
  void cut(Version version) {
    for (auto& [chunk, run] : runs_) {
      run.last = std::min(run.last, version.value);
      run.first = std::min(run.first, run.last + 1);
    }
  }
  void set_chunks(std::uint32_t chunks) { chunks_ = chunks; }

  // What all chunks have.
  LoggedRounds range() const {
    if (runs_.empty() || runs_.size() < chunks_) return {};
    LoggedRounds all{Round(0), Round(~0ull)};
    for (const auto& [chunk, run] : runs_) {
      all.first = std::max(all.first, Round(run.first));
      all.last = std::min(all.last, Round(run.last));
    }
    return all;
  }

 private:
  struct Run {
    std::uint64_t first = 1, last = 0;
  };
  std::uint32_t chunks_;
  std::map<ChunkIndex, Run> runs_;
};

}  // namespace tributary
