// Encodings of values on the wire, behind one interface. Rounding is to nearest even, the same bits on every
// instruction set.
//
//   name      push  pull  wire bytes for n values (one chunk)
//   fp32       x     x    4 n
//   bf16       x     x    2 n
//   fp16       x     x    2 n
//   int8       x          4 ceil(n / 256), up to a multiple of 16, + n            scales, then values
//   topk:R     x          4 ceil(n / 65536) + 6 k, k = max(1, ceil(R n))           counts, values, offsets
//   onebit     x          4 ceil(n / 4096), up to a multiple of 16, + ceil(n / 8)  scales, then signs
//   int8-delta       x    as int8: the change of the parameters since the last answer
//
// int8, topk and onebit keep a residual on the sender: the part of the values that was not sent is added to the next
// round's values (kernels/int8.h, topk.h, onebit.h). int8-delta keeps an estimate on the sender, equal to that of all
// receivers: both add the same quantised change to it, so the next answer carries the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/base/ids.h"

namespace tributary {

// Stateless and shared; any thread.
class Encoding {
 public:
  virtual ~Encoding() = default;
  virtual EncodingSpec spec() const = 0;
  EncodingId id() const { return spec().id; }
  virtual std::string name() const = 0;  // as in a job file
  // Wire bytes of a chunk of `elements` values.
  virtual std::size_t bytes(std::size_t elements) const = 0;
  // encode() and encode_update() take parts that begin at multiples of this (and end there, or at the chunk's end).
  virtual std::size_t granularity() const { return 1; }

  // Factor of a node's sum of `weight` samples in a push; its receiver divides by it again. A power of two, so that
  // neither costs a bit. Not 1 where the range is too short for sums: fp16 carries the mean, to within a factor of two
  // (2^-k times the sum, for the least k with 2^k >= weight), so that overflow does not depend on the batch.
  virtual float push_scale(std::uint64_t /*weight*/) const { return 1.0f; }

  // ---- Its author ----
  virtual bool keeps_residual() const { return false; }
  // Encodes values[0 .. count), which are the values [first, first+count) of a chunk of `elements`, into the chunk's
  // frame. residual: the whole chunk's, read and replaced; null unless keeps_residual(). Frames need no alignment for
  // fp32, bf16 and fp16, and 4 bytes for the others.
  virtual void encode(const float* values, std::size_t elements, std::size_t first, std::size_t count, float* residual,
                      std::byte* frame) const = 0;
  // Completes the frame after the last encode() of a chunk, with all of it (top-k's choice). scratch: scratch_words().
  virtual void finish(std::size_t /*elements*/, float* /*residual*/, std::byte* /*frame*/,
                      std::span<std::uint32_t> /*scratch*/) const {}
  virtual std::size_t scratch_words(std::size_t /*elements*/) const { return 0; }

  // ---- Its receiver ----
  // Returns whether a frame of the right length can be decoded.
  virtual bool valid(const std::byte* /*frame*/, std::size_t /*elements*/) const { return true; }
  // Decodes values [first, first+count) of a frame into out[0 .. count); first is a multiple of 8.
  virtual void decode(const std::byte* frame, std::size_t elements, std::size_t first, std::size_t count,
                      float* out) const = 0;
  // The frame's values as fp32 in place, if the encoding is fp32 and the frame is aligned for float; else null.
  virtual const float* as_fp32(const std::byte* /*frame*/) const { return nullptr; }

  // ---- Parameters (pull) ----
  // Whether frames are changes of an estimate that both sides hold, and not the values themselves.
  virtual bool is_delta() const { return false; }
  // Encodes parameters. is_delta(): the frame has the change of estimate[0 .. count) towards values, and the estimate
  // is changed accordingly; otherwise estimate is not used.
  virtual void encode_update(const float* values, std::size_t elements, std::size_t first, std::size_t count,
                             float* /*estimate*/, std::byte* frame) const {
    encode(values, elements, first, count, nullptr, frame);
  }
  // Applies a frame to the receiver's whole chunk of parameters.
  virtual void apply(const std::byte* frame, std::size_t elements, float* parameters) const {
    decode(frame, elements, 0, elements, parameters);
  }
};

// Values [first, first+count) of the sum that a push of `weight` samples carries.
void decode_push(const Encoding& encoding, const std::byte* frame, std::uint64_t weight, std::size_t elements,
                 std::size_t first, std::size_t count, float* out);

// Never fails for a valid spec. Instances without parameters are shared.
std::shared_ptr<const Encoding> make_encoding(EncodingSpec spec);
// REQUIRES: id takes no parameters.
const Encoding& encoding_for(EncodingId id);

// "fp32", "bf16", "fp16", "int8", "topk:0.01", "onebit", "int8-delta".
std::optional<EncodingSpec> parse_encoding(std::string_view name);
bool usable_for_push(EncodingSpec spec);
bool usable_for_pull(EncodingSpec spec);
// In words, for messages: "fp32, bf16, ..."; of a job's key "push" or "pull".
std::string push_encodings();
std::string pull_encodings();
inline std::string encodings_for(std::string_view key) {
  return key == "pull" ? pull_encodings() : push_encodings();
}
// Name of an encoding without its parameters.
std::string_view encoding_name(EncodingId id);
std::uint16_t last_encoding();  // the id that was added last

}  // namespace tributary
