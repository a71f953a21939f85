// Steps as a shard logs them, whose sums tell which they are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "common/buffer_pool.h"
#include "server/redo_record.h"

namespace tributary::testing {

inline constexpr JobId kRedoJob{0x7e57};

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

struct RedoBlocks {
  static constexpr std::size_t kElements = 3000;  // no multiple of anything

  explicit RedoBlocks(std::size_t blocks = 512) : pool(redo_block_bytes(kElements), blocks) {}

  static float value_of(std::uint32_t chunk, std::uint64_t version, std::size_t i) {
    return static_cast<float>(chunk) * 1000.0f + static_cast<float>(version) + static_cast<float>(i % 97) * 0.001f;
  }
  LoggedStep step(std::uint32_t chunk, std::uint64_t version) {
    LoggedStep step;
    step.job = kRedoJob;
    step.view = ViewId(1);
    step.chunk = ChunkIndex(chunk);
    step.version = Version(version);
    step.step = version;
    step.scale = 0.25f;
    step.lr = 0.1 / static_cast<double>(version);
    step.elements = kElements;
    step.block = pool.acquire(redo_block_bytes(kElements));
    if (!step.block) return step;
    float* sum = redo_sum_in(step.block);
    for (std::size_t i = 0; i < kElements; ++i) sum[i] = value_of(chunk, version, i) + generation;
    return step;
  }
  // Is it what step() made, of generation 0?
  static bool is(const LoggedStep& step, std::span<const float> sum) {
    bool same = step.job == kRedoJob && step.step == step.version.value && step.scale == 0.25f &&
                step.lr == 0.1 / static_cast<double>(step.version.value) && sum.size() == kElements;
    for (std::size_t i = 0; same && i < sum.size(); ++i)
      same = sum[i] == value_of(step.chunk.value, step.version.value, i);
    return same;
  }

  BufferPool pool;
  float generation = 0.0f;
};

}  // namespace tributary::testing
