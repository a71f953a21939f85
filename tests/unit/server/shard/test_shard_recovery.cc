// A shard's state beyond its view.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/shard/core_fixture.h"

namespace tributary::shard_recovery_test {

using namespace testing;

namespace {

ShardSetup recovering(std::uint32_t nodes = 2) {
  ShardSetup setup{.nodes = nodes, .recovers = true};
  return setup;
}

ShardJob next_view(const Shard& shard, const ShardSetup& setup) {
  return in_view(shard.job(setup), ViewId(kView.value + 1));
}

ChunkKey key_in(const ShardJob& job, std::uint32_t node) {
  return {job.view->job, job.view->view, NodeRank(node), ChunkIndex(0)};
}

}  // namespace

TEST_CASE("a shard goes on in the next view, with the parameters of both rounds that nodes may begin at") {
  const ShardSetup setup = recovering();
  Shard shard(setup, 10.0f);
  for (std::uint64_t round = 1; round <= 3; ++round) {
    for (std::uint32_t node = 0; node < 2; ++node) shard.push(node, round, 2.0f);
  }
  shard.push(1, 4, 2.0f);  // held, and lost with the view
  REQUIRE(shard.version() == 3);
  shard.core.stop(false, Round());
  const ShardJob job = next_view(shard, setup);
  REQUIRE(shard.core.reopen(job));
  shard.out.clear();
  shard.push(0, 4, 2.0f);
  REQUIRE(shard.out.errors.size() == 1);  // of the view before
  CHECK(shard.out.errors[0].second.code == ErrorCode::kStaleView);

  shard.core.on_pull(peer_of(0), Pull{key_in(job, 0), Version(2)});
  shard.core.on_pull(peer_of(1), Pull{key_in(job, 1), Version(3)});
  REQUIRE(shard.out.answers.size() == 2);
  CHECK(shard.out.answers[0].header.version == Version(2));
  CHECK(all_equal(shard.out.answers[0].payload.floats(), 6.0f));
  CHECK(shard.out.answers[1].header.version == Version(3));
  CHECK(all_equal(shard.out.answers[1].payload.floats(), 4.0f));
  // Node 0 begins at round 2: its push of round 3 is known.
  shard.out.clear();
  shard.core.on_push(peer_of(0), Push{key_in(job, 0), Round(3), 1, {}}, payload_of(frame_of(kChunk, 99.0f, {})));
  REQUIRE(shard.out.answers.size() == 1);
  CHECK(all_equal(shard.out.answers[0].payload.floats(), 4.0f));
  for (std::uint32_t node = 0; node < 2; ++node) {
    shard.core.on_push(peer_of(node), Push{key_in(job, node), Round(4), 1, {}}, payload_of(frame_of(kChunk, 1.0f, {})));
  }
  CHECK(shard.version() == 4);
  CHECK(all_equal(shard.params(), 3.0f));
}

TEST_CASE("a shard goes on with another number of nodes") {
  const ShardSetup two = recovering(2), three = recovering(3);
  Shard shard(two, 0.0f);
  shard.core.stop(false, Round());
  const ShardJob job = next_view(shard, three);
  REQUIRE(shard.core.reopen(job));
  for (std::uint32_t node = 0; node < 3; ++node) {
    CHECK(shard.version() == 0);
    shard.core.on_push(peer_of(node), Push{key_in(job, node), Round(1), 1, {}}, payload_of(frame_of(kChunk, 3.0f, {})));
  }
  CHECK(shard.version() == 1);
  CHECK(all_equal(shard.params(), -3.0f));
}

TEST_CASE("rounds that are pushed again are applied in order and acknowledged without parameters") {
  const ShardSetup setup = recovering();
  Shard shard(setup, 10.0f);
  const auto redo = [&](std::uint32_t node, std::uint64_t round) {
    Push push{Shard::key(node), Round(round), 1, {}};
    push.redo = true;
    shard.core.on_push(peer_of(node), push, payload_of(frame_of(kChunk, 2.0f, {})));
  };
  // A pull of parameters that are not restored yet waits.
  shard.core.on_pull(peer_of(1), Pull{Shard::key(1), Version(2)});
  CHECK(shard.out.answers.empty());
  redo(0, 1);
  REQUIRE(shard.out.acks.size() == 1);
  CHECK_FALSE(shard.out.acks[0].second.applied);
  redo(1, 1);
  CHECK(shard.version() == 1);
  CHECK(shard.out.answers.empty());
  std::size_t applied = 0;
  for (const auto& [to, ack] : shard.out.acks) applied += ack.applied && ack.round == Round(1) ? 1 : 0;
  CHECK(applied == 2);
  shard.out.clear();
  SUBCASE("a second copy is acknowledged again") {
    redo(0, 1);
    REQUIRE(shard.out.acks.size() == 1);
    CHECK(shard.out.acks[0].second.applied);
    CHECK(shard.version() == 1);
  }
  SUBCASE("so is who asks") {
    shard.core.on_query(peer_of(0), Query{Shard::key(0), Round(1), true});
    REQUIRE(shard.out.acks.size() == 1);
    CHECK(shard.out.acks[0].second.applied);
    shard.core.on_query(peer_of(0), Query{Shard::key(0), Round(2), true});
    CHECK(shard.out.resends.size() == 1);
  }
  SUBCASE("then the pull is answered") {
    redo(0, 2);
    redo(1, 2);
    REQUIRE(shard.out.answers.size() == 1);
    CHECK(shard.out.answers[0].to == peer_of(1));
    CHECK(shard.out.answers[0].header.version == Version(2));
    CHECK(all_equal(shard.out.answers[0].payload.floats(), 6.0f));
  }
}

TEST_CASE("the step before the last one is in the answers' encoding") {
  ShardSetup setup = recovering(1);
  setup.pull = EncodingId::kBf16;
  Shard shard(setup, 10.0f);
  shard.push(0, 1, 2.0f);
  shard.out.clear();
  shard.core.on_pull(peer_of(0), Pull{Shard::key(0), Version(0)});
  REQUIRE(shard.out.answers.size() == 1);
  CHECK(shard.out.answers[0].header.version == Version(0));
  CHECK(shard.out.answers[0].payload.size() == kChunk * 2);
  CHECK(shard.out.answers[0].payload.bytes()[1] == std::byte{0x41});  // 10 = 0x4120 in bf16
}

TEST_CASE(
    "where answers are changes, nodes that begin a round behind get what all held, and then that round's change") {
  ShardSetup setup = recovering(1);
  setup.pull = EncodingId::kInt8Delta;
  Shard shard(setup, 10.0f);
  shard.push(0, 1, 2.0f);
  shard.push(0, 2, 0.3f);
  const std::vector<std::byte> change(shard.out.answers.back().payload.bytes().begin(),
                                      shard.out.answers.back().payload.bytes().end());
  shard.out.clear();
  shard.core.on_pull(peer_of(0), Pull{Shard::key(0), Version(1)});
  REQUIRE(shard.out.answers.size() == 1);
  CHECK(shard.out.answers[0].header.version == Version(1));
  CHECK(shard.out.answers[0].header.encoding == EncodingId::kFp32);
  std::vector<float> held(shard.out.answers[0].payload.floats().begin(), shard.out.answers[0].payload.floats().end());
  CHECK(held[0] == doctest::Approx(8.0f).epsilon(0.01));
  shard.push(0, 2, 0.3f);
  REQUIRE(shard.out.answers.size() == 2);
  CHECK(std::ranges::equal(shard.out.answers[1].payload.bytes(), change));
  make_encoding(EncodingId::kInt8Delta)->apply(change.data(), held.size(), held.data());
  shard.out.clear();
  shard.core.on_pull(peer_of(0), Pull{Shard::key(0), Version(2)});
  REQUIRE(shard.out.answers.size() == 1);
  CHECK(std::ranges::equal(shard.out.answers[0].payload.floats(), held));
}

TEST_CASE("a node that has the parameters already, as it would decode them, gets an answer without values") {
  for (const EncodingId pull : {EncodingId::kFp32, EncodingId::kBf16, EncodingId::kInt8Delta}) {
    ShardSetup setup = recovering(1);
    setup.pull = pull;
    Shard shard(setup, 10.0f);
    const auto encoding = make_encoding(pull);
    std::vector<float> held(kChunk, 10.0f);  // by the node
    for (std::uint64_t round = 1; round <= 2; ++round) {
      shard.out.clear();
      shard.push(0, round, 0.3f);
      REQUIRE(shard.out.answers.size() == 1);
      if (round == 2) break;  // that answer was lost
      encoding->apply(shard.out.answers[0].payload.data(), held.size(), held.data());
    }
    Pull said{Shard::key(0), Version(1)};
    said.digest = Checksum128::of(std::as_bytes(std::span(held)));
    shard.out.clear();
    shard.core.on_pull(peer_of(0), said);
    said.version = Version(2);
    shard.core.on_pull(peer_of(0), said);
    REQUIRE(shard.out.answers.size() == 2);
    CHECK(shard.out.answers[0].header.same);
    CHECK(shard.out.answers[0].header.version == Version(1));
    CHECK(shard.out.answers[0].payload.size() == 0);
    CHECK_FALSE(shard.out.answers[1].header.same);
    CHECK(shard.out.answers[1].header.version == Version(2));
    CHECK(shard.out.answers[1].payload.size() != 0);
    // One bit is enough.
    held[kChunk / 2] = std::nextafter(held[kChunk / 2], 0.0f);
    said.version = Version(1);
    said.digest = Checksum128::of(std::as_bytes(std::span(held)));
    shard.core.on_pull(peer_of(0), said);
    REQUIRE(shard.out.answers.size() == 3);
    CHECK_FALSE(shard.out.answers[2].header.same);
  }
}

TEST_CASE("a round without samples has the same parameters before and after") {
  Shard shard(recovering(1), 10.0f);
  shard.push(0, 1, 2.0f);
  shard.push(0, 2, 0.0f, 0, 0);
  shard.push(0, 3, 1.0f);
  shard.out.clear();
  shard.core.on_pull(peer_of(0), Pull{Shard::key(0), Version(2)});
  REQUIRE(shard.out.answers.size() == 1);
  CHECK(all_equal(shard.out.answers[0].payload.floats(), 8.0f));
  CHECK(all_equal(shard.params(), 7.0f));
}

TEST_CASE("steady training takes no buffers beyond its own, and a snapshot's are its own") {
  ShardSetup setup = recovering(1);
  setup.optimizer = "adam";
  Shard shard(setup, 1.0f);
  for (std::uint64_t round = 1; round <= 5; ++round) {
    shard.push(0, round, 1.0f);
    shard.out.clear();
    CHECK(shard.pool.in_use() <= chunk_arrays(shard.core.job()).steady());
  }
  CHECK(shard.core.stats().out_of_place_steps == 0);
  REQUIRE(shard.core.snapshot_at(Round(5)));
  REQUIRE(shard.out.snapshots.size() == 1);
  const float at_snapshot = shard.out.snapshots[0].state.params.floats()[0];
  for (std::uint64_t round = 6; round <= 8; ++round) shard.push(0, round, 1.0f);
  CHECK(shard.out.snapshots[0].state.params.floats()[0] == at_snapshot);
  CHECK(shard.version() == 8);
}

TEST_CASE("what is another training, or was not kept to go on from, is refused in words") {
  ShardSetup setup = recovering();
  std::string word;
  ShardSetup other = setup;
  SUBCASE("encoding") {
    other.push = EncodingId::kBf16;
    word = "encodings";
  }
  SUBCASE("no recovery") {
    setup.recovers = other.recovers = false;
    word = "not kept";
  }
  Shard shard(setup, 0.0f);
  shard.core.stop(false, Round());
  const auto status = failure_of(shard.core.reopen(next_view(shard, other)));
  CHECK(status.code == ErrorCode::kTopology);
  CHECK(contains(status.message, word));
}

TEST_CASE("initial values are refused by a shard that resumes, and the restore that follows is not disturbed") {
  ShardSetup setup{.start = 7, .resumes = true};
  Shard shard(setup, 1.0f);  // between Lane::open and the restores: from a node that is not in this view's picture
  REQUIRE(shard.out.errors.size() == 1);
  CHECK(shard.out.errors[0].first == peer_of(0));
  CHECK(contains(shard.out.errors[0].second.message, "resumes at round 7"));
  const std::vector<float> stored(kChunk, 5.0f);
  const auto restore = [&](std::uint32_t chunk) { return shard.core.restore(ChunkIndex(chunk), state_at(7, stored)); };
  REQUIRE(restore(0));
  CHECK(shard.version() == 7);
  CHECK(all_equal(shard.params(), 5.0f));
  // A store can say these.
  CHECK(contains(failure_of(restore(0)).message, "has its values already"));
  CHECK(contains(failure_of(restore(99)).message, "does not belong there"));
}

}  // namespace tributary::shard_recovery_test
