// Shared parts of the codecs: framing checks, and the pieces that field lists are made of (codec_fields.h).
// Private to codec_*.cc and to the records of server/.
//
// Decoders throw Malformed (or kj::Exception, from Cap'n Proto itself) internally and nowhere else: decode_guarded() is
// the only way in, and catches both.
#pragma once

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/layout.h"
#include "common/base/result.h"
#include "common/wire/messages.h"
#include "schema/records.capnp.h"

namespace tributary::codec {

inline constexpr int kMaxNesting = 8;              // pointers deep; the schemas need 5
inline constexpr std::uint32_t kMaxSegments = 64;  // builders double the segment size, so this is never reached

// Leading 16 bits of the root struct (the protocol version, in every version of every message), found without
// interpreting anything else. Nothing if the bytes are no Cap'n Proto message at all.
std::optional<std::uint16_t> peek_u16(std::span<const std::byte> bytes);
// Leading 32 bits: the format number of stored records.
std::optional<std::uint32_t> peek_u32(std::span<const std::byte> bytes);

// Returns the error of a peer's message. Records in a store have their own words (server/chunk/record_seal.h).
Error refused(std::string_view kind, std::size_t bytes, const Malformed& why);

// Refuses bytes that are no message or longer than max_bytes (kMalformed), or of another version (kProtocolVersion).
Status check_protocol(std::string_view kind, std::span<const std::byte> bytes, std::size_t max_bytes);

// As Cap'n Proto counts.
unsigned size_of(const auto& container) {
  return static_cast<unsigned>(container.size());
}

// A message may be read about once: overlapping pointers must not make a small message decode into a large one.
inline capnp::ReaderOptions reader_options(std::size_t message_words) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = 2 * message_words + 64;
  options.nestingLimit = kMaxNesting;
  return options;
}

// Runs `decode`; the error is the reason why it threw.
template <class T, class Decode>
tl::expected<T, Malformed> decode_guarded(Decode&& decode) {
  try {
    return decode();
  } catch (Malformed& error) {
    return tl::unexpected<Malformed>(std::move(error));
  } catch (const kj::Exception& error) {
    return tl::unexpected<Malformed>(Malformed{error.getDescription().cStr()});
  }
}

// Decodes a message of any alignment with root `Root` through `decode(Root::Reader)`. The bytes are copied to the heap.
template <class T, class Root, class Decode>
tl::expected<T, Malformed> decode_root(std::span<const std::byte> bytes, Decode&& decode) {
  std::vector<std::uint64_t> words(bytes.size() / sizeof(std::uint64_t));
  std::memcpy(words.data(), bytes.data(), words.size() * sizeof(std::uint64_t));
  return decode_guarded<T>([&]() -> T {
    capnp::FlatArrayMessageReader reader(kj::arrayPtr(reinterpret_cast<const capnp::word*>(words.data()), words.size()),
                                         reader_options(words.size()));
    return decode(reader.getRoot<Root>());
  });
}

// The finished message with its segment table.
std::vector<std::byte> to_bytes(capnp::MessageBuilder& builder);

// ---- Pieces, writing ----

inline capnp::Text::Reader text(const std::string& value) {
  return capnp::Text::Reader(value.c_str(), value.size());
}
inline capnp::Data::Reader data(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const capnp::byte*>(bytes.data()), bytes.size()};
}
// For messages to humans: cut (between UTF-8 characters) to `limit`,
// because a long text must not make its message unreadable.
std::string clipped(const std::string& value, std::size_t limit = kMaxTextBytes);

void write_owners(record::Layout::Builder out, const std::vector<ChunkOwner>& owners);

// ---- Pieces, reading; each throws Malformed for a value out of bounds ----

std::string read_text(capnp::Text::Reader in, const AtMost& most);
inline std::string read_text(capnp::Text::Reader in, const CutAt& most) {
  return read_text(in, AtMost{most.bytes, most.what});
}
std::vector<std::byte> read_data(capnp::Data::Reader in, const AtMost& most);
std::vector<ChunkOwner> read_owners(record::Layout::Reader in);
void check_count(std::size_t count, const AtMost& most);

template <class To>
To read_enum(auto value) {
  const KnownValues known = known_values(To{});
  const auto number = static_cast<std::uint16_t>(value);
  if (number > known.last) {
    throw Malformed{std::string(known.what) + " is " + std::to_string(number) + ", which no known value has"};
  }
  return static_cast<To>(number);
}

}  // namespace tributary::codec
