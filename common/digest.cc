#include "common/digest.h"

#include <xxhash.h>

#include <bit>
#include <cstdint>
#include <new>

#include "common/assert.h"

namespace tributary {

static_assert(std::endian::native == std::endian::little, "digests are defined over little-endian bytes");

struct ParameterDigest::State {
  State() : hash(XXH3_createState()) {
    if (hash == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(hash);
  }
  ~State() { XXH3_freeState(hash); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void add(const void* bytes, std::size_t size) {
    // xxhash takes no null pointer, which an empty name or tensor may have.
    if (size > 0) XXH3_128bits_update(hash, bytes, size);
  }
  void add(std::uint64_t number) { add(&number, sizeof(number)); }

  XXH3_state_t* hash;
};

ParameterDigest::ParameterDigest() : state_(std::make_unique<State>()) {}
ParameterDigest::~ParameterDigest() = default;

void ParameterDigest::add(const TensorSpec& spec, std::span<const float> values) {
  TRIB_ASSERT(values.size() == spec.elements());
  state_->add(spec.name.size());
  state_->add(spec.name.data(), spec.name.size());
  state_->add(spec.shape.size());
  for (const std::uint64_t dimension : spec.shape) state_->add(dimension);
  state_->add(values.data(), values.size_bytes());
}

std::string ParameterDigest::hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_->hash));
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * sizeof(canonical.digest));
  for (const unsigned char byte : canonical.digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string parameters_digest(std::span<const TensorSpec> tensors, std::span<const float* const> values) {
  TRIB_ASSERT(tensors.size() == values.size());
  ParameterDigest digest;
  for (std::size_t t = 0; t < tensors.size(); ++t) digest.add(tensors[t], {values[t], tensors[t].elements()});
  return digest.hex();
}

}  // namespace tributary
