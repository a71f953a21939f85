// One pass: every input is read once, whatever their number, and the tree is walked in registers.
#include "kernels/device.cuh"
#include "kernels/tree_sum.h"

namespace tributary::kernels::cuda {
namespace {

// Pointers travel with the launch, in the kernel's constant bank: no copy of a table has to come first.
template <int kCapacity>
struct ManyInputs {
  const float* at[kCapacity];
  int count;
};

constexpr int kSmallTable = 64;
constexpr int kLargeTable = static_cast<int>(kMaxSumInputs);

template <int kMost>
__global__ void __launch_bounds__(kThreads) sum_few(const SumInputs inputs, std::size_t count, float* out) {
  for_each_tile(count, [&](auto whole, std::size_t first) {
    Floats sums[kVectors];
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) sums[r] = load_sum<kMost, whole>(inputs, first + block_place(r), count);
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) store<whole>(out, first + block_place(r), count, sums[r]);
  });
}

// Subtrees of eight leaves, added up as a binary counter counts: level l holds the sum of 2^l of them while bit l of
// their number is set. The remaining subtrees are folded from the right, which is where the tree has its odd ones.
template <bool kWhole, int kCapacity>
__device__ __forceinline__ Floats load_sum_of_many(const ManyInputs<kCapacity>& inputs, std::size_t i,
                                                   std::size_t count) {
  constexpr int kLevels = std::bit_width(static_cast<unsigned>(kCapacity / kMaxFusedInputs));
  Floats level[kLevels];
  const int groups = inputs.count / kMaxFusedInputs, rest = inputs.count % kMaxFusedInputs;
  const auto leaf_from = [&](int first) {
    return [&inputs, first, i, count](int k) { return load<kWhole>(inputs.at[first + k], i, count); };
  };
  for (int group = 0; group < groups; ++group) {
    Floats carry = subtree<0, kMaxFusedInputs, kMaxFusedInputs>(leaf_from(kMaxFusedInputs * group), kMaxFusedInputs);
    bool carrying = true;
    TRIBUTARY_UNROLL
    for (int l = 0; l < kLevels; ++l) {
      if (!carrying) continue;
      if ((group >> l) % 2 != 0) {
        carry = level[l] + carry;
      } else {
        level[l] = carry;
        carrying = false;
      }
    }
  }
  bool any = rest > 0;
  Floats right = {};
  // kMost = 0: no leaf but the first is sure to be there.
  if (any) right = subtree<0, kMaxFusedInputs, 0>(leaf_from(kMaxFusedInputs * groups), rest);
  TRIBUTARY_UNROLL
  for (int l = 0; l < kLevels; ++l) {
    if ((groups >> l) % 2 == 0) continue;
    right = any ? level[l] + right : level[l];
    any = true;
  }
  return right;
}

template <int kCapacity>
__global__ void __launch_bounds__(kThreads)
    sum_many(const __grid_constant__ ManyInputs<kCapacity> inputs, std::size_t count, float* out) {
  for_each_tile(count, [&](auto whole, std::size_t first) {
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      const std::size_t i = first + block_place(r);
      store<whole>(out, i, count, load_sum_of_many<whole>(inputs, i, count));
    }
  });
}

template <int kCapacity>
void launch_many(std::span<const float* const> inputs, std::size_t count, float* out, Stream stream) {
  ManyInputs<kCapacity> many;
  std::copy(inputs.begin(), inputs.end(), many.at);
  std::fill(many.at + inputs.size(), many.at + kCapacity, nullptr);
  many.count = static_cast<int>(inputs.size());
  launch(stream, blocks_for(count), sum_many<kCapacity>, many, count, out);
}

__global__ void __launch_bounds__(kThreads) multiply(float* values, std::size_t count, float factor) {
  for_each_tile(count, [&](auto whole, std::size_t first) {
    Floats vectors[kVectors];
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) vectors[r] = load<whole>(values, first + block_place(r), count);
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      TRIBUTARY_UNROLL
      for (float& value : vectors[r].v) value *= factor;
      store<whole>(values, first + block_place(r), count, vectors[r]);
    }
  });
}

}  // namespace

void tree_sum(std::span<const float* const> inputs, std::size_t count, float* out, Stream stream) {
  if (inputs.size() == 1 && inputs[0] == out) return;
  if (inputs.size() <= kMaxFusedInputs) {
    const SumInputs few(inputs);
    return with_most_inputs(few, [&](auto most) { launch(stream, blocks_for(count), sum_few<most>, few, count, out); });
  }
  if (inputs.size() <= kSmallTable) return launch_many<kSmallTable>(inputs, count, out, stream);
  launch_many<kLargeTable>(inputs, count, out, stream);
}

void scale(float* values, std::size_t count, float factor, Stream stream) {
  launch(stream, blocks_for(count), multiply, values, count, factor);
}

}  // namespace tributary::kernels::cuda
