// Selection finds the k-th largest key by its digits, from the top. A histogram of the upper 11 bits of all keys yields
// the step that it lies in; two histograms of 10 bits each, over the few keys of that step, yield the rest. Then one
// pass in index order takes all keys above the threshold, and as many equal ones as are still wanted.
#include "kernels/topk.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/bit_pack.h"
#include "kernels/dispatch.h"
#include "kernels/read_once.h"
#include "kernels/topk_passes.h"

namespace tributary::kernels {
namespace {

using topk_passes::Place;
using topk_passes::Threshold;

constexpr int kStepShift = 20;  // a key's 31 bits: 11 are the step, then twice 10
constexpr int kMiddleShift = 10;
constexpr std::uint32_t kSteps = 1u << 11;
constexpr std::uint32_t kDigits = 1u << 10;
constexpr std::int32_t kNotFinite = 0x7f800000;  // keys of infinity and of NaNs are not below it

TRIBUTARY_INLINE std::int32_t key_of(float value) {
  return std::bit_cast<std::int32_t>(value) & 0x7fffffff;
}

// The lowest digit of a histogram with fewer than k keys (the residual has changed meanwhile).
Place find_place(const std::uint32_t* histogram, std::uint32_t digits, std::size_t k) {
  std::uint32_t digit = digits - 1;
  while (digit > 0 && histogram[digit] < k) k -= histogram[digit--];
  return {digit, k};
}

// Four histograms in turns, because gradients crowd in a few steps, and adding to the same one again and again waits
// for the store before.
Place step_of(const float* x, std::size_t elements, std::size_t k) {
  std::uint32_t histograms[4][kSteps] = {};
  std::size_t i = 0;
  for (; i + 4 <= elements; i += 4) {
    for (std::size_t j = 0; j < 4; ++j) ++histograms[j][key_of(x[i + j]) >> kStepShift];
  }
  for (; i < elements; ++i) ++histograms[0][key_of(x[i]) >> kStepShift];
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    histograms[0][step] += histograms[1][step] + histograms[2][step] + histograms[3][step];
  }
  return find_place(histograms[0], kSteps, k);
}

Place find_digit(const std::uint32_t* keys, std::size_t count, int shift, std::size_t k) {
  std::uint32_t histogram[kDigits] = {};
  for (std::size_t i = 0; i < count; ++i) ++histogram[(keys[i] >> shift) % kDigits];
  return find_place(histogram, kDigits, k);
}

constexpr std::size_t kPart = 256;  // elements compared at a time
using PartMask = std::array<std::uint64_t, kPart / 64>;

// Bit i: whether low <= key of x[i] <= high.
TRIBUTARY_INLINE void compare_part(const float* x, std::size_t count, std::int32_t low, std::int32_t high,
                                   PartMask& mask) {
  alignas(64) std::uint8_t flags[kPart];
  if (count < kPart) std::memset(flags, 0, sizeof(flags));
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t key = key_of(x[i]);
    flags[i] = static_cast<std::uint8_t>((key >= low) & (key <= high));
  }
  std::uint8_t bytes[kPart / 8];
  for (std::size_t byte = 0; byte < sizeof(bytes); ++byte) bytes[byte] = pack_flags(flags + 8 * byte);
  std::memcpy(mask.data(), bytes, sizeof(bytes));
}

// Calls take(i) for each i whose key lies in [low, high], in order.
template <class Take>
TRIBUTARY_INLINE void for_each_between(const float* x, std::size_t elements, std::int32_t low, std::int32_t high,
                                       Take take) {
  for (std::size_t first = 0; first < elements; first += kPart) {
    PartMask mask;
    compare_part(x + first, std::min(kPart, elements - first), low, high, mask);
    for (std::size_t word = 0; word < mask.size(); ++word) {
      for (std::uint64_t left = mask[word]; left != 0; left &= left - 1) {
        take(first + 64 * word + static_cast<std::size_t>(std::countr_zero(left)));
      }
    }
  }
}

TRIBUTARY_MULTIVERSION
std::size_t collect_keys(const float* x, std::size_t elements, std::int32_t low, std::int32_t high,
                         std::uint32_t* keys) {
  std::size_t count = 0;
  for_each_between(x, elements, low, high,
                   [&](std::size_t i) { keys[count++] = static_cast<std::uint32_t>(key_of(x[i])); });
  return count;
}

