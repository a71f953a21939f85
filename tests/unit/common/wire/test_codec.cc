#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "common/wire/codec.h"
#include "tests/unit/common/wire/random_message.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::codec_test {
namespace {

using testing::contains;

using testing::below;
using testing::one_of_each;
using testing::Random;
using testing::same;
using Bytes = std::vector<std::byte>;

// One interface over the three codecs, so that every test below runs for each.
struct Data {
  using Message = DataMessage;
  static Bytes encode(const Message& m) { return encode_data_as_version(m, kProtocolVersion); }
  static Bytes encode_as(const Message& m, std::uint16_t version) { return encode_data_as_version(m, version); }
  static Result<Message> decode(std::span<const std::byte> bytes) { return decode_data(bytes); }
};
struct Control {
  using Message = ControlMessage;
  static Bytes encode(const Message& m) { return encode_control(m); }
  static Bytes encode_as(const Message& m, std::uint16_t version) { return encode_control_as_version(m, version); }
  static Result<Message> decode(std::span<const std::byte> bytes) { return decode_control(bytes); }
};
struct Attach {
  using Message = AttachMessage;
  static Bytes encode(const Message& m) { return encode_attach(m); }
  static Bytes encode_as(const Message& m, std::uint16_t version) { return encode_attach_as_version(m, version); }
  static Result<Message> decode(std::span<const std::byte> bytes) { return decode_attach(bytes); }
};

bool refused_as_input(ErrorCode code) {
  return code == ErrorCode::kMalformed || code == ErrorCode::kProtocolVersion || code == ErrorCode::kUnknownKind;
}

}  // namespace

TEST_CASE_TEMPLATE("every message survives a round trip with random contents", Codec, Data, Control, Attach) {
  Random random(1);
  for (int repeat = 0; repeat < 200; ++repeat) {
    for (const auto& message : one_of_each<typename Codec::Message>(random)) {
      const auto decoded = required(Codec::decode(Codec::encode(message)));
      CAPTURE(message.index());
      CHECK(same(decoded, message));
    }
  }
}

TEST_CASE_TEMPLATE("every truncation of every message is refused", Codec, Data, Control, Attach) {
  Random random(2);
  for (const auto& message : one_of_each<typename Codec::Message>(random)) {
    const Bytes bytes = Codec::encode(message);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const auto decoded = failure_of(Codec::decode(std::span(bytes).first(size)));
      CHECK(decoded.code == ErrorCode::kMalformed);
    }
    Bytes longer = bytes;
    longer.resize(bytes.size() + 8);
    CHECK_FALSE(Codec::decode(longer).has_value());
  }
}

