// Values that ranks exchange through the coordinator (docs/values.md): a small one of every rank under a key, and the
// answer, which has the values of all.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/message_fields.h"

namespace tributary {

inline constexpr std::size_t kMaxValueBytes = 64u << 10;  // of one rank
inline constexpr std::size_t kMaxAnswerBytes = 4u << 20;  // of all ranks of a key, as bytes_of() counts
inline constexpr std::size_t kMaxValues = 1u << 16;       // of a key: as many as ranks

// The index-th value that the program asks for after that round.
struct ValueKey {
  Round round;
  std::uint32_t index = 0;

  auto operator<=>(const ValueKey&) const = default;
  std::string in_words() const {
    return "value " + std::to_string(index) + " after round " + std::to_string(round.value);
  }
};

struct RankValue {
  std::uint32_t rank = 0;  // in its view
  std::vector<std::byte> data;

  bool operator==(const RankValue&) const = default;
  static void fields(auto& m, auto&& field) {
    field(m.rank, TRIB_WIRE(Rank));
    field(m.data, TRIB_WIRE(Data), AtMost{kMaxValueBytes, "a rank's value"});
  }
};

// Trainer -> worker: its own; and, after an attach, answers that it knows. Worker -> trainer: an answer.
struct SharedValues {
  Round round;
  std::uint32_t index = 0;
  bool complete = false;          // an answer: the values of all ranks that there were, by rank
  std::vector<RankValue> values;  // else some of them

  ValueKey key() const { return {round, index}; }
  // Bytes to keep and to send.
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const RankValue& value : values) sum += bytes_of(value);
    return sum;
  }
  static std::size_t bytes_of(const RankValue& value) { return value.data.size() + 16; }

  bool operator==(const SharedValues&) const = default;
  static constexpr auto kWire = TRIB_WIRE(SharedValues);
  static void fields(auto& m, auto&& field) {
    field(m.round, TRIB_WIRE(Round));
    field(m.index, TRIB_WIRE(Index));
    field(m.complete, TRIB_WIRE(Complete));
    field(m.values, TRIB_WIRE(Values), AtMost{kMaxValues, "the list of ranks' values"});
  }
  void check() const {
    if (bytes() > kMaxAnswerBytes) throw Malformed{"the values of all ranks are more than 4 MiB together"};
    for (std::size_t i = 0; i < values.size() && complete; ++i) {
      if (values[i].rank != i) throw Malformed{"an answer with all ranks' values leaves out a rank"};
    }
    if (complete && values.empty()) throw Malformed{"an answer with all ranks' values has none"};
  }
};

// Worker -> coordinator: values of its node's ranks; and, when a view begins, answers that it knows. Coordinator ->
// workers: an answer; or, with a message, why there can be none, which ends the job.
struct RankValues {
  JobId job;
  ViewId view;
  SharedValues shared;
  ErrorCode code = ErrorCode::kInternal;
  std::string message;

  static constexpr auto kWire = TRIB_WIRE(RankValues);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    SharedValues::fields(m.shared, field);
    field(m.code, TRIB_WIRE(Code));
    field(m.message, TRIB_WIRE(Message), CutAt{});
  }
  void check() const { shared.check(); }
};

}  // namespace tributary
