// The field list of a message: a message is a struct with, besides its members,
//   static constexpr auto kWire          its name in the union of its schema
//   static void fields(auto& m, auto&& field)   ->  field(member, TRIB_WIRE(NameInTheSchema), bounds...) for every one
// which the codec walks to write it and to read it (common/wire/codec_fields.h). The second argument is what Cap'n
// Proto generated for the field; the bounds limit the values accepted from a peer.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/result.h"

namespace tributary {

// The three accessors that Cap'n Proto generates for a field: get and set, and init for structs, groups and lists. They
// can only be named, so this is a macro.
template <class Get, class Set, class Init>
struct Wire {
  Get get;
  Set set;
  Init init;
};
#define TRIB_WIRE(Name)                                                                                      \
  ::tributary::Wire {                                                                                        \
    [](auto in) { return in.get##Name(); }, [](auto out, const auto&... value) { out.set##Name(value...); }, \
        [](auto out, auto... size) { return out.init##Name(size...); }                                       \
  }

// Bounds on values accepted from a peer or a file, besides the size of the whole message.
inline constexpr std::size_t kMaxNameBytes = 1024;       // names of jobs, tensors, workers; endpoints
inline constexpr std::size_t kMaxTextBytes = 64u << 10;  // messages and reasons; longer ones are cut by the sender
inline constexpr std::size_t kMaxPathBytes = 4096;
inline constexpr std::size_t kMaxJobJsonBytes = 1u << 20;
inline constexpr std::size_t kMaxShapeDims = 64;
inline constexpr std::size_t kMaxShards = 4096;
inline constexpr std::size_t kMaxLaneEndpoints = 1024;       // of one server
inline constexpr std::size_t kMaxJobs = 65536;               // stored on, or reported by, one server
inline constexpr std::size_t kMaxStoredJobs = 4 * kMaxJobs;  // with copies of other servers' parts
inline constexpr std::size_t kMaxStoredSnapshots = 65536;    // of one job on one server

// Bound of a text, of bytes or of a list; bounds after a list's are its elements'. what: begins the refusal's sentence.
struct AtMost {
  std::size_t count;
  const char* what;
};
// Bound of a text for people: its sender cuts it, because a long one must not make its message unreadable.
struct CutAt {
  std::size_t bytes = kMaxTextBytes;
  const char* what = "the message's text";
};
// Bound of an enumeration, whose values begin with 0: known_values(one of them) has the last that this program knows.
struct KnownValues {
  std::uint16_t last;
  const char* what;
};

constexpr KnownValues known_values(ErrorCode) {
  return {static_cast<std::uint16_t>(ErrorCode::kUnknownKind), "the error code"};
}

// Thrown when a message is nothing that a peer of ours sends; `what` explains it to its author. The check() of a
// message, which its reader calls, and the codec throw it.
struct Malformed {
  std::string what;
  ErrorCode code = ErrorCode::kMalformed;
};

inline void must_be_finite(double value, const char* what) {
  if (!std::isfinite(value)) throw Malformed{std::string(what) + " is no finite number"};
}

}  // namespace tributary
