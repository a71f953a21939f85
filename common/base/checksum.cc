#include "common/base/checksum.h"

#include <new>

namespace tributary {
namespace {

detail::ChecksumState make_state() {
  detail::ChecksumState state(XXH3_createState(), &XXH3_freeState);
  if (!state) throw std::bad_alloc();
  return state;
}

}  // namespace

Checksum64::Checksum64() : state_(make_state()) {
  XXH3_64bits_reset(state_.get());
}

// xxhash takes no null pointer, which something empty may have.
Checksum64& Checksum64::add(const void* data, std::size_t bytes) {
  if (bytes > 0) XXH3_64bits_update(state_.get(), data, bytes);
  return *this;
}

std::uint64_t Checksum64::value() const {
  return XXH3_64bits_digest(state_.get());
}

Checksum128::Checksum128() : state_(make_state()) {
  XXH3_128bits_reset(state_.get());
}

Checksum128& Checksum128::add(const void* data, std::size_t bytes) {
  if (bytes > 0) XXH3_128bits_update(state_.get(), data, bytes);
  return *this;
}

std::string Checksum128::hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

Checksum128::Value Checksum128::value() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return {hash.high64, hash.low64};
}

Checksum128::Value Checksum128::of(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

std::string checksum_hex(std::string_view bytes) {
  return Checksum128().add(bytes.data(), bytes.size()).hex();
}

}  // namespace tributary
