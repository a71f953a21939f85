// The digest of a model: two runs with equal digests ended in the same bits.
//
// XXH3-128 over all tensors in declaration order, for each: length of the name, name, number of dimensions, dimensions
// (64-bit little-endian numbers), then the raw fp32 bytes. The padding between tensors in the flat space is not part of
// it, so it does not depend on how the model is cut into chunks.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "common/layout.h"

namespace tributary {

class ParameterDigest {
 public:
  ParameterDigest();
  ~ParameterDigest();
  ParameterDigest(const ParameterDigest&) = delete;
  ParameterDigest& operator=(const ParameterDigest&) = delete;

  // The next tensor. REQUIRES: values.size() == spec.elements().
  void add(const TensorSpec& spec, std::span<const float> values);
  // 32 hexadecimal digits, most significant first (as xxhsum prints them).
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Digest of a whole model: values[t] points to the elements of tensors[t].
std::string parameters_digest(std::span<const TensorSpec> tensors, std::span<const float* const> values);

}  // namespace tributary
