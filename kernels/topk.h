// Top-k selection with error feedback: of an array only the k values of largest magnitude are sent, the others stay in
// the residual for later rounds (Stich et al. 2018).
//
// Order of magnitude: the value's bits without the sign, as an integer (so NaN > infinity > finite); among equals the
// lower index comes first. The first k in that order are taken: the same set on CPUs and GPUs.
//
// A sent value travels as it is, so residual + sent == input bit by bit, but that values which are not finite are not
// kept.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/tree_sum.h"

namespace tributary::kernels {

inline constexpr std::size_t kTopKGroup = 65536;  // elements that a 16-bit offset reaches

constexpr std::size_t topk_groups(std::size_t elements) {
  return (elements + kTopKGroup - 1) / kTopKGroup;
}

// residual: in x, out x with +0 in place of the sent values. 1 <= k <= elements < 2^32. counts[g]: how many of the k
// lie in group g; values[i], offsets[i]: the sent ones in index order, offset within their group. scratch: elements
// keys may be needed, the caller lends `elements` words so that nothing is allocated. The residual may change under the
// passes (kernels/topk_passes.h): then fewer than k may be sent, and never more.
void topk_select(float* residual, std::size_t elements, std::size_t k, std::uint32_t* counts, float* values,
                 std::uint16_t* offsets, std::uint32_t* scratch);

// Whether counts and offsets of a received frame describe k ascending places within `elements`. Reads topk_groups()
// counts and at most k offsets, whatever their values. Any address.
bool topk_valid(const std::byte* counts, const std::byte* offsets, std::size_t elements, std::size_t k);

// Values [first, first+count) of the array as dense values, +0 where nothing was sent. Any address. A frame that is not
// topk_valid(), or changes while it is read, gives arbitrary values: in any case only the counts up to the last group,
// k values and k offsets are read, and only out[0 .. count) is written.
// REQUIRES: first + count <= elements.
void topk_decode(const std::byte* counts, const std::byte* values, const std::byte* offsets, std::size_t k,
                 std::size_t first, std::size_t count, float* out);

namespace cuda {  // rules: kernels/cuda_stream.h

// Bytes of device memory, at a multiple of 16, that topk_select() wants until the stream has passed it; the same for
// every array.
inline constexpr std::size_t kTopKScratchBytes = 49152;

// As above, after residual[i] = added[i] + residual[i]; added may have no inputs: the residual is taken as it is, in
// place.
void topk_select(const SumInputs& added, Residual residual, std::size_t elements, std::size_t k, std::uint32_t* counts,
                 float* values, std::uint16_t* offsets, void* scratch, Stream stream);
// Decodes a whole array. As on the CPU, it keeps within the frame and `out`, whatever the frame contains.
void topk_decode(const std::uint32_t* counts, const float* values, const std::uint16_t* offsets, std::size_t k,
                 std::size_t elements, float* out, Stream stream);

}  // namespace cuda

}  // namespace tributary::kernels
