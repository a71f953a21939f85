// How values travel on the wire, behind one interface. Instances are stateless and shared; encoding_for() never fails
// for a valid id. Rounding is to nearest even, the same bits on every instruction set.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "common/ids.h"

namespace tributary {

class Encoding {
 public:
  virtual ~Encoding() = default;
  virtual EncodingId id() const = 0;
  virtual std::string_view name() const = 0;
  // Wire bytes of a chunk of `elements` values.
  virtual std::size_t bytes(std::size_t elements) const = 0;
  // Encodes values[0 .. count), which are the values [first, first+count) of a chunk of `elements`, into the chunk's
  // frame. Frames need no alignment.
  virtual void encode(const float* values, std::size_t elements, std::size_t first, std::size_t count,
                      std::byte* frame) const = 0;
  // Decodes values [first, first+count) of a frame into out[0 .. count).
  virtual void decode(const std::byte* frame, std::size_t elements, std::size_t first, std::size_t count,
                      float* out) const = 0;
  // The frame's values as fp32 in place, if the encoding is fp32 and the frame is aligned for float; else null.
  virtual const float* as_fp32(const std::byte* frame) const = 0;
};

const Encoding& encoding_for(EncodingId id);
std::optional<EncodingId> parse_encoding(std::string_view name);  // "fp32", "bf16", "fp16"
std::optional<EncodingId> encoding_from_wire(std::uint8_t number);

}  // namespace tributary
