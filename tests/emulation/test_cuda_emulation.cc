// The emulation itself: what it computes, and that it finds the mistakes that it says it finds.
#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/emulation/cuda_emulation.h"

namespace {

using namespace tributary;

constexpr unsigned kThreads = 64;
constexpr unsigned kAll = 0xffffffffu;

void sum_of_neighbours(const unsigned* in, unsigned* out, bool with_barrier) {
  TRIBUTARY_SHARED(unsigned[kThreads], shared);
  shared[threadIdx.x] = in[blockIdx.x * kThreads + threadIdx.x];
  if (with_barrier) __syncthreads();
  out[blockIdx.x * kThreads + threadIdx.x] =
      shared[(threadIdx.x + 1) % kThreads] + shared[(threadIdx.x + kThreads - 1) % kThreads];
}

// Whether a grid of two blocks gives the right sums under this schedule.
bool right_sums(const emulation::Schedule& schedule, bool with_barrier) {
  emulation::use(schedule);
  std::vector<unsigned> in(2 * kThreads), out(in.size());
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<unsigned>(i * i);
  emulation::run_grid(2, kThreads, [&] { sum_of_neighbours(in.data(), out.data(), with_barrier); });
  bool right = true;
  for (unsigned block = 0; block < 2; ++block) {
    const unsigned* mine = in.data() + block * kThreads;
    for (unsigned t = 0; t < kThreads; ++t) {
      right = right && out[block * kThreads + t] == mine[(t + 1) % kThreads] + mine[(t + kThreads - 1) % kThreads];
    }
  }
  return right;
}

std::vector<emulation::Schedule> schedules() {
  std::vector<emulation::Schedule> all;
  for (std::uint32_t seed = 0; seed < 10; ++seed) {
    for (auto turns : {emulation::Turns::kThreads, emulation::Turns::kWarps}) {
      all.push_back({.seed = seed, .turns = turns});
    }
  }
  return all;
}

std::string failure_of(const std::function<void()>& kernel) {
  emulation::use({});
  try {
    emulation::run_grid(1, kThreads, kernel);
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("the emulation runs every thread of every block once, in any order, up to the blocks allowed") {
  for (std::uint32_t seed : {0, 1, 2, 3}) {
    emulation::use({.seed = seed, .max_blocks = 5});
    std::vector<int> runs(7 * kThreads);
    emulation::run_grid(7, kThreads, [&] { ++runs[blockIdx.x * blockDim.x + threadIdx.x]; });
    CHECK(gridDim.x == 5);
    for (std::size_t i = 0; i < runs.size(); ++i) CHECK(runs[i] == (i < 5 * kThreads ? 1 : 0));
  }
}

TEST_CASE("the emulation's shared memory belongs to a block and its barrier holds all threads") {
  for (const auto& schedule : schedules()) CHECK(right_sums(schedule, true));
}

TEST_CASE("a kernel that lacks a barrier gives wrong results in the emulation whatever the order") {
  for (const auto& schedule : schedules()) CHECK_FALSE(right_sums(schedule, false));
}

TEST_CASE("warps that go ahead show a second use of shared memory without a barrier in between") {
  // Each warp publishes its number twice; the second time it may overwrite a number that another has not read yet.
  emulation::use({.turns = emulation::Turns::kWarps});
  bool right = true;
  emulation::run_grid(1, kThreads, [&] {
    TRIBUTARY_SHARED(unsigned[2], number);
    const unsigned warp = threadIdx.x / 32;
    for (unsigned time = 0; time < 2; ++time) {
      if (threadIdx.x % 32 == 0) number[warp] = 10 * time + warp;
      __syncthreads();
      right = right && number[1 - warp] == 10 * time + 1 - warp;
    }
  });
  CHECK_FALSE(right);
}

TEST_CASE("the emulation counts votes at a barrier") {
  emulation::use({.seed = 4});
  bool right = true;
  emulation::run_grid(1, kThreads, [&] {
    right = right && __syncthreads_count(threadIdx.x % 3 == 0) == 22;
    right = right && __syncthreads_count(false) == 0;
    right = right && __syncthreads_count(true) == static_cast<int>(kThreads);
  });
  CHECK(right);
}

TEST_CASE("the emulation's warp exchanges are those of the CUDA manual") {
  for (std::uint32_t seed : {0, 1, 5}) {
    emulation::use({.seed = seed});
    bool right = true;
    emulation::run_grid(1, kThreads, [&] {
      const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, mine = 100 * warp + lane;
      right = right && __shfl_sync(kAll, mine, 7) == 100 * warp + 7;
      right = right && __shfl_up_sync(kAll, mine, 4) == (lane < 4 ? mine : mine - 4);
      right = right && __shfl_down_sync(kAll, mine, 16) == (lane >= 16 ? mine : mine + 16);
      right = right && __shfl_xor_sync(kAll, mine, 3) == 100 * warp + (lane ^ 3u);
      right = right && __shfl_down_sync(kAll, 0.5 + mine, 1) == 0.5 + (lane == 31 ? mine : mine + 1);
      right = right && __reduce_add_sync(kAll, lane) == 496;
      right = right && __reduce_max_sync(kAll, mine) == 100 * warp + 31;
    });
    CHECK(right);
  }
}

TEST_CASE("the emulation's atomic additions lose none") {
  emulation::use({.seed = 6});
  unsigned total = 0;
  emulation::run_grid(3, kThreads, [&] { atomicAdd(&total, threadIdx.x); });
  CHECK(total == 3 * kThreads * (kThreads - 1) / 2);
}

TEST_CASE("the emulation refuses a barrier that not all threads reach") {
  CHECK(failure_of([] {
          if (threadIdx.x > 10) __syncthreads();
        }).find("53 of 64 threads wait") != std::string::npos);
}

TEST_CASE("the emulation refuses lanes of a warp at different exchanges, and masks without all lanes") {
  CHECK(failure_of([] {
          if (threadIdx.x % 2 == 0) {
            __reduce_add_sync(kAll, 1);
          } else {
            __reduce_max_sync(kAll, 1);
          }
        }).find("different exchanges") != std::string::npos);
  CHECK(failure_of([] { __shfl_sync(0xffffu, 1, 0); }).find("mask") != std::string::npos);
  CHECK(failure_of([] {
          if (threadIdx.x < 40) __shfl_sync(kAll, 1, 0);
        }).find("8 of 64 threads wait") != std::string::npos);
}

TEST_CASE("the emulation works again after a refused kernel") {
  CHECK(failure_of([] {
          if (threadIdx.x == 0) __syncthreads();
        }) != "");
  CHECK(right_sums({.seed = 3}, true));
}

}  // namespace
