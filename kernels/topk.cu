// Selection in a fixed number of launches, none of which needs to know what another block of the same launch does:
//
//   clear   the histograms and the groups' counts
//   upper   x = added + residual, and the histogram of the magnitudes' upper 11 bits
//   digit   twice: the histogram of the next 10 bits, of magnitudes that share the bits found so far
//   count   how many values of each block's share lie above the threshold, and how many on it
//   take    the sent values, in index order, to places given by the counts of the blocks before
//
// Each launch after `upper` finds the threshold of the earlier histograms again, in every block: a few kilobytes from
// the second-level cache cost less than a launch of their own. So values are read five times and written once; of a
// chunk of 1 MiB all but the first time from the second-level cache.
#include "kernels/device.cuh"
#include "kernels/topk.h"

namespace tributary::kernels::cuda {
namespace {

constexpr int kStepShift = 20, kMiddleShift = 10;  // a magnitude's 31 bits: 11 are the step, then twice 10
constexpr unsigned kSteps = 1u << 11, kDigits = 1u << 10;
constexpr std::uint32_t kNotFinite = 0x7f800000;  // magnitudes of infinity and of NaNs are not below it
// Bounds the counts that a block must read to know how many values lie before it.
constexpr unsigned kMaxShares = 4096;
static_assert(kTopKGroup % kTile == 0);

struct Scratch {
  std::uint32_t upper[kSteps], middle[kDigits], lower[kDigits];
  std::uint32_t above[kMaxShares], on[kMaxShares];  // by block: values above the threshold, and on it
};
static_assert(sizeof(Scratch) == kTopKScratchBytes);
constexpr std::size_t kHistogramWords = kSteps + 2 * kDigits;  // they come first

// One block's elements in `count`, `take` and `decode`: consecutive tiles, so that index order is block order.
struct Share {
  std::size_t begin, end;
};

__device__ __forceinline__ Share share_of_block(std::size_t elements) {
  const std::size_t tiles = tiles_of(elements), each = (tiles + gridDim.x - 1) / gridDim.x;
  const std::size_t begin = std::min(each * blockIdx.x, tiles), end = std::min(begin + each, tiles);
  return {begin * kTile, std::min(end * kTile, elements)};
}

// ---- The threshold ----

// Place of the wanted-th largest value: its digit, and how many more are wanted of that digit once all larger ones are
// taken.
struct Place {
  std::uint32_t digit, wanted;
};

// Finds the place for all threads of the block. Thread t reads kPart digits, from the top.
template <unsigned kSize>
__device__ __forceinline__ Place find_place(const std::uint32_t (&histogram)[kSize], std::uint32_t wanted) {
  constexpr unsigned kPart = kSize / kThreads;
  TRIBUTARY_SHARED(std::uint32_t[kWarps], sum_of_warp);
  TRIBUTARY_SHARED(Place, found);
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned top = kSize - 1 - kPart * threadIdx.x;
  std::uint32_t count[kPart], mine = 0;
  TRIBUTARY_UNROLL
  for (unsigned j = 0; j < kPart; ++j) mine += count[j] = histogram[top - j];
  std::uint32_t up_to_me = mine;
  TRIBUTARY_UNROLL
  for (unsigned distance = 1; distance < kWarp; distance *= 2) {
    const std::uint32_t other = __shfl_up_sync(kAllLanes, up_to_me, distance);
    if (lane >= distance) up_to_me += other;
  }
  if (lane == kWarp - 1) sum_of_warp[warp] = up_to_me;
  __syncthreads();
  std::uint32_t before = up_to_me - mine;
  for (unsigned w = 0; w < warp; ++w) before += sum_of_warp[w];
  if (before < wanted && wanted - before <= mine) {
    TRIBUTARY_UNROLL
    for (unsigned j = 0; j < kPart; ++j) {
      if (before < wanted && wanted - before <= count[j]) found = {top - j, wanted - before};
      before += count[j];
    }
  }
  __syncthreads();
  return found;
}

// Magnitudes are compared after `shift`: above the threshold all are sent, on it the first `wanted`.
struct Threshold {
  int shift;
  std::uint32_t value, wanted;
};

// kDigitsKnown: 1 (the step), 2 or 3.
template <int kDigitsKnown>
__device__ __forceinline__ Threshold find_threshold(const Scratch* scratch, std::uint32_t k) {
  const Place step = find_place(scratch->upper, k);
  if constexpr (kDigitsKnown == 1) return {kStepShift, step.digit, step.wanted};
  const Place middle = find_place(scratch->middle, step.wanted);
  const std::uint32_t upper_bits = step.digit << 10 | middle.digit;
  if constexpr (kDigitsKnown == 2) return {kMiddleShift, upper_bits, middle.wanted};
  const Place lower = find_place(scratch->lower, middle.wanted);
  return {0, upper_bits << 10 | lower.digit, lower.wanted};
}

// ---- Histograms ----

__global__ void __launch_bounds__(kThreads) clear(Scratch* scratch, std::uint32_t* counts, std::size_t groups) {
  std::uint32_t* histograms = scratch->upper;
  const std::size_t step = gridDim.x * kThreads, begin = blockIdx.x * kThreads + threadIdx.x;
  for (std::size_t i = begin; i < kHistogramWords; i += step) histograms[i] = 0;
  for (std::size_t i = begin; i < groups; i += step) counts[i] = 0;
}

// A block's own histogram. Two copies, for even and odd lanes: gradients crowd in a few steps, and lanes that add to
// one word wait for each other.
template <unsigned kSize>
struct BlockHistogram {
  std::uint32_t copies[kSize][2];

