// Messages with random contents, and their comparison, field by field through Boost.PFR: an added field of a message is
// tested without further code.
#pragma once

#include <boost/pfr.hpp>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/wire/messages.h"

namespace tributary::testing {

using Random = std::mt19937_64;

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <>
struct IsVector<HeldSettings> : std::true_type {};
template <class T>
struct IsStrongId : std::false_type {};
template <class Tag, class Rep>
struct IsStrongId<StrongId<Tag, Rep>> : std::true_type {};

inline std::uint64_t below(Random& random, std::uint64_t bound) {
  return random() % bound;
}

template <class T>
void randomise(Random& random, T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    value = below(random, 2) != 0;
  } else if constexpr (std::is_same_v<T, ErrorCode>) {
    value = static_cast<ErrorCode>(below(random, 1 + static_cast<unsigned>(ErrorCode::kUnknownKind)));
  } else if constexpr (std::is_same_v<T, GateDecision>) {
    value = {};  // without a verdict there is nothing in it
    if (below(random, 4) == 0) return;
    value.verdict = static_cast<GateVerdict>(1 + below(random, 4));
    randomise(random, value.coefficient);
    randomise(random, value.norm);
    randomise(random, value.loss_scale);
    randomise(random, value.good_rounds);
  } else if constexpr (std::is_enum_v<T>) {
    value = static_cast<T>(below(random, 3));  // EncodingId, LeaveKind, StopKind
  } else if constexpr (std::is_same_v<T, float>) {
    value = static_cast<float>(random()) * 1e-9f + 0.125f;
  } else if constexpr (std::is_same_v<T, double>) {
    value = static_cast<double>(random()) * 1e-9 + 0.125;
  } else if constexpr (std::is_integral_v<T>) {
    value = static_cast<T>(random());
  } else if constexpr (IsStrongId<T>::value) {
    randomise(random, value.value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    value.resize(below(random, 40));
    for (char& c : value) c = static_cast<char>(random());
  } else if constexpr (std::is_same_v<T, WantPart>) {
    randomise(random, value.job);
    value.large = {1 + below(random, 3 * kPartBytes), random(), random()};
    value.offset = below(random, (value.large.bytes + kPartBytes - 1) / kPartBytes) * kPartBytes;
  } else if constexpr (std::is_same_v<T, StatePart>) {
    randomise(random, value.part);
    value.part.large.bytes = value.part.offset + 1 + below(random, 100);
    value.comes = below(random, 4) == 0;
    if (!value.comes) value.data.assign(value.part.large.bytes - value.part.offset, static_cast<std::byte>(random()));
  } else if constexpr (std::is_same_v<T, SharedValues>) {
    randomise(random, value.round);
    value.index = static_cast<std::uint32_t>(below(random, 1u << 31));
    randomise(random, value.complete);
    randomise(random, value.values);
    if (value.complete && value.values.empty()) value.values.resize(1);
    for (std::uint32_t i = 0; i < value.values.size() && value.complete; ++i) value.values[i].rank = i;
  } else if constexpr (std::is_same_v<T, Figure>) {
    value.name = std::string(1 + below(random, kMaxFigureNameBytes), 'f');
    randomise(random, value.mean);
    randomise(random, value.samples);
  } else if constexpr (std::is_same_v<T, ComputeKinds>) {
    value.clear();
    for (std::uint64_t i = below(random, 5); i > 0; --i) value.insert(std::string(1 + below(random, 40), 'k'));
  } else if constexpr (IsVector<T>::value) {
    value.resize(below(random, 5));
    for (auto& element : value) randomise(random, element);
  } else if constexpr (!std::is_empty_v<T>) {
    boost::pfr::for_each_field(value, [&](auto& field) { randomise(random, field); });
    if constexpr (std::is_same_v<T, JoinJob>) value.held_ranks.resize(value.held_rounds.size());
    if constexpr (std::is_same_v<T, DealChunks>) value.owners_before.resize(value.owners.size());
  }
}

template <class... Ts>
bool same(const std::variant<Ts...>& a, const std::variant<Ts...>& b);

template <class T>
bool same(const T& a, const T& b) {
  if constexpr (IsVector<T>::value) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (!same(a[i], b[i])) return false;
    }
    return true;
  } else if constexpr (std::is_class_v<T> && std::is_aggregate_v<T>) {
    if constexpr (std::is_empty_v<T>) {
      return true;
    } else {
      bool equal = true;
      boost::pfr::for_each_field(
          a, [&](const auto& field, auto index) { equal = equal && same(field, boost::pfr::get<index.value>(b)); });
      return equal;
    }
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::memcmp(&a, &b, sizeof a) == 0;  // also of what is no number
  } else {
    return a == b;
  }
}

template <class... Ts>
bool same(const std::variant<Ts...>& a, const std::variant<Ts...>& b) {
  if (a.index() != b.index()) return false;
  return std::visit([&](const auto& x) { return same(x, std::get<std::decay_t<decltype(x)>>(b)); }, a);
}

inline bool same(const ControlMessage& a, const ControlMessage& b) {
  return same(static_cast<const ControlVariant&>(a), static_cast<const ControlVariant&>(b));
}

// One random message of each kind.
template <class Message>
std::vector<Message> one_of_each(Random& random) {
  using Variant = typename VariantOf<Message>::Type;
  std::vector<Message> out;
  const auto add = [&]<std::size_t I>() {
    std::variant_alternative_t<I, Variant> message{};
    randomise(random, message);
    out.emplace_back(std::move(message));
  };
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (add.template operator()<I>(), ...);
  }
  (std::make_index_sequence<std::variant_size_v<Variant>>{});
  return out;
}

}  // namespace tributary::testing