// Takes every key above the threshold and the first `wanted` of those on it, k at most. (The values that are read here
// are sent, even if they have changed since they were compared.)
TRIBUTARY_MULTIVERSION
std::size_t take_above(float* residual, std::size_t elements, std::size_t k, std::int32_t threshold, std::size_t wanted,
                       std::uint32_t* counts, float* values, std::uint16_t* offsets) {
  std::fill_n(counts, topk_groups(elements), 0u);
  std::size_t taken = 0;
  for_each_between(residual, elements, threshold, 0x7fffffff, [&](std::size_t i) {
    const auto bits = read_once<std::uint32_t>(residual + i);
    if (taken == k) return;
    if (static_cast<std::int32_t>(bits & 0x7fffffffu) == threshold) {
      if (wanted == 0) return;
      --wanted;
    }
    ++counts[i / kTopKGroup];
    values[taken] = std::bit_cast<float>(bits);
    offsets[taken] = static_cast<std::uint16_t>(i % kTopKGroup);
    ++taken;
    residual[i] = 0.0f;
  });
  return taken;
}

std::size_t count_at(const std::byte* counts, std::size_t group) {
  return read_once<std::uint32_t>(counts + group * sizeof(std::uint32_t));
}

std::size_t offset_at(const std::byte* offsets, std::size_t i) {
  return read_once<std::uint16_t>(offsets + i * sizeof(std::uint16_t));
}

// The first of the entries [begin, end) whose offset is not below `offset`.
std::size_t lower_bound(const std::byte* offsets, std::size_t begin, std::size_t end, std::size_t offset) {
  while (begin < end) {
    const std::size_t middle = begin + (end - begin) / 2;
    if (offset_at(offsets, middle) < offset) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

}  // namespace

namespace topk_passes {

Place find_step(const float* residual, std::size_t elements, std::size_t k) {
  return step_of(residual, elements, k);
}

Threshold find_threshold(const float* residual, std::size_t elements, Place step, std::uint32_t* scratch) {
  const std::uint32_t first = step.digit << kStepShift;
  const std::uint32_t last = first | ((1u << kStepShift) - 1);
  std::size_t candidates =
      collect_keys(residual, elements, static_cast<std::int32_t>(first), static_cast<std::int32_t>(last), scratch);
  const Place middle = find_digit(scratch, candidates, kMiddleShift, step.wanted);
  const auto other = [&](std::uint32_t key) { return (key >> kMiddleShift) % kDigits != middle.digit; };
  candidates = static_cast<std::size_t>(std::remove_if(scratch, scratch + candidates, other) - scratch);
  const Place low = find_digit(scratch, candidates, 0, middle.wanted);
  return {static_cast<std::int32_t>(first | (middle.digit << kMiddleShift) | low.digit), low.wanted};
}

std::size_t take(float* residual, std::size_t elements, std::size_t k, Threshold threshold, std::uint32_t* counts,
                 float* values, std::uint16_t* offsets) {
  const std::size_t taken = take_above(residual, elements, k, threshold.key, threshold.wanted, counts, values, offsets);
  if (threshold.key < kNotFinite) return taken;
  for (std::size_t i = 0; i < elements; ++i) {
    if (key_of(residual[i]) >= kNotFinite) residual[i] = 0.0f;
  }
  return taken;
}

}  // namespace topk_passes

void topk_select(float* residual, std::size_t elements, std::size_t k, std::uint32_t* counts, float* values,
                 std::uint16_t* offsets, std::uint32_t* scratch) {
  const Place step = topk_passes::find_step(residual, elements, k);
  const Threshold threshold = topk_passes::find_threshold(residual, elements, step, scratch);
  topk_passes::take(residual, elements, k, threshold, counts, values, offsets);
}

bool topk_valid(const std::byte* counts, const std::byte* offsets, std::size_t elements, std::size_t k) {
  std::size_t done = 0;
  for (std::size_t group = 0; group < topk_groups(elements); ++group) {
    const std::size_t size = std::min(kTopKGroup, elements - group * kTopKGroup);
    const std::size_t count = count_at(counts, group);
    if (count > k - done) return false;
    std::size_t next = 0;  // the lowest offset that may come now
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t offset = offset_at(offsets, done + i);
      if (offset < next || offset >= size) return false;
      next = offset + 1;
    }
    done += count;
  }
  return done == k;
}

void topk_decode(const std::byte* counts, const std::byte* values, const std::byte* offsets, std::size_t k,
                 std::size_t first, std::size_t count, float* out) {
  std::memset(out, 0, count * sizeof(float));
  const std::size_t end = first + count;
  std::size_t begin_entry = 0;  // of the group; never above k
  for (std::size_t group = 0; group * kTopKGroup < end; ++group) {
    const std::size_t base = group * kTopKGroup;
    const std::size_t end_entry = begin_entry + std::min(count_at(counts, group), k - begin_entry);
    if (base + kTopKGroup > first) {
      std::size_t i = first > base ? lower_bound(offsets, begin_entry, end_entry, first - base) : begin_entry;
      for (; i < end_entry; ++i) {
        const std::size_t place = base + offset_at(offsets, i) - first;  // huge if it lies before `first`
        if (place >= count) return;
        std::memcpy(out + place, values + i * sizeof(float), sizeof(float));
      }
    }
    begin_entry = end_entry;
  }
}

}  // namespace tributary::kernels
