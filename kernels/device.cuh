// Shared parts of the CUDA kernels (*.cu): how an array is divided among blocks and threads, 16-byte accesses, the tree
// sum of an element's inputs, the lane sum of a block, and the launch.
//
// A tile is 4096 elements for 256 threads. Thread t handles four vectors of four elements, at 4 t + 1024 r (r = 0..3)
// or, where warps work alone, at 512 w + 4 l + 128 r (warp w, lane l): either way a warp touches 512 contiguous bytes
// of floats at once. Blocks take tiles in strides of the grid, so any grid is right; there is no order among blocks.
//
// Compiled by nvcc for devices. tests/emulation compiles the same files with g++, to run them without a device: there
// the compiler's command line includes tests/emulation/cuda_emulation.h, which defines CUDA's words.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda_stream.h"
#include "kernels/dispatch.h"
#include "kernels/lane_sum.h"
#include "kernels/tree_sum.h"

#if defined(__CUDACC__)
#define TRIBUTARY_UNROLL _Pragma("unroll")
#define TRIBUTARY_UNROLL_4 _Pragma("unroll 4")
// A variable that the threads of a block share; Type may be an array type. Not initialised.
#define TRIBUTARY_SHARED(Type, name) __shared__ std::type_identity_t<Type> name
#endif

namespace tributary::kernels::cuda {

inline constexpr unsigned kThreads = 256;
inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kWarps = kThreads / kWarp;
inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kVectors = 4;  // of one thread in a tile
inline constexpr std::size_t kTile = kThreads * kVectors * 4;
static_assert(kTile == kSumBlock && kTile / kVectors == kSumLanes);

// Enough tiles in flight for every device of today many times over, so that the last ones to finish do not count.
inline constexpr unsigned kMaxBlocks = 32768;

constexpr std::size_t tiles_of(std::size_t count) {
  return (count + kTile - 1) / kTile;
}

constexpr unsigned blocks_for(std::size_t count, unsigned most = kMaxBlocks) {
  return static_cast<unsigned>(std::min<std::size_t>(tiles_of(count), most));
}

// ---- Host: launch ----

// Launches the kernel, except with 0 blocks, which CUDA would refuse.
template <class... Parameters, class... Arguments>
void launch(Stream stream, unsigned blocks, void (*kernel)(Parameters...), const Arguments&... arguments) {
  if (blocks == 0) return;
#if defined(__CUDACC__)
  kernel<<<blocks, kThreads, 0, stream>>>(static_cast<Parameters>(arguments)...);
#else
  emulation::launch(stream, blocks, kThreads, [=] { kernel(static_cast<Parameters>(arguments)...); });
#endif
}

template <int kValue>
using Constant = std::integral_constant<int, kValue>;

// Calls launcher with Constant<1, 2, 4 or 8>: a bound on the number of inputs that more than half of are there. One and
// two, the usual, are exact.
template <class Launcher>
void with_most_inputs(const SumInputs& inputs, const Launcher& launcher) {
  if (inputs.count == 1) return launcher(Constant<1>());
  if (inputs.count == 2) return launcher(Constant<2>());
  if (inputs.count <= 4) return launcher(Constant<4>());
  launcher(Constant<8>());
}

// ---- Device: vectors ----

struct alignas(16) Floats {
  float v[4];
};
struct alignas(8) Halves {
  std::uint16_t v[4];
};
struct alignas(4) Bytes {
  std::int8_t v[4];
};

template <class Element>
struct VectorOf;
template <>
struct VectorOf<float> {
  using Type = Floats;
};
template <>
struct VectorOf<std::uint16_t> {
  using Type = Halves;
};
template <>
struct VectorOf<std::int8_t> {
  using Type = Bytes;
};
template <class Element>
using Vector = typename VectorOf<Element>::Type;

// array[i .. i+4), with zeros for what lies at or behind `count`. i is a multiple of 4. kWhole: all four are there.
template <bool kWhole, class Element>
__device__ __forceinline__ Vector<Element> load(const Element* array, std::size_t i, std::size_t count) {
  const auto* whole = reinterpret_cast<const Vector<Element>*>(array + i);
  if constexpr (kWhole) {
    return *whole;
  } else {
    if (i + 4 <= count) return *whole;
    Vector<Element> vector{};
    TRIBUTARY_UNROLL
    for (int c = 0; c < 4; ++c) {
      if (i + c < count) vector.v[c] = array[i + c];
    }
    return vector;
  }
}

template <bool kWhole, class Element>
__device__ __forceinline__ void store(Element* array, std::size_t i, std::size_t count, const Vector<Element>& vector) {
  auto* whole = reinterpret_cast<Vector<Element>*>(array + i);
  if constexpr (kWhole) {
    *whole = vector;
  } else {
    if (i + 4 <= count) {
      *whole = vector;
      return;
    }
    TRIBUTARY_UNROLL
    for (int c = 0; c < 4; ++c) {
      if (i + c < count) array[i + c] = vector.v[c];
    }
  }
}

__device__ __forceinline__ Floats operator+(Floats a, const Floats& b) {
  TRIBUTARY_UNROLL
  for (int c = 0; c < 4; ++c) a.v[c] += b.v[c];
  return a;
}

__device__ __forceinline__ std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
}

