// XXH3 over bytes that come in pieces, as if they were one. Detects faults of disks and our own mistakes, not forgers.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tributary {

namespace detail {
using ChecksumState = std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)>;
}  // namespace detail

// 64 bits: for a record.
class Checksum64 {
 public:
  Checksum64();
  Checksum64& add(const void* data, std::size_t bytes);
  Checksum64& add(std::string_view bytes) { return add(bytes.data(), bytes.size()); }
  std::uint64_t value() const;

 private:
  detail::ChecksumState state_;
};

// 128 bits: for a file, or all parameters of a model.
class Checksum128 {
 public:
  Checksum128();
  Checksum128& add(const void* data, std::size_t bytes);
  std::string hex() const;  // 32 digits, most significant first, as xxhsum prints them
  struct Value {
    std::uint64_t high = 0, low = 0;
    bool operator==(const Value&) const = default;
  };
  Value value() const;
  static Value of(std::span<const std::byte> bytes);  // of one piece; allocates nothing

 private:
  detail::ChecksumState state_;
};
std::string checksum_hex(std::string_view bytes);

}  // namespace tributary