  __device__ __forceinline__ void clear() {
    for (unsigned i = threadIdx.x; i < kSize; i += kThreads) copies[i][0] = copies[i][1] = 0;
    __syncthreads();
  }
  __device__ __forceinline__ void add(std::uint32_t digit) { atomicAdd(&copies[digit][threadIdx.x % 2], 1u); }
  __device__ __forceinline__ void flush(std::uint32_t (&total)[kSize]) {
    __syncthreads();
    for (unsigned i = threadIdx.x; i < kSize; i += kThreads) {
      const std::uint32_t sum = copies[i][0] + copies[i][1];
      if (sum != 0) atomicAdd(&total[i], sum);
    }
  }
};

// kMost = 0: nothing is added.
template <int kMost>
__global__ void __launch_bounds__(kThreads)
    upper(const SumInputs added, const Residual residual, std::size_t elements, Scratch* scratch) {
  TRIBUTARY_SHARED(BlockHistogram<kSteps>, histogram);
  histogram.clear();
  for_each_tile(elements, [&](auto whole, std::size_t first) {
    Floats x[kVectors];
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      const std::size_t i = first + block_place(r);
      x[r] = load<whole>(residual.before, i, elements);
      if constexpr (kMost > 0) x[r] = load_sum<kMost, whole>(added, i, elements) + x[r];
    }
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      const std::size_t i = first + block_place(r);
      if constexpr (kMost > 0) store<whole>(residual.after, i, elements, x[r]);
      TRIBUTARY_UNROLL
      for (int c = 0; c < 4; ++c) {
        if (whole || i + c < elements) histogram.add(magnitude_bits(x[r].v[c]) >> kStepShift);
      }
    }
  });
  histogram.flush(scratch->upper);
}

// The digit that follows the kDigitsKnown upper ones: 1 or 2.
template <int kDigitsKnown>
__global__ void __launch_bounds__(kThreads)
    digit(const float* residual, std::size_t elements, std::uint32_t k, Scratch* scratch) {
  TRIBUTARY_SHARED(BlockHistogram<kDigits>, histogram);
  const Threshold known = find_threshold<kDigitsKnown>(scratch, k);
  histogram.clear();
  for_each_tile(elements, [&](auto whole, std::size_t first) {
    Floats x[kVectors];
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) x[r] = load<whole>(residual, first + block_place(r), elements);
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      TRIBUTARY_UNROLL
      for (int c = 0; c < 4; ++c) {
        const std::uint32_t magnitude = magnitude_bits(x[r].v[c]);
        const bool there = whole || first + block_place(r) + c < elements;
        if (there && magnitude >> known.shift == known.value) {
          histogram.add((magnitude >> (known.shift - 10)) % kDigits);
        }
      }
    }
  });
  histogram.flush(kDigitsKnown == 1 ? scratch->middle : scratch->lower);
}

// ---- Counting and taking ----

// How many values are above the threshold (low half) and on it (high half): of at most a tile.
using Pair = std::uint32_t;
constexpr Pair kOneAbove = 1u, kOneOn = 1u << 16;
static_assert(kTile < 1u << 16);

__device__ __forceinline__ Pair classify(float value, const Threshold& threshold, bool there) {
  const std::uint32_t key = magnitude_bits(value) >> threshold.shift;
  if (!there || key < threshold.value) return 0;
  return key > threshold.value ? kOneAbove : kOneOn;
}

