// Runs the very source of the CUDA kernels (kernels/*.cu) on the CPU: compiled by g++ with this header in front of it
// (-include), a launch becomes a loop over the blocks of the grid, and the threads of a block become fibers of one
// thread of the operating system. Device pointers are plain pointers.
//
// A fiber runs until it must wait for others (a barrier of the block, an exchange within its warp); then another fiber
// runs. So a run is deterministic. A seed can shuffle the order of turns, and that of blocks: results that depend on it
// show a missing barrier. Shared memory is filled with a pattern before every block, so that no block depends on values
// of an earlier one. Mistakes that CUDA leaves undefined end the launch with an exception: a barrier or an exchange
// that not all threads reach, lanes of a warp at different exchanges, a mask without all lanes.
//
// Under AddressSanitizer and UndefinedBehaviorSanitizer, accesses outside of global and shared arrays and misaligned
// vectors are found as well (fibers are announced to the sanitizers).
//
// Not emulated: speed; coalesced accesses and bank conflicts; effects of a weak memory order or true parallelism
// between blocks or between atomics and plain accesses; whether the compiler for the device rounds as the one for the
// host (-fmad=false and IEEE division and square root make it so); a device's launch limits. tests/gpu runs the same
// cases on a device.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>

// ---- CUDA's words ----

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__

// As kernels/device.cuh has them for nvcc.
#define TRIBUTARY_UNROLL
#define TRIBUTARY_UNROLL_4
#define TRIBUTARY_SHARED(Type, name)                                            \
  static const char name##_site = 0;                                            \
  std::type_identity_t<Type>& name = *static_cast<std::type_identity_t<Type>*>( \
      ::tributary::emulation::shared_memory(&name##_site, sizeof(Type), alignof(Type)))

namespace tributary::emulation {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

// The length of a turn: all threads of the block in turns, each up to its next wait; or a warp until all of it waits
// for other warps, which shows mistakes between warps that turns of all threads would hide.
enum class Turns { kThreads, kWarps };

struct Schedule {
  std::uint32_t seed = 0;  // 0: in ascending order, 1: descending, others: shuffled anew for every turn
  Turns turns = Turns::kThreads;
  unsigned max_blocks = 1u << 31;  // smaller grids than asked for: kernels must stride
};

// For the launches that follow.
void use(const Schedule& schedule);

// Runs `kernel` as every thread of the grid. Throws std::logic_error, which names thread and mistake.
void run_grid(unsigned blocks, unsigned threads, const std::function<void()>& kernel);

// Launches a kernel: runs the grid, at once. An emulation of streams defers it: it gives a launcher, which gets the
// stream and the work to run later. An empty launcher restores the default: at once.
void launch(const void* stream, unsigned blocks, unsigned threads, const std::function<void()>& kernel);
using Launcher = std::function<void(const void* stream, std::function<void()> run)>;
void use_launcher(Launcher launcher);

// ---- For the code of the kernels ----

// Returns the same memory to all threads of the block at the same site.
void* shared_memory(const void* site, std::size_t bytes, std::size_t alignment);
// Returns the number of threads of the block that passed true.
int barrier(bool vote);

enum class Exchange { kShuffle, kShuffleUp, kShuffleDown, kShuffleXor, kReduceAdd, kReduceMax };
// Waits for all lanes of the warp; returns the value of lane `source` (0 to 31) of this exchange.
std::uint64_t exchange(Exchange kind, unsigned mask, std::uint64_t value, unsigned source);
// Likewise; combines the lanes' values.
std::uint32_t reduce(Exchange kind, unsigned mask, std::uint32_t value);
unsigned lane();

template <class T>
T exchange_value(Exchange kind, unsigned mask, T value, unsigned source) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  return std::bit_cast<T>(static_cast<Bits>(exchange(kind, mask, std::bit_cast<Bits>(value), source)));
}

}  // namespace tributary::emulation

// The indices of the thread whose turn it is.
extern tributary::emulation::Index threadIdx, blockIdx, blockDim, gridDim;

inline void __syncthreads() {
  tributary::emulation::barrier(false);
}

inline int __syncthreads_count(int predicate) {
  return tributary::emulation::barrier(predicate != 0);
}

template <class T>
T __shfl_sync(unsigned mask, T value, unsigned source) {
  using namespace tributary::emulation;
  return exchange_value(Exchange::kShuffle, mask, value, source % 32);
}

// Lanes whose source lies outside of the warp keep their own value.
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta) {
  using namespace tributary::emulation;
  return exchange_value(Exchange::kShuffleUp, mask, value, lane() < delta ? lane() : lane() - delta);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta) {
  using namespace tributary::emulation;
  return exchange_value(Exchange::kShuffleDown, mask, value, lane() + delta > 31 ? lane() : lane() + delta);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, unsigned bits) {
  using namespace tributary::emulation;
  return exchange_value(Exchange::kShuffleXor, mask, value, (lane() ^ bits) % 32);
}

inline std::uint32_t __reduce_add_sync(unsigned mask, std::uint32_t value) {
  return tributary::emulation::reduce(tributary::emulation::Exchange::kReduceAdd, mask, value);
}

inline std::uint32_t __reduce_max_sync(unsigned mask, std::uint32_t value) {
  return tributary::emulation::reduce(tributary::emulation::Exchange::kReduceMax, mask, value);
}

// No fiber is interrupted, so a plain addition is atomic.
template <class T>
T atomicAdd(T* at, T value) {
  const T old = *at;
  *at += value;
  return old;
}
