// The stream that the kernels' CUDA twins are launched on: cudaStream_t by its own name, so that a file that includes
// the kernels' headers needs no CUDA header.
//
// Rules of everything in tributary::kernels::cuda:
//
//   * Pointers are device pointers (only tree_sum's list of them lies on the host). Calls launch and return at once;
//     the arrays belong to the kernel until the stream has passed it. Arguments by value and the contents of a
//     std::span may go as soon as the call returns.
//   * Arrays of floats, halves, int8 values and signs start at multiples of 16 bytes (chunks start at multiples of 64
//     KiB of their array, tensors at multiples of 16 elements, and the parts of a frame at multiples of 16 bytes);
//     scales, counts, and the values and offsets of top-k at multiples of their type. Counts are free: the last one to
//     three values are handled one by one. Nothing is done for a count of 0, except that facts are set to 0.
//   * A launch that fails is found by the caller with cudaGetLastError().
//   * The same bits as the CPU kernel of the same name, except the sign and payload of NaNs that arithmetic made: a GPU
//     makes one pattern, x86 keeps that of an operand. Casts move a NaN's bits as they are, and top-k chooses by them.
//   * The current device must be the stream's. Instances may run at once on streams of several devices.
#pragma once

struct CUstream_st;

namespace tributary::kernels::cuda {

using Stream = ::CUstream_st*;

// Error feedback adds `before` to the values and writes the rest to `after`: the same array, or another of which
// nothing is read. Null: there is none.
struct Residual {
  const float* before = nullptr;
  float* after = nullptr;

  Residual(float* in_place) : before(in_place), after(in_place) {}  // NOLINT(google-explicit-constructor): most are
  Residual(const float* old_values, float* new_values) : before(old_values), after(new_values) {}
};

}  // namespace tributary::kernels::cuda
