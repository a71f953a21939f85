// Chunks with contents that follow from (job, round, chunk), for the tests of the store and of the snapshotter.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "common/system/buffer_pool.h"
#include "server/store/store.h"

namespace tributary::testing {

inline float sample_value(Round round, ChunkIndex chunk, int array, std::size_t i) {
  return static_cast<float>(round.value) * 1000.0f + static_cast<float>(chunk.value) +
         static_cast<float>(array) * 0.25f + static_cast<float>(i % 97) * 0.001f;
}

inline SnapshotInfo sample_info(std::uint64_t job, std::uint64_t round, std::uint32_t chunks) {
  return {JobId(job), "mlp", Round(round), 0xabcdef0123456789ull, "adamw", chunks};
}

inline ChunkSnapshot sample_chunk(BufferPool& pool, JobId job, Round round, ChunkIndex chunk, std::size_t elements,
                                  int slots, ViewId view = ViewId(1)) {
  ChunkSnapshot out{.job = job, .view = view, .round = round, .chunk = chunk};
  out.state.version = Version(round.value);
  out.state.step = round.value;
  for (int array = 0; array <= slots; ++array) {
    BufferRef buffer = pool.acquire(elements * sizeof(float));
    REQUIRE(static_cast<bool>(buffer));
    for (std::size_t i = 0; i < elements; ++i) buffer.floats()[i] = sample_value(round, chunk, array, i);
    (array == 0 ? out.state.params : out.state.slots[array - 1]) = buffer;
  }
  return out;
}

inline bool sample_matches(std::span<const float> values, Round round, ChunkIndex chunk, int array) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != sample_value(round, chunk, array, i)) return false;
  }
  return true;
}

}  // namespace tributary::testing
