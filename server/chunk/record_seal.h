// The format of a record on disk:
//
//   u64 XXH3-64 of all that follows | Cap'n Proto message whose root begins with u32 format
//
// Reading never trusts its input: a wrong checksum or nonsense gives kStore, a newer format kStoreFormat; both name
// `what`, the record in words ("the registry record of job 12").
#pragma once

#include <xxhash.h>

#include <cstring>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/wire/codec_fields.h"

namespace tributary::records {

inline constexpr std::uint32_t kStoreFormat = 4;  // older ones are read
inline constexpr std::size_t kChecksumBytes = sizeof(std::uint64_t);

inline std::string seal_message(capnp::MessageBuilder& builder) {
  const std::vector<std::byte> body = codec::to_bytes(builder);
  const std::uint64_t checksum = XXH3_64bits(body.data(), body.size());
  std::string out(kChecksumBytes + body.size(), '\0');
  std::memcpy(out.data(), &checksum, kChecksumBytes);
  std::memcpy(out.data() + kChecksumBytes, body.data(), body.size());
  return out;
}

template <class T, class Root, class Decode>
Result<T> unseal_message(std::string_view bytes, std::string_view what, Decode&& decode) {
  const auto damaged = [&](const std::string& why) {
    return Error{ErrorCode::kStore, std::string(what) + " is damaged: " + why +
                                        "; check the disk, then restore the store from a copy or remove it"};
  };
  std::uint64_t checksum = 0;
  if (bytes.size() < kChecksumBytes) {
    return tl::unexpected<Error>(damaged("it has only " + std::to_string(bytes.size()) + " bytes"));
  }
  std::memcpy(&checksum, bytes.data(), kChecksumBytes);
  bytes.remove_prefix(kChecksumBytes);
  if (XXH3_64bits(bytes.data(), bytes.size()) != checksum) {
    return tl::unexpected<Error>(damaged("its checksum does not match its bytes"));
  }
  const auto message = std::as_bytes(std::span(bytes));
  const auto format = codec::peek_u32(message);
  if (!format) return tl::unexpected<Error>(damaged("it is no record"));
  if (*format > kStoreFormat) {
    return fail(ErrorCode::kStoreFormat, std::string(what) + " has store format " + std::to_string(*format) +
                                             ", this program reads formats up to " + std::to_string(kStoreFormat) +
                                             "; install the newer Tributary that wrote it, or use another store");
  }
  return codec::decode_root<T, Root>(message, decode).map_error([&](const Malformed& why) {
    return damaged(why.what);
  });
}

}  // namespace tributary::records