// ---- Device: division of the work ----

// Calls body(whole, first) for each tile [first, first + kTile) of this block; whole: std::bool_constant, whether all
// of the tile lies below count. All threads of the block come along, so that the body may synchronise them.
template <class Body>
__device__ __forceinline__ void for_each_tile(std::size_t count, const Body& body) {
  for (std::size_t first = blockIdx.x * kTile; first < count; first += gridDim.x * kTile) {
    if (count - first >= kTile) {
      body(std::true_type(), first);
    } else {
      body(std::false_type(), first);
    }
  }
}

// Beginning of this thread's vector r of a tile: threads of the whole block side by side, ...
__device__ __forceinline__ std::size_t block_place(int r) {
  return 4 * threadIdx.x + static_cast<std::size_t>(r) * kSumLanes;
}

// ... or each warp in 512 elements of its own.
__device__ __forceinline__ std::size_t warp_place(int r) {
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  return (kTile / kWarps) * warp + 4 * lane + static_cast<std::size_t>(r) * (4 * kWarp);
}

// ---- Device: sums ----

// The tree sum (kernels/tree_sum.h) of the leaves [kFirst, kFirst + kSpan) that are there, of which the first is.
// leaf(k) is leaf k; more than kMost / 2 of at most kMost leaves are there. Pairing neighbours level by level makes the
// left half of a span the largest power of two below the number of leaves, so that leaves that are missing leave holes
// only at the right end.
template <int kFirst, int kSpan, int kMost, class Leaf>
__device__ __forceinline__ auto subtree(const Leaf& leaf, int leaves) {
  if constexpr (kSpan == 1) {
    return leaf(kFirst);
  } else {
    constexpr int kRight = kFirst + kSpan / 2;
    auto left = subtree<kFirst, kSpan / 2, kMost>(leaf, leaves);
    if (kRight <= kMost / 2 || kRight < leaves) left = left + subtree<kRight, kSpan / 2, kMost>(leaf, leaves);
    return left;
  }
}

template <int kMost, bool kWhole>
__device__ __forceinline__ Floats load_sum(const SumInputs& inputs, std::size_t i, std::size_t count) {
  return subtree<0, kMost, kMost>([&](int k) { return load<kWhole>(inputs.at[k], i, count); }, inputs.count);
}

// The lane sum (kernels/lane_sum.h) of a block of threads: `mine` are the lanes 4 t .. 4 t + 3 of thread t. The result
// is thread 0's. Synchronises once; `shared` may be written again after the next time.
template <class T>
__device__ __forceinline__ T fold_block(const T (&mine)[4], T (&shared)[kSumLanes]) {
  TRIBUTARY_UNROLL
  for (int c = 0; c < 4; ++c) shared[4 * threadIdx.x + c] = mine[c];
  __syncthreads();
  if (threadIdx.x >= kWarp) return T{};
  T lanes[4];  // 4 t .. 4 t + 3 of the lower 128, into which the upper 896 have been folded
  TRIBUTARY_UNROLL
  for (int c = 0; c < 4; ++c) {
    const T* lane = shared + 4 * threadIdx.x + c;
    const T fold_512[4] = {lane[0] + lane[512], lane[128] + lane[640], lane[256] + lane[768], lane[384] + lane[896]};
    lanes[c] = (fold_512[0] + fold_512[2]) + (fold_512[1] + fold_512[3]);
  }
  TRIBUTARY_UNROLL
  for (int distance = 16; distance > 0; distance /= 2) {  // lanes 64, 32, 16, 8, 4 apart
    TRIBUTARY_UNROLL
    for (int c = 0; c < 4; ++c) lanes[c] += __shfl_down_sync(kAllLanes, lanes[c], distance);
  }
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

}  // namespace tributary::kernels::cuda