__global__ void __launch_bounds__(kThreads)
    count(const float* residual, std::size_t elements, std::uint32_t k, Scratch* scratch) {
  TRIBUTARY_SHARED(std::uint32_t[2], total);
  const Threshold threshold = find_threshold<3>(scratch, k);
  if (threadIdx.x < 2) total[threadIdx.x] = 0;
  __syncthreads();
  const Share share = share_of_block(elements);
  std::uint32_t above = 0, on = 0;
  for (std::size_t first = share.begin; first < share.end; first += kTile) {
    Floats x[kVectors];
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) x[r] = load<false>(residual, first + block_place(r), elements);
    Pair pair = 0;
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      TRIBUTARY_UNROLL
      for (int c = 0; c < 4; ++c) pair += classify(x[r].v[c], threshold, first + block_place(r) + c < elements);
    }
    above += pair % kOneOn;
    on += pair / kOneOn;
  }
  above = __reduce_add_sync(kAllLanes, above);
  on = __reduce_add_sync(kAllLanes, on);
  if (threadIdx.x % kWarp == 0) {
    atomicAdd(&total[0], above);
    atomicAdd(&total[1], on);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    scratch->above[blockIdx.x] = total[0];
    scratch->on[blockIdx.x] = total[1];
  }
}

// Counts of the values before a place, in index order; and how many of them are sent.
struct Before {
  std::uint32_t above, on;

  __device__ __forceinline__ std::uint32_t sent(std::uint32_t wanted) const { return above + std::min(on, wanted); }
};

// The sums over the blocks before this one; all threads get them.
__device__ __forceinline__ Before before_block(const Scratch* scratch) {
  TRIBUTARY_SHARED(std::uint32_t[2], total);
  if (threadIdx.x < 2) total[threadIdx.x] = 0;
  __syncthreads();
  std::uint32_t above = 0, on = 0;
  for (unsigned block = threadIdx.x; block < blockIdx.x; block += kThreads) {
    above += scratch->above[block];
    on += scratch->on[block];
  }
  if (above != 0) atomicAdd(&total[0], above);
  if (on != 0) atomicAdd(&total[1], on);
  __syncthreads();
  return {total[0], total[1]};
}

__global__ void __launch_bounds__(kThreads)
    take(float* residual, std::size_t elements, std::uint32_t k, const Scratch* scratch, std::uint32_t* counts,
         float* values, std::uint16_t* offsets) {
  // One for even tiles and one for odd ones: a warp may be one tile ahead of another that still reads.
  TRIBUTARY_SHARED(Pair[2][kWarps], pair_of_warp);
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Threshold threshold = find_threshold<3>(scratch, k);
  const Share share = share_of_block(elements);
  Before before_tile = before_block(scratch);
  for (std::size_t first = share.begin; first < share.end; first += kTile) {
    Floats x[kVectors];
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) x[r] = load<false>(residual, first + warp_place(r), elements);
    // Pairs before each of this thread's vectors, within the warp's part of the tile.
    Pair before_vector[kVectors], of_warp = 0;
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      Pair mine = 0;
      TRIBUTARY_UNROLL
      for (int c = 0; c < 4; ++c) mine += classify(x[r].v[c], threshold, first + warp_place(r) + c < elements);
      Pair up_to_me = mine;
      TRIBUTARY_UNROLL
      for (unsigned distance = 1; distance < kWarp; distance *= 2) {
        const Pair other = __shfl_up_sync(kAllLanes, up_to_me, distance);
        if (lane >= distance) up_to_me += other;
      }
      before_vector[r] = of_warp + up_to_me - mine;
      of_warp += __shfl_sync(kAllLanes, up_to_me, kWarp - 1);
    }
    auto& pairs = pair_of_warp[first / kTile % 2];
    if (lane == 0) pairs[warp] = of_warp;
    __syncthreads();
    Pair before_warp = 0, of_tile = 0;
    TRIBUTARY_UNROLL
    for (unsigned w = 0; w < kWarps; ++w) {
      if (w == warp) before_warp = of_tile;
      of_tile += pairs[w];
    }
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      Pair before = before_warp + before_vector[r];
      TRIBUTARY_UNROLL
      for (int c = 0; c < 4; ++c) {
        const std::size_t i = first + warp_place(r) + c;
        const Pair kind = classify(x[r].v[c], threshold, i < elements);
        const Before here = {before_tile.above + before % kOneOn, before_tile.on + before / kOneOn};
        if (kind == kOneAbove || (kind == kOneOn && here.on < threshold.wanted)) {
          const std::uint32_t place = here.sent(threshold.wanted);
          values[place] = x[r].v[c];
          offsets[place] = static_cast<std::uint16_t>(i % kTopKGroup);
          residual[i] = 0.0f;
        } else if (i < elements && magnitude_bits(x[r].v[c]) >= kNotFinite) {
          residual[i] = 0.0f;
        }
        before += kind;
      }
    }
    const Before next = {before_tile.above + of_tile % kOneOn, before_tile.on + of_tile / kOneOn};
    const std::uint32_t sent = next.sent(threshold.wanted) - before_tile.sent(threshold.wanted);
    if (threadIdx.x == 0 && sent != 0) atomicAdd(&counts[first / kTopKGroup], sent);
    before_tile = next;
  }
}

