// Encodings with error feedback and delta encodings in a node's client.
#include "tests/unit/worker/node/client_fixture.h"

namespace tributary::client_feedback_test {

using namespace testing;

TEST_CASE("an answer that names the next round's snapshot makes its push bring the residual, also when sent again") {
  Client client({.push = EncodingId::kInt8});
  client.begin(1);
  CHECK_FALSE(client.flight(0).wants_residual);
  client.ready(0, 1);
  CHECK(client.out.pushes.back().second.residual == ResidualUse::kNone);
  const std::vector<std::byte> payload(kBytes);
  Answer answer{client.key(0), Version(1), EncodingId::kFp32, Round(2), false};
  client.core.on_answer(answer, payload, client.now);
  REQUIRE(client.flight(0).wants_residual);
  client.ready(0, 2);
  CHECK(client.out.pushes.back().second.residual == ResidualUse::kBehind);
  client.resend(0, 2);
  CHECK(client.out.pushes.size() == 3);
  CHECK(client.out.pushes.back().second.residual == ResidualUse::kBehind);
  client.answer(0, 2);
  CHECK_FALSE(client.flight(0).wants_residual);
}

TEST_CASE("a resumed chunk begins only with its residual; if that is lost the pull is repeated") {
  Client client({.start = 5, .push = EncodingId::kInt8});
  client.core.start(client.now);
  const std::vector<std::byte> payload(kBytes);
  const Answer answer{client.key(0), Version(5), EncodingId::kFp32, Round(0), true};
  client.core.on_answer(answer, payload, client.now);
  CHECK(client.out.delivered.empty());
  client.pass(10'001 * kMs);
  CHECK(client.out.pulls.size() == 2);
  client.core.on_residual(Residual{client.key(0), Version(5)}, payload, client.now);
  CHECK(client.out.restored == std::vector<std::pair<ChunkIndex, std::size_t>>{{ChunkIndex(0), kBytes}});
  client.core.on_residual(Residual{client.key(0), Version(5)}, payload,
                          client.now);  // a second copy
  CHECK(client.out.restored.size() == 1);
  client.core.on_answer(answer, payload, client.now);
  CHECK(client.out.delivered.size() == 1);
  CHECK(client.out.refusals.empty());
}

TEST_CASE("a residual that does not fit the chunk is the server's mistake") {
  Client client({.push = EncodingId::kInt8});
  client.core.start(client.now);
  client.core.on_residual(Residual{client.key(0), Version(0)}, std::vector<std::byte>(8), client.now);
  REQUIRE(client.out.refusals.size() == 1);
  CHECK(client.out.refusals[0].code == ErrorCode::kWrongLength);
}

TEST_CASE("a node that leaves sends every residual within its window until each is acknowledged as such") {
  Client client({.chunks = 3, .push = EncodingId::kInt8, .window = kBytes});
  client.begin(3);
  client.ready(0, 1);  // will not be answered any more
  client.out.clear();
  client.core.keep_residuals(client.now);
  REQUIRE(client.out.pushes.size() == 1);
  const Push& push = client.out.pushes[0].second;
  CHECK(push.residual == ResidualUse::kAlone);
  CHECK(push.round == Round(0));
  client.ready(1, 1);  // of devices that were still at it when the view ended
  CHECK(client.out.pushes.size() == 1);
  const auto kept = [&](std::uint32_t chunk) {
    client.core.on_ack(Ack{client.key(chunk), Round(0), true}, client.now);
  };
  client.ack(0, 0);  // of something else
  CHECK(client.out.pushes.size() == 1);
  kept(0);
  CHECK(client.out.pushes.size() == 2);
  client.pass(9'900 * kMs);  // it may only be slow
  CHECK(client.out.pushes.size() == 2);
  const std::uint64_t heard = client.core.stats().heard;
  client.answer(2, 0);  // late, and sent before what is waited for: the link gets on
  CHECK(client.core.stats().heard == heard + 1);
  client.pass(9'900 * kMs);
  CHECK(client.out.pushes.size() == 2);
  client.pass(200 * kMs);  // lost: sent again
  CHECK(client.out.pushes.size() == 3);
  CHECK(client.out.pushes[2].second.key.chunk == ChunkIndex(1));
  kept(1);
  kept(1);
  CHECK_FALSE(client.core.residuals_kept());
  kept(2);
  CHECK(client.core.residuals_kept());
  client.core.on_error(ErrorReply{client.key(0), Round(0), ErrorCode::kUnknownJob, "over"}, client.now);
  CHECK(client.out.refusals.empty());
}

TEST_CASE("a node that leaves sends no residual again to a server that has closed the view") {
  Client client({.chunks = 2, .push = EncodingId::kInt8, .window = kBytes});
  client.begin(2);
  client.core.keep_residuals(client.now);
  const auto closed = [&](std::uint32_t chunk, ErrorCode code) {
    client.core.on_error(ErrorReply{client.key(chunk), Round(0), code, "over"}, client.now);
  };
  closed(0, ErrorCode::kInternal);  // it may take it the next time
  CHECK(client.core.kept_chunks() == 0);
  closed(0, ErrorCode::kUnknownJob);  // the ack was lost, and the server is through
  CHECK(client.core.kept_chunks() == 1);
  CHECK(client.out.pushes.size() == 2);
  closed(1, ErrorCode::kStaleView);
  CHECK(client.core.residuals_kept());
  CHECK(client.core.in_flight_bytes() == 0);
  CHECK(client.out.refusals.empty());
}

TEST_CASE("of a delta encoding the first answer is whole and the others are changes") {
  Client client({.pull = EncodingId::kInt8Delta});
  client.core.start(client.now);
  client.answer(0, 0);
  REQUIRE(client.out.delivered.size() == 1);
  CHECK(client.out.whole_[0]);
  client.ready(0, 1);
  const std::vector<std::byte> bf16(kBytes / 2);
  client.core.on_answer(Answer{client.key(0), Version(1), EncodingId::kBf16}, bf16, client.now);
  REQUIRE(client.out.refusals.size() == 1);  // not what an answer of this job may be
  const std::vector<std::byte> change(make_encoding(EncodingId::kInt8Delta)->bytes(kChunk));
  client.core.on_answer(Answer{client.key(0), Version(1), EncodingId::kInt8Delta}, change, client.now);
  REQUIRE(client.out.delivered.size() == 2);
  CHECK_FALSE(client.out.whole_[1]);
}

TEST_CASE("a repeated pull that reaches the server late brings the awaited round whole, which is as good") {
  Client client({.pull = EncodingId::kInt8Delta});
  client.core.start(client.now);
  client.answer(0, 0);
  client.ready(0, 1);
  client.answer(0, 1);  // fp32
  REQUIRE(client.out.delivered.size() == 2);
  CHECK(client.out.whole_[1]);
  const std::vector<std::byte> change(make_encoding(EncodingId::kInt8Delta)->bytes(kChunk));
  client.core.on_answer(Answer{client.key(0), Version(1), EncodingId::kInt8Delta}, change,
                        client.now);  // the delta comes after all: it must not be added again
  CHECK(client.out.delivered.size() == 2);
  CHECK(client.out.refusals.empty());
}

}  // namespace tributary::client_feedback_test
