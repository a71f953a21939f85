// What the codecs share: framing checks, limits on untrusted input, and the pieces that several messages contain.
// Private to codec_*.cc and server/records.cc.
//
// Decoders throw Malformed (or kj::Exception, from Cap'n Proto itself) internally and nowhere else: decode_guarded() is
// the only way in, and catches both.
#pragma once

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/layout.h"
#include "common/messages.h"
#include "common/result.h"
#include "schema/records.capnp.h"

namespace tributary::codec {

// Bounds on what is accepted from a peer or a file, beside the size of the whole message.
inline constexpr std::size_t kMaxNameBytes = 1024;       // names of jobs, tensors, workers; endpoints
inline constexpr std::size_t kMaxTextBytes = 64u << 10;  // messages and reasons; longer ones are cut by the sender
inline constexpr std::size_t kMaxPathBytes = 4096;
inline constexpr std::size_t kMaxJobJsonBytes = 1u << 20;
inline constexpr std::size_t kMaxShapeDims = 64;
inline constexpr std::size_t kMaxShards = 4096;
inline constexpr std::size_t kMaxLaneEndpoints = 1024;     // of one server
inline constexpr std::size_t kMaxJobs = 65536;             // stored on, or reported by, one server
inline constexpr std::size_t kMaxStoredSnapshots = 65536;  // of one job on one server
inline constexpr int kMaxNesting = 8;                      // pointers deep; the schemas need 5
inline constexpr std::uint32_t kMaxSegments = 64;          // builders double the segment size, so this is never reached

// The frame is refused; `what` says why in words for its author.
struct Malformed {
  std::string what;
};

// Leading 16 bits of the root struct (the protocol version, in every version of every message), found without
// interpreting anything else. Nothing if the bytes are no Cap'n Proto message at all.
std::optional<std::uint16_t> peek_u16(std::span<const std::byte> bytes);
// Leading 32 bits: the format number of stored records.
std::optional<std::uint32_t> peek_u32(std::span<const std::byte> bytes);

// For a message of a peer. Records in a store have their own words (server/records.cc).
Error malformed(std::string_view kind, std::size_t bytes, std::string_view why);

// Refuses what is no message (kMalformed), is of another version (kProtocolVersion),
// or is longer than max_bytes (kMalformed).
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
tl::expected<T, std::string> decode_guarded(Decode&& decode) {
  try {
    return decode();
  } catch (const Malformed& error) {
    return tl::unexpected<std::string>(error.what);
  } catch (const kj::Exception& error) {
    return tl::unexpected<std::string>(error.getDescription().cStr());
  }
}

// Decodes a message of any alignment with root `Root` through `decode(Root::Reader)`. The bytes are copied to the heap.
template <class T, class Root, class Decode>
tl::expected<T, std::string> decode_message(std::span<const std::byte> bytes, Decode&& decode) {
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

void write_tensors(capnp::List<record::Tensor>::Builder out, const std::vector<TensorSpec>& tensors);
void write_owners(record::Layout::Builder out, std::uint64_t chunk_elements, const std::vector<ChunkOwner>& owners);

inline void write_gate(record::GateDecision::Builder out, const GateDecision& gate) {
  out.setVerdict(static_cast<std::uint8_t>(gate.verdict));
  out.setLossScale(gate.loss_scale);
  out.setGoodRounds(gate.good_rounds);
  out.setCoefficient(gate.coefficient);
  out.setNorm(gate.norm);
}

// values: a range of std::string.
inline void write_texts(capnp::List<capnp::Text>::Builder out, const auto& values) {
  for (unsigned i = 0; const std::string& value : values) out.set(i++, text(value));
}

// ---- Pieces, reading; each throws Malformed for what is out of bounds ----

inline std::vector<std::byte> read_data(capnp::Data::Reader in, std::size_t limit, const char* what) {
  if (in.size() > limit) {
    throw Malformed{std::string(what) + " has " + std::to_string(in.size()) + " bytes; at most " +
                    std::to_string(limit) + " are allowed"};
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(in.begin());
  return {bytes, bytes + in.size()};
}

std::string read_text(capnp::Text::Reader in, std::size_t limit, const char* field);
std::vector<TensorSpec> read_tensors(capnp::List<record::Tensor>::Reader in);
std::vector<ChunkOwner> read_owners(record::Layout::Reader in);
std::vector<std::string> read_texts(capnp::List<capnp::Text>::Reader in, std::size_t limit, const char* field);
ComputeKinds read_kinds(capnp::List<capnp::Text>::Reader in);
void check_count(std::size_t count, std::size_t limit, const char* field);
ErrorCode read_error_code(std::uint16_t number);
// Encoding, LeaveKind, StopKind: `last` is the highest enumerator that this program knows.
template <class To, class From>
To read_enum(From value, To last, const char* field) {
  const auto number = static_cast<std::uint16_t>(value);
  if (number > static_cast<std::uint16_t>(last)) {
    throw Malformed{std::string(field) + " is " + std::to_string(number) + ", which no known value has"};
  }
  return static_cast<To>(number);
}

inline GateVerdict read_verdict(std::uint8_t number) {
  return read_enum(number, GateVerdict::kVoid, "the gate's verdict");
}

inline GateDecision checked(const GateDecision& gate) {
  if (!gate.sound()) throw Malformed{"the round gate's decision has a coefficient, norm or loss scale that cannot be"};
  return gate;
}

inline GateDecision read_gate(record::GateDecision::Reader in) {
  const GateVerdict verdict = read_verdict(in.getVerdict());
  if (verdict == GateVerdict::kNone) return {};
  return checked({verdict, in.getCoefficient(), in.getNorm(), in.getLossScale(), in.getGoodRounds()});
}

}  // namespace tributary::codec
