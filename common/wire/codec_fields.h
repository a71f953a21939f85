// Writes and reads messages and structs by their field lists (common/base/message_fields.h). Private to codec.cc and to
// the records of server/.
//
// Decoders throw Malformed (or kj::Exception, from Cap'n Proto itself) internally and nowhere else: decode_guarded() is
// the only way in, and catches both.
#pragma once

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
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

// ---- Fields ----

// An element of a list, named as TRIB_WIRE names a field of a struct.
struct At {
  unsigned index;
  auto get(auto list) const { return list[index]; }
  void set(auto list, const auto& value) const { list.set(index, value); }
  auto init(auto list) const { return list[index]; }
  auto init(auto list, unsigned size) const { return list.init(index, size); }
};

template <class T>
concept Listed = requires(T& m, int any) {
  T::fields(m, any);
};
template <class T>
inline constexpr bool kIdentifier = false;
template <class Tag, class Rep>
inline constexpr bool kIdentifier<StrongId<Tag, Rep>> = true;

template <class Builder>
class Writer {
 public:
  explicit Writer(Builder out) : out_(out) {}

  template <class T, class... Bounds>
  void operator()(const T& value, const auto& wire, const Bounds&... bounds) const {
    if constexpr (std::is_enum_v<T>) {
      wire.set(out_, static_cast<decltype(wire.get(out_))>(value));
    } else if constexpr (std::is_arithmetic_v<T>) {
      wire.set(out_, value);
    } else if constexpr (kIdentifier<T>) {
      wire.set(out_, value.value);
    } else if constexpr (std::is_same_v<T, std::string> && (std::is_same_v<Bounds, CutAt> || ...)) {
      wire.set(out_, text(clipped(value, bounds.bytes...)));
    } else if constexpr (std::is_same_v<T, std::string>) {
      wire.set(out_, text(value));
    } else if constexpr (std::is_same_v<T, std::vector<std::byte>>) {
      wire.set(out_, data(value));
    } else if constexpr (Listed<T>) {
      inside(wire, [&](const auto& field) { T::fields(value, field); });
    } else {
      const Writer<decltype(wire.init(out_, 0u))> elements(wire.init(out_, size_of(value)));
      for (unsigned i = 0; const auto& element : value) elements(element, At{i++});
    }
  }
  // Some of the members are in a struct of their own.
  void inside(const auto& wire, auto&& fields) const { fields(Writer<decltype(wire.init(out_))>(wire.init(out_))); }
  void owners(const std::vector<ChunkOwner>& owners) const { write_owners(out_, owners); }

 private:
  Builder out_;
};

template <class Struct>
class Reader {
 public:
  explicit Reader(Struct in) : in_(in) {}

  // Reads a field. Throws Malformed if it is out of bounds.
  template <class T, class... Bounds>
  void operator()(T& value, const auto& wire, const Bounds&... bounds) const {
    if constexpr (std::is_enum_v<T>) {
      value = read_enum<T>(wire.get(in_));
    } else if constexpr (std::is_arithmetic_v<T>) {
      value = wire.get(in_);
    } else if constexpr (kIdentifier<T>) {
      value.value = wire.get(in_);
    } else if constexpr (std::is_same_v<T, std::string>) {
      value = read_text(wire.get(in_), bounds...);
    } else if constexpr (std::is_same_v<T, std::vector<std::byte>>) {
      value = read_data(wire.get(in_), bounds...);
    } else if constexpr (Listed<T>) {
      inside(wire, [&](const auto& field) { T::fields(value, field); });
      if constexpr (requires { value.check(); }) value.check();
    } else {
      elements(value, wire.get(in_), bounds...);
    }
  }
  void inside(const auto& wire, auto&& fields) const { fields(Reader<decltype(wire.get(in_))>(wire.get(in_))); }
  void owners(std::vector<ChunkOwner>& owners) const { owners = read_owners(in_); }

 private:
  template <class List, class... Bounds>
  static void elements(auto& out, List list, const AtMost& most = {~std::size_t{0}, ""}, const Bounds&... bounds) {
    check_count(list.size(), most);
    if constexpr (requires { out.reserve(0); }) out.reserve(list.size());
    const Reader<List> in(list);
    for (unsigned i = 0; i < list.size(); ++i) {
      typename std::remove_reference_t<decltype(out)>::value_type element;
      in(element, At{i}, bounds...);
      out.insert(out.end(), std::move(element));
    }
  }

  Struct in_;
};

// ---- Messages ----

template <class M>
void write_message(auto root, const M& message) {
  if constexpr (Listed<M>) {
    M::fields(message, Writer(M::kWire.init(root)));
  } else {
    M::kWire.set(root);
  }
}

template <class M>
M read_message(auto root) {
  M message;
  if constexpr (Listed<M>) M::fields(message, Reader(M::kWire.get(root)));
  if constexpr (requires { message.check(); }) message.check();
  return message;
}

// The alternatives of `Message` stand in the order of the schema's union: `which` is the index of one.
// read(std::in_place_type<Alternative>) reads it.
template <class Message, std::size_t Index = 0>
Message read_kind(std::size_t which, const auto& read) {
  using Variant = typename VariantOf<Message>::Type;
  if constexpr (Index == std::variant_size_v<Variant>) {
    throw Malformed{
        "it is of kind " + std::to_string(which) + ", which this program does not know: its sender is newer",
        ErrorCode::kUnknownKind};
  } else {
    if (which == Index) return read(std::in_place_type<std::variant_alternative_t<Index, Variant>>);
    return read_kind<Message, Index + 1>(which, read);
  }
}

template <class Root, class Variant>
std::vector<std::byte> encode_message(const Variant& message, std::uint16_t version) {
  capnp::MallocMessageBuilder builder;
  auto root = builder.initRoot<Root>();
  root.setProtocol(version);
  std::visit([&](const auto& m) { write_message(root, m); }, message);
  return to_bytes(builder);
}

template <class Root, class Variant>
Result<Variant> decode_message(std::string_view kind, std::span<const std::byte> bytes, std::size_t max_bytes) {
  if (auto status = check_protocol(kind, bytes, max_bytes); !status) return tl::unexpected(std::move(status.error()));
  return decode_root<Variant, Root>(bytes,
                                    [](typename Root::Reader root) {
                                      return read_kind<Variant>(static_cast<std::size_t>(root.which()),
                                                                [&]<class M>(std::in_place_type_t<M>) -> Variant {
                                                                  return read_message<M>(root);
                                                                });
                                    })
      .map_error([&](const Malformed& why) { return refused(kind, bytes.size(), why); });
}

}  // namespace tributary::codec
