// Programs of one protocol version that are not of one release: additional fields of the newer one are skipped, fields
// missing from the older one have their defaults, and a kind that only one of them knows is refused by that name.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "common/wire/codec.h"
#include "common/wire/codec_fields.h"
#include "schema/attach.capnp.h"
#include "schema/control.capnp.h"
#include "schema/data.capnp.h"
#include "tests/unit/common/wire/newer.capnp.h"
#include "tests/unit/common/wire/random_message.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::evolution_test {
namespace {

using testing::same;
using Bytes = std::vector<std::byte>;

// A message with root `Root`, filled in by `fill`.
template <class Root>
Bytes said(auto&& fill) {
  capnp::MallocMessageBuilder builder;
  auto root = builder.initRoot<Root>();
  root.setProtocol(kProtocolVersion);
  fill(root);
  return codec::to_bytes(builder);
}

template <class Root>
void heard(const Bytes& bytes, auto&& look) {
  const auto done = codec::decode_root<bool, Root>(bytes, [&](typename Root::Reader root) {
    look(root);
    return true;
  });
  CHECK(done);
}

// Bodies without a single field of theirs, as a program says them to which all fields are new.
template <class Root, class Variant, class Decode>
void check_defaults(Decode decode) {
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    const auto one = [&]<class M>(std::in_place_type_t<M>) {
      const auto decoded = required(decode(said<Root>([](auto root) {
        if constexpr (codec::Listed<M>) {
          M::kWire.init(root);
        } else {
          M::kWire.set(root);
        }
      })));
      CAPTURE(decoded.index());
      CHECK(same(decoded, Variant(M{})));
    };
    (one(std::in_place_type<std::variant_alternative_t<I, typename VariantOf<Variant>::Type>>), ...);
  }
  (std::make_index_sequence<std::variant_size_v<typename VariantOf<Variant>::Type>>{});
}

TEST_CASE("the default of every field in the schema is that of its member: a field may be added") {
  check_defaults<wire::DataHeader, DataMessage>([](const Bytes& bytes) { return decode_data(bytes); });
  check_defaults<wire::ControlMessage, ControlMessage>([](const Bytes& bytes) { return decode_control(bytes); });
  check_defaults<wire::AttachMessage, AttachMessage>([](const Bytes& bytes) { return decode_attach(bytes); });
}

TEST_CASE("fields of a newer program are passed over") {
  const auto control = required(decode_control(said<newer::ControlMessage>([](newer::ControlMessage::Builder root) {
    root.setSent(99);
    auto body = root.initStopRequest();
    body.setJob(1);
    body.setView(2);
    body.setReason("because");
    body.setWithin(60);
    body.initDetails(2).set(1, "one more");
  })));
  CHECK(same(control, ControlMessage(StopRequest{JobId(1), ViewId(2), "because"})));

  const auto data = required(decode_data(said<newer::DataHeader>([](newer::DataHeader::Builder root) {
    root.setSent(99);
    root.setJob(1);
    root.setChunk(5);
    auto push = root.initPush();
    push.setRound(7);
    push.setEncoding(newer::Encoding::INT8);
    push.setUrgency(60);
  })));
  Push push{.key = {.job = JobId(1), .chunk = ChunkIndex(5)}, .round = Round(7), .encoding = EncodingId::kInt8};
  CHECK(same(data, DataMessage(push)));
}

TEST_CASE("a newer program finds defaults where this one says nothing") {
  heard<newer::ControlMessage>(encode_control(StopRequest{JobId(1), ViewId(2), "because"}), [](auto root) {
    REQUIRE(root.isStopRequest());
    CHECK(root.getSent() == 0);
    CHECK(root.getStopRequest().getReason() == "because");
    CHECK(root.getStopRequest().getWithin() == 7);
    CHECK(root.getStopRequest().getDetails().size() == 0);
  });
  alignas(8) std::byte space[kMaxErrorHeader];
  const auto header = encode_data(Push{.round = Round(7), .redo = true}, space, {.link = 3, .bytes = 64});
  heard<newer::DataHeader>({header.begin(), header.end()}, [](auto root) {
    REQUIRE(root.isPush());
    CHECK(root.getSent() == 0);
    CHECK(root.getLink() == 3);
    CHECK(root.getPush().getRound() == 7);
    CHECK(root.getPush().getRedo());
    CHECK(root.getPush().getUrgency() == 3);
  });
}

TEST_CASE("what an older program does not say has its default") {
  const auto join = required(decode_control(said<newer::ControlMessage>(
      [](newer::ControlMessage::Builder root) { root.initJoinJob().initAs<newer::OldJoinJob>().setJobJson("{}"); })));
  CHECK(same(join, ControlMessage(JoinJob{.job_json = "{}"})));
  const auto leave = required(decode_control(said<newer::ControlMessage>(
      [](newer::ControlMessage::Builder root) { root.initLeaveJob().initAs<newer::OldLeaveJob>().setNode(3); })));
  CHECK(same(leave, ControlMessage(LeaveJob{.node = NodeRank(3)})));
}

TEST_CASE("a kind that only newer programs know is refused by that name") {
  const auto check = [](const auto& decoded, std::size_t kind) {
    REQUIRE_FALSE(decoded);
    CHECK(decoded.error().code == ErrorCode::kUnknownKind);
    CHECK(testing::contains(decoded.error().message,
                            "of kind " + std::to_string(kind) + ", which this program does not know"));
  };
  check(decode_control(said<newer::ControlMessage>([](auto root) { root.initPraise().setReason("well done"); })),
        std::variant_size_v<ControlVariant>);
  check(decode_data(said<newer::DataHeader>([](auto root) { root.initPraise().setWords("well done"); })),
        std::variant_size_v<DataMessage>);
  check(decode_attach(said<newer::AttachMessage>([](auto root) { root.setPraise("well done"); })),
        std::variant_size_v<AttachMessage>);
}

}  // namespace
}  // namespace tributary::evolution_test
