// A LargePartStore in memory, for tests without a disk.
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "server/coordinator/cluster/large_part_store.h"

namespace tributary::testing {

class PartsInMemory final : public LargePartStore {
 public:
  using Key = std::pair<JobId, LargePart>;
  struct Part {
    std::map<std::uint64_t, std::vector<std::byte>> pieces;  // by offset
    bool complete = false;
  };

  Complete complete() const override {
    Complete all;
    for (const auto& [key, part] : parts) {
      if (part.complete) all[key.first].insert(key.second);
    }
    return all;
  }
  Status begin(JobId job, const LargePart& large) override {
    if (full) return fail(ErrorCode::kStore, "the disk is full");
    parts[{job, large}] = {};
    return {};
  }
  Status add(JobId job, const LargePart& large, std::uint64_t offset, std::span<const std::byte> piece) override {
    if (full) return fail(ErrorCode::kStore, "the disk is full");
    parts.at({job, large}).pieces[offset].assign(piece.begin(), piece.end());
    return {};
  }
  Status finish(JobId job, const LargePart& large) override {
    if (full) return fail(ErrorCode::kStore, "the disk is full");
    parts.at({job, large}).complete = true;
    return {};
  }
  Result<std::vector<std::byte>> read(JobId job, const LargePart& large, std::uint64_t offset) const override {
    const auto found = parts.find({job, large});
    if (found == parts.end() || !found->second.complete || !found->second.pieces.contains(offset)) {
      return fail(ErrorCode::kNotFound, "it is not here");
    }
    return found->second.pieces.at(offset);
  }
  Status drop(JobId job, const std::set<LargePart>& but_these) override {
    if (full) return fail(ErrorCode::kStore, "the disk is full");
    std::erase_if(
        parts, [&](const auto& entry) { return entry.first.first == job && !but_these.contains(entry.first.second); });
    return {};
  }
  // A process ends: what is not complete is lost.
  void restart() {
    std::erase_if(parts, [](const auto& entry) { return !entry.second.complete; });
  }

  std::map<Key, Part> parts;
  bool full = false;
};

}  // namespace tributary::testing