TEST_CASE_TEMPLATE("flipped bits give a message or a refusal, never a crash", Codec, Data, Control, Attach) {
  Random random(3);
  int refused = 0;
  int left = 100'000;
  while (left > 0) {
    for (const auto& message : one_of_each<typename Codec::Message>(random)) {
      const Bytes original = Codec::encode(message);
      for (int i = 0; i < 200 && left > 0; ++i, --left) {
        Bytes bytes = original;
        for (std::uint64_t flips = 1 + below(random, 4); flips > 0; --flips) {
          bytes[below(random, bytes.size())] ^= static_cast<std::byte>(1u << below(random, 8));
        }
        const auto decoded = Codec::decode(bytes);
        if (decoded) {
          // Whatever was understood can be said again.
          CHECK(Codec::decode(Codec::encode(*decoded)).has_value());
        } else {
          ++refused;
          CHECK(refused_as_input(decoded.error().code));
        }
      }
    }
  }
  CHECK(refused > 10'000);
}

TEST_CASE_TEMPLATE("random noise is refused", Codec, Data, Control, Attach) {
  Random random(4);
  for (int i = 0; i < 100'000; ++i) {
    Bytes bytes(below(random, 300));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    if (i % 2 == 0 && bytes.size() >= 32) {
      // A plausible frame with noise inside, so that the reader behind the framing check is exercised too.
      bytes.resize(bytes.size() / 8 * 8);
      const std::uint32_t table[2] = {0, static_cast<std::uint32_t>(bytes.size() / 8 - 1)};
      std::memcpy(bytes.data(), table, sizeof(table));
      const std::uint32_t root[2] = {0, static_cast<std::uint32_t>(below(random, 8) | below(random, 4) << 16)};
      std::memcpy(bytes.data() + 8, root, sizeof(root));
      std::memcpy(bytes.data() + 16, &kProtocolVersion, sizeof(kProtocolVersion));
    }
    const auto decoded = Codec::decode(bytes);
    if (!decoded) CHECK(refused_as_input(decoded.error().code));
  }
}

TEST_CASE_TEMPLATE("another protocol version is refused with both versions and the cure", Codec, Data, Control,
                   Attach) {
  Random random(5);
  for (const auto& message : one_of_each<typename Codec::Message>(random)) {
    const auto decoded = failure_of(Codec::decode(Codec::encode_as(message, 4711)));
    CHECK(decoded.code == ErrorCode::kProtocolVersion);
    CHECK(contains(decoded.message, "version 4711"));
    CHECK(contains(decoded.message, "version " + std::to_string(kProtocolVersion)));
    CHECK(contains(decoded.message, "install the same version"));
  }
}

TEST_CASE_TEMPLATE("another version is recognised in a message that this one could not read", Codec, Data, Control,
                   Attach) {
  // A root struct with a bigger data section, an unknown kind and nonsense pointers: only the first 16 bits are ours to
  // judge.
  std::vector<std::uint64_t> words(4096, 0xfffffffffffffffdull);
  words[0] = static_cast<std::uint64_t>(words.size() - 1) << 32;
  words[1] = 500ull << 32 | 9ull << 48;
  words[2] = 0xffff'ffff'ffff'0000ull | (kProtocolVersion + 1);
  const auto decoded = failure_of(Codec::decode(std::as_bytes(std::span(words))));
  CHECK(decoded.code == ErrorCode::kProtocolVersion);
  CHECK(contains(decoded.message, "version " + std::to_string(kProtocolVersion + 1)));
}

TEST_CASE_TEMPLATE("messages decode at any alignment", Codec, Data, Control, Attach) {
  Random random(6);
  for (const auto& message : one_of_each<typename Codec::Message>(random)) {
    const Bytes bytes = Codec::encode(message);
    for (std::size_t offset = 0; offset < 8; ++offset) {
      Bytes shifted(bytes.size() + offset);
      std::copy(bytes.begin(), bytes.end(), shifted.begin() + static_cast<std::ptrdiff_t>(offset));
      const auto decoded = required(Codec::decode(std::span(shifted).subspan(offset)));
      CHECK(same(decoded, message));
    }
  }
}

TEST_CASE("a data header carries where its payload lies, whatever the message") {
  Random random(9);
  constexpr PayloadPlace kPlace{0x01234567, 3, 0x0123456789abcdef, 0xfedcba9876543210};
  alignas(8) std::byte space[kMaxErrorHeader];
  for (const DataMessage& message : one_of_each<DataMessage>(random)) {
    CAPTURE(message.index());
    PayloadPlace found;
    const auto decoded = required(decode_data(encode_data(message, space, kPlace), &found));
    CHECK(same(decoded, message));
    CHECK(found.link == kPlace.link);
    CHECK(found.region == kPlace.region);
    CHECK(found.offset == kPlace.offset);
    CHECK(found.bytes == kPlace.bytes);
    REQUIRE(decode_data(encode_data(message, space), &found));
    CHECK(found.link == 0);
    CHECK(found.bytes == 0);
  }
}

TEST_CASE("data headers fit their bounds, and a long error is cut") {
  Random random(7);
  alignas(8) std::byte out[kMaxErrorHeader];
  for (const auto& message : one_of_each<DataMessage>(random)) {
    if (std::holds_alternative<ErrorReply>(message)) continue;
    CHECK(encode_data(message, out).size() <= kMaxDataHeader);
  }
  ErrorReply error{.code = ErrorCode::kWrongLength, .message = std::string(100'001, '.')};
  for (std::size_t i = 1; i + 1 < error.message.size(); i += 2) error.message.replace(i, 2, "\xc3\xa9");
  const auto bytes = encode_data(error, out);
  CHECK(bytes.size() <= kMaxErrorHeader);
  const auto decoded = required(decode_data(bytes));
  const auto& text = std::get<ErrorReply>(decoded).message;
  CHECK(text.size() > 3000);
  CHECK(text.size() % 2 == 1);  // a dot and whole two-byte characters
  CHECK(text == error.message.substr(0, text.size()));
}

TEST_CASE("values that no peer of ours sends are refused by name") {
  const auto refusal = [](const ControlMessage& message) {
    const auto decoded = failure_of(decode_control(encode_control(message)));
    CHECK(decoded.code == ErrorCode::kMalformed);
    return decoded.message;
  };
  JoinJob join;
  join.tensors = {{std::string(kMaxNameBytes + 1, 'n'), {1}}};
  CHECK(contains(refusal(join), "a tensor's name has 1025 bytes"));
  join.tensors = {{"t", std::vector<std::uint64_t>(kMaxShapeDims + 1, 1)}};
  CHECK(contains(refusal(join), "a tensor's shape has 65 entries"));
  join.tensors.assign(kMaxTensors + 1, {});
  CHECK(contains(refusal(join), "the list of tensors has 1048577 entries"));
  join = {};
  join.computes_with = {std::string(kMaxComputeKindBytes + 1, 'k')};
  CHECK(contains(refusal(join), "what a rank computes with has 129 bytes"));
  join = {};
  for (std::size_t i = 0; i <= kMaxComputeKinds; ++i) join.computes_with.insert(std::to_string(i));
  CHECK(contains(refusal(join), "the list of what ranks compute with has 17 entries"));
  join = {};
  join.job_json = std::string(kMaxJobJsonBytes + 1, 'j');
  CHECK(contains(refusal(join), "the job configuration has 1048577 bytes"));
  LeaveJob leave;
  leave.kind = static_cast<LeaveKind>(4);
  CHECK(contains(refusal(leave), "the kind of leave is 4"));
  StopJob stop;
  stop.kind = static_cast<StopKind>(200);
  CHECK(contains(refusal(stop), "the kind of stop is 200"));
  CHECK(contains(refusal(ControlError{static_cast<ErrorCode>(23), "?"}), "the error code is 23"));
  ServerHello hello;
  hello.bandwidth = std::numeric_limits<double>::infinity();
  CHECK(contains(refusal(hello), "bandwidth"));
  CHECK(contains(refusal(WorkerHello{.bandwidth = std::nan("")}), "bandwidth"));
  RoundFacts facts;
  facts.chunks = {{ChunkIndex(0), {std::nan(""), 1, true}}};
  CHECK(contains(refusal(facts), "sum of squares"));
  facts.chunks = {{ChunkIndex(0), {std::nan(""), 1, false}}};
  CHECK(decode_control(encode_control(facts)));  // what is not finite has no sum
  RoundDecision decision;
  decision.decision = {GateVerdict::kClipped, std::nan(""), 1.0, 1.0f, 0};
  CHECK(contains(refusal(decision), "coefficient"));
  decision.decision = {GateVerdict::kApplied, 1.0, 1.0, 0.0f, 0};
  CHECK(contains(refusal(decision), "loss scale"));
  PeerAddress address;
  address.value.resize(kMaxPeerAddressBytes + 1);
  CHECK(contains(refusal(address), "the peer's address has 262145 bytes"));

  Push push;
  push.encoding = static_cast<EncodingId>(7);
  const auto decoded = failure_of(decode_data(encode_data_as_version(push, kProtocolVersion)));
  CHECK(contains(decoded.message, "the encoding is 7"));
  push.encoding = EncodingId::kFp32;
  push.residual = static_cast<ResidualUse>(3);
  const auto other = failure_of(decode_data(encode_data_as_version(push, kProtocolVersion)));
  CHECK(contains(other.message, "the use of the residual is 3"));
}

TEST_CASE("a long reason is cut by its sender instead of losing the message") {
  const StopRequest request{JobId(1), ViewId(2), std::string(1'000'000, 'r')};
  const auto decoded = required(decode_control(encode_control(request)));
  CHECK(std::get<StopRequest>(decoded).reason.size() == kMaxTextBytes);
}

TEST_CASE("a layout of a million chunks fits a control message and an attach message") {
  OpenJob open;
  open.chunk_elements = 262144;
  for (std::uint32_t i = 0; i < 1'000'000; ++i) {
    open.owners.push_back(
        {ShardIndex(static_cast<std::uint16_t>(i % 7)), LaneIndex(static_cast<std::uint16_t>(i % 3))});
  }
  for (int i = 0; i < 1000; ++i) open.tensors.push_back({"layer." + std::to_string(i) + ".weight", {1024, 4096}});
  const Bytes bytes = encode_control(open);
  CHECK(bytes.size() < kMaxControlBytes);
  const auto decoded = required(decode_control(bytes));
  CHECK(same(decoded, ControlMessage(open)));

  AttachReply reply;
  reply.owners = open.owners;
  const Bytes attach = encode_attach(reply);
  CHECK(attach.size() < kMaxAttachBytes);
  const auto attached = required(decode_attach(attach));
  CHECK(same(attached, AttachMessage(reply)));
}

TEST_CASE("overlapping pointers cannot make a small message decode into a large one") {
  // A JobWelcome whose 4000 lists of endpoints all point at the same list of texts.
  JobWelcome welcome;
  welcome.endpoints.assign(4000, {});
  welcome.endpoints[0].assign(1000, std::string(900, 'e'));
  Bytes bytes = encode_control(welcome);
  REQUIRE(decode_control(bytes).has_value());
  // Pointers of the list of lists are consecutive words; make each point where the first does.
  std::vector<std::uint64_t> words(bytes.size() / 8);
  std::memcpy(words.data(), bytes.data(), bytes.size());
  std::size_t first = 0;
  for (std::size_t i = 2; i < words.size() && first == 0; ++i) {
    // A list pointer (low bits 1) to 1000 pointers (element size 6): the inner list of endpoints.
    if ((words[i] & 3u) == 1 && words[i] >> 32 == (1000u << 3 | 6u)) first = i;
  }
  REQUIRE(first != 0);
  const auto offset = static_cast<std::int32_t>(static_cast<std::uint32_t>(words[first])) >> 2;
  for (std::size_t i = 1; i < 4000; ++i) {
    const auto moved = static_cast<std::uint32_t>((offset - static_cast<std::int32_t>(i)) * 4 + 1);
    words[first + i] = (words[first] & 0xffffffff00000000ull) | moved;
  }
  std::memcpy(bytes.data(), words.data(), bytes.size());
  const auto decoded = failure_of(decode_control(bytes));
  CHECK(decoded.code == ErrorCode::kMalformed);
}

}  // namespace tributary::codec_test