// ---- Decoding ----

// Returns the end of a group that begins at entry `begin`, within the frame's k whatever `count` is.
__device__ __forceinline__ std::uint32_t group_end_of(std::uint32_t begin, std::uint32_t count, std::uint32_t k) {
  return begin + std::min(count, k - begin);
}

// A tile is put together in shared memory, so that it is written once and in whole lines.
__global__ void __launch_bounds__(kThreads)
    decode(const std::uint32_t* counts, const float* values, const std::uint16_t* offsets, std::uint32_t k,
           std::size_t elements, float* out) {
  TRIBUTARY_SHARED(Floats[kTile / 4], tile);
  TRIBUTARY_SHARED(std::uint32_t, entries_before);
  TRIBUTARY_SHARED(std::uint32_t, in_group_before);
  const Share share = share_of_block(elements);
  if (share.begin >= share.end) return;
  // Entries of the groups before the first tile's, and those of its own group that lie before the tile.
  std::size_t group = share.begin / kTopKGroup;
  if (threadIdx.x == 0) entries_before = in_group_before = 0;
  __syncthreads();
  std::uint32_t mine = 0;
  for (std::size_t g = threadIdx.x; g < group; g += kThreads) mine += counts[g];
  if (mine != 0) atomicAdd(&entries_before, mine);
  __syncthreads();
  std::uint32_t entry = std::min<std::uint32_t>(entries_before, k), group_end = group_end_of(entry, counts[group], k);
  mine = 0;
  for (std::uint32_t e = entry + threadIdx.x; e < group_end; e += kThreads) {
    mine += offsets[e] < share.begin % kTopKGroup ? 1 : 0;
  }
  if (mine != 0) atomicAdd(&in_group_before, mine);
  __syncthreads();
  entry += in_group_before;
  for (std::size_t first = share.begin; first < share.end; first += kTile) {
    if (first / kTopKGroup != group) {
      group = first / kTopKGroup;
      entry = group_end;
      group_end = group_end_of(entry, counts[group], k);
    }
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) tile[block_place(r) / 4] = Floats{};
    __syncthreads();
    const std::size_t begin = first % kTopKGroup, end = begin + kTile;
    unsigned found = kThreads;
    while (found == kThreads) {  // entries ascend: the first one that is not in the tile ends it
      const std::uint32_t e = entry + threadIdx.x;
      const std::size_t offset = e < group_end ? offsets[e] : end;
      const bool here = offset >= begin && offset < end;
      if (here) tile[(offset - begin) / 4].v[(offset - begin) % 4] = values[e];
      found = static_cast<unsigned>(__syncthreads_count(here));
      entry += found;
    }
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      store<false>(out, first + block_place(r), elements, tile[block_place(r) / 4]);
    }
    // No barrier: a thread clears and stores its own places; others write there only behind the next tile's barrier.
  }
}

}  // namespace

void topk_select(const SumInputs& added, Residual residual, std::size_t elements, std::size_t k, std::uint32_t* counts,
                 float* values, std::uint16_t* offsets, void* scratch_bytes, Stream stream) {
  Scratch* scratch = static_cast<Scratch*>(scratch_bytes);
  const unsigned blocks = blocks_for(elements, kMaxShares);
  const std::uint32_t wanted = static_cast<std::uint32_t>(k);
  launch(stream, static_cast<unsigned>(kHistogramWords / kThreads), clear, scratch, counts, topk_groups(elements));
  if (added.count == 0) {
    launch(stream, blocks, upper<0>, added, residual, elements, scratch);
  } else {
    with_most_inputs(added,
                     [&](auto most) { launch(stream, blocks, upper<most>, added, residual, elements, scratch); });
  }
  launch(stream, blocks, digit<1>, residual.after, elements, wanted, scratch);
  launch(stream, blocks, digit<2>, residual.after, elements, wanted, scratch);
  // As many blocks for both, because they meet in the scratch.
  launch(stream, blocks, count, residual.after, elements, wanted, scratch);
  launch(stream, blocks, take, residual.after, elements, wanted, scratch, counts, values, offsets);
}

void topk_decode(const std::uint32_t* counts, const float* values, const std::uint16_t* offsets, std::size_t k,
                 std::size_t elements, float* out, Stream stream) {
  launch(stream, blocks_for(elements, kMaxShares), decode, counts, values, offsets, static_cast<std::uint32_t>(k),
         elements, out);
}

}  // namespace tributary::kernels::cuda
