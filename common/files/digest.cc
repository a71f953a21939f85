#include "common/files/digest.h"

#include <bit>
#include <cstdint>

#include "common/base/assert.h"

namespace tributary {

static_assert(std::endian::native == std::endian::little, "digests are defined over little-endian bytes");

void ParameterDigest::add(const TensorSpec& spec, std::span<const float> values) {
  TRIB_ASSERT(values.size() == spec.elements());
  const auto add_number = [this](std::uint64_t number) { checksum_.add(&number, sizeof number); };
  add_number(spec.name.size());
  checksum_.add(spec.name.data(), spec.name.size());
  add_number(spec.shape.size());
  for (const std::uint64_t dimension : spec.shape) add_number(dimension);
  checksum_.add(values.data(), values.size_bytes());
}

std::string parameters_digest(std::span<const TensorSpec> tensors, std::span<const float* const> values) {
  TRIB_ASSERT(tensors.size() == values.size());
  ParameterDigest digest;
  for (std::size_t t = 0; t < tensors.size(); ++t) digest.add(tensors[t], {values[t], tensors[t].elements()});
  return digest.hex();
}

}  // namespace tributary
