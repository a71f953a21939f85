// Writes and reads structs with a field list (common/base/message_fields.h). Private to codec_*.cc and to the records
// of server/.
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/wire/codec_util.h"
#include "common/wire/messages.h"

namespace tributary::codec {

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
