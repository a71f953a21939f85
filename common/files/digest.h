// The digest of a model: two runs with equal digests ended in the same bits.
//
// XXH3-128 over all tensors in declaration order, for each: length of the name, name, number of dimensions, dimensions
// (64-bit little-endian numbers), then the raw fp32 bytes. The padding between tensors in the flat space is not part of
// it, so it does not depend on how the model is cut into chunks.
#pragma once

#include <span>
#include <string>

#include "common/base/checksum.h"
#include "common/base/layout.h"

namespace tributary {

class ParameterDigest {
 public:
  // The next tensor. REQUIRES: values.size() == spec.elements().
  void add(const TensorSpec& spec, std::span<const float> values);
  std::string hex() const { return checksum_.hex(); }

 private:
  Checksum128 checksum_;
};

// Digest of a whole model: values[t] points to the elements of tensors[t].
std::string parameters_digest(std::span<const TensorSpec> tensors, std::span<const float* const> values);

}  // namespace tributary
