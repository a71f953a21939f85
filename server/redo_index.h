// What a log's records mean, wherever they are kept. Pure.
//
// RedoIndex: which versions of a shard's chunks a log has. A chunk has one run of versions without a gap, the newest;
// what came before a gap is of no use to who must begin at a snapshot behind it.
//
// ValidSteps: which records these are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

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

// Told of all records, in their order. Place: whatever the caller finds a record by.
template <class Place>
class ValidSteps {
 public:
  // The newest record of a version counts, and nothing that was there of later ones.
  void note(ChunkIndex chunk, Version version, Place place) {
    auto& of = chunks_[chunk];
    drop_after(of, version.value - 1);
    of.push_back({version.value, std::move(place)});
  }
  void cut(Version version) {
    for (auto& [chunk, of] : chunks_) drop_after(of, version.value);
  }

  std::size_t chunks() const { return chunks_.size(); }
  struct Missing {
    ChunkIndex chunk;
    std::uint64_t version = 0;
  };
  // Adds the steps after `after` up to `to` to `wanted`, each chunk's ascending; or says what is missing of them.
  std::optional<Missing> between(Round after, Round to, std::vector<Place>& wanted) const {
    for (const auto& [chunk, of] : chunks_) {
      std::uint64_t expected = after.value + 1;
      for (const Step& step : of) {
        if (step.version <= after.value || step.version > to.value) continue;
        if (step.version != expected) break;
        ++expected;
        wanted.push_back(step.place);
      }
      if (expected != to.value + 1) return Missing{chunk, expected};
    }
    return std::nullopt;
  }

 private:
  struct Step {
    std::uint64_t version = 0;
    Place place;
  };
  static void drop_after(std::vector<Step>& of, std::uint64_t version) {
    while (!of.empty() && of.back().version > version) of.pop_back();
  }
  std::map<ChunkIndex, std::vector<Step>> chunks_;
};

}  // namespace tributary
