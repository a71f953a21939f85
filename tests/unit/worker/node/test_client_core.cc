#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <variant>
#include <vector>

#include "tests/unit/worker/node/client_fixture.h"

namespace tributary::client_core_test {

using namespace testing;

TEST_CASE("at the start every chunk is pulled, in flat order, within the window") {
  Client client({.chunks = 6, .connections = 2, .window = 4 * kBytes});
  client.core.start(client.now);
  REQUIRE(client.out.pulls.size() == 4);
  std::vector<std::uint32_t> of[2];
  for (const auto& [connection, pull] : client.out.pulls) {
    CHECK(pull.key.chunk.value % 2 == connection.value);
    of[connection.value].push_back(pull.key.chunk.value);
  }
  CHECK(of[0] == std::vector<std::uint32_t>{0, 2});
  CHECK(of[1] == std::vector<std::uint32_t>{1, 3});
  client.answer(0, 0);
  CHECK(client.out.pulls.size() == 5);
  CHECK(client.out.pulls.back().second.key.chunk == ChunkIndex(4));
  CHECK_FALSE(client.core.started());
  for (std::uint32_t c = 1; c < 6; ++c) client.answer(c, 0);
  CHECK(client.core.started());
  CHECK(client.out.delivered.size() == 6);
  CHECK(client.flight(5).idle());
  CHECK(client.core.in_flight_bytes() == 0);
}

TEST_CASE("node 0 of a fresh job sends nothing before the initial values, then Init before Pull") {
  Client client({.chunks = 2, .init = true});
  client.core.start(client.now);
  client.pass(60'000 * kMs);
  CHECK(client.out.pulls.empty());
  client.core.initial_values_ready(client.now);
  CHECK(client.out.inits.size() == 2);
  CHECK(client.out.pulls.size() == 2);
  client.answer(0, 0);
  client.core.initial_values_ready(client.now);  // said twice
  CHECK(client.out.inits.size() == 2);
  CHECK_FALSE(client.core.started());
  client.answer(1, 0);
  CHECK(client.core.started());
}

TEST_CASE("a resumed job takes only the round that it resumes from") {
  Client client({.start = 40});
  client.core.start(client.now);
  client.answer(0, 39);
  client.answer(0, 41);
  CHECK(client.out.delivered.empty());
  CHECK(client.core.stats().stale == 2);
  client.answer(0, 40);
  REQUIRE(client.out.delivered.size() == 1);
  client.ready(0, 41);
  REQUIRE(client.out.pushes.size() == 1);
  CHECK(client.out.pushes[0].second.round == Round(41));
}

TEST_CASE("a first pull that stays without answer is repeated, with the initial values") {
  Client client({.init = true});
  client.core.initial_values_ready(client.now);
  client.pass(9'900 * kMs);
  CHECK(client.out.pulls.size() == 1);
  client.pass(200 * kMs);
  CHECK(client.out.pulls.size() == 2);
  CHECK(client.out.inits.size() == 2);
  CHECK(client.core.in_flight_bytes() == kBytes);
  client.answer(0, 0);
  CHECK(client.core.in_flight_bytes() == 0);
}

TEST_CASE("a first pull is repeated less and less often: many servers may share a slow link") {
  Client client;
  client.core.start(client.now);
  std::vector<std::uint64_t> after;  // seconds
  for (std::uint64_t s = 1; s <= 320; ++s) {
    const std::size_t before = client.out.pulls.size();
    client.pass(1000 * kMs);
    if (client.out.pulls.size() > before) after.push_back(s);
  }
  CHECK(after == std::vector<std::uint64_t>{10, 30, 70, 150, 310});
  client.answer(0, 0);
  CHECK(client.core.started());
}

TEST_CASE("while servers say something nothing is sent again: what is missing may be behind it") {
  Client client({.chunks = 3, .connections = 3});
  client.core.start(client.now);
  client.pass(8'000 * kMs);
  client.answer(0, 0);
  client.pass(8'000 * kMs);
  CHECK(client.out.pulls.size() == 3);
  client.ready(0, 1);
  client.ack(0, 1);
  client.pass(9'900 * kMs);
  CHECK(client.out.pulls.size() == 3);
  client.pass(200 * kMs);
  CHECK(client.out.pulls.size() == 5);
  CHECK(client.out.queries.size() == 1);
}

TEST_CASE("of what waits for the window the chunk that was ready first goes first") {
  Client client({.chunks = 5, .window = kBytes});
  client.begin(5);
  for (const std::uint32_t chunk : {4u, 2u, 3u, 0u, 1u}) client.ready(chunk, 1);
  CHECK(client.out.pushed_chunks() == std::vector<std::uint32_t>{4});
  for (const std::uint32_t chunk : {4u, 2u, 3u, 0u, 1u}) client.ack(chunk, 1);
  CHECK(client.out.pushed_chunks() == std::vector<std::uint32_t>{4, 2, 3, 0, 1});
}

TEST_CASE("two nodes of which one is ahead send the same chunks in the same order") {
  // A backward pass that gives the last layers first, on one node faster than its link takes it.
  Client ahead({.chunks = 6, .window = kBytes}), behind({.chunks = 6, .window = kBytes});
  for (Client* client : {&ahead, &behind}) client->begin(6);
  for (std::uint32_t c = 6; c-- > 0;) ahead.ready(c, 1);
  for (std::uint32_t c = 6; c-- > 0;) {
    behind.ready(c, 1);
    for (Client* client : {&ahead, &behind}) client->ack(c, 1);
  }
  CHECK(ahead.out.pushed_chunks() == behind.out.pushed_chunks());
}

TEST_CASE("of what waits for the window any chunk may leave, and the others keep their order") {
  Client client({.chunks = 5, .window = kBytes});
  client.begin(5);
  for (const std::uint32_t chunk : {3u, 0u, 4u, 1u}) {
    client.ready(chunk, 1);
    client.ack(chunk, 1);
  }
  client.ready(2, 1);  // fills the window
  for (const std::uint32_t chunk : {3u, 0u, 4u, 1u}) client.resend(chunk, 1);
  client.answer(4, 1);  // from the middle
  client.answer(3, 1);  // the first
  client.ready(4, 2);
  client.answer(4, 2);  // the last
  client.ready(3, 2);
  client.out.clear();
  client.ack(2, 1);
  client.ack(0, 1);
  client.ack(1, 1);
  client.ack(3, 2);
  CHECK(client.out.pushed_chunks() == std::vector<std::uint32_t>{0, 1, 3});
}

TEST_CASE("the window counts what is unacknowledged over all connections, and an ack frees it") {
  Client client({.chunks = 8, .connections = 2, .window = 4 * kBytes});
  client.begin(8);
  for (std::uint32_t c = 0; c < 8; ++c) client.ready(c, 1);
  CHECK(client.out.pushes.size() == 4);
  CHECK(client.core.in_flight_bytes() == 4 * kBytes);
  client.ack(0, 1);
  CHECK(client.out.pushed_chunks().back() == 4);
  client.answer(1, 1);  // the answer itself acknowledges too
  CHECK(client.out.pushed_chunks().back() == 5);
  CHECK(client.core.in_flight_bytes() == 4 * kBytes);
}

TEST_CASE("pushes that wait for other nodes are counted until they are answered or sent again") {
  Client client({.chunks = 32, .window = 32 * kBytes, .over_link = true});
  client.begin(32);
  for (std::uint32_t c = 0; c < 32; ++c) client.ready(c, 1);
  // Quick acknowledgements, quickly answered: the window grows.
  std::uint32_t next = 0;
  for (; next < 16; ++next) {
    client.now += 10 * kMs / 100;
    client.ack(next, 1);
    client.answer(next, 1);
  }
  const std::uint64_t level = client.core.window().window_bytes();
  const auto payloads = static_cast<std::uint32_t>(level / kBytes);
  REQUIRE(payloads > 4);
  REQUIRE(next + payloads + 1 < 32);
  for (std::uint32_t i = 0; i <= payloads; ++i) client.ack(next + i, 1);  // other nodes are behind
  CHECK(client.core.window().window_bytes() == 2 * kBytes);
  SUBCASE("answered") {
    client.answer(next, 1);
    client.answer(next + 1, 1);
  }
  SUBCASE("sent again") {
    client.resend(next, 1);
    client.resend(next + 1, 1);
  }
  CHECK(client.core.window().window_bytes() >= level);
}

TEST_CASE("a node does not run ahead at a fast server while a slow one keeps its pushes") {
  Client client({.chunks = 16, .connections = 2, .window = 4 * kBytes});
  client.begin(16);
  for (std::uint32_t c = 0; c < 16; ++c) client.ready(c, 1);
  // Connection 0 (even chunks) acknowledges at once, connection 1 never: two of its pushes ...
  for (std::uint32_t even = 0; even < 16; even += 2) {
    if (std::ranges::count(client.out.pushed_chunks(), even) == 1) client.ack(even, 1);
  }
  // ... then all four places of the window are its own.
  CHECK(client.out.pushed_chunks() == std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(client.core.in_flight_bytes() == 4 * kBytes);
}

TEST_CASE("an ack does not end the round, its answer does, once") {
  Client client;
  client.begin(1);
  client.ready(0, 1);
  CHECK(client.out.pushes[0].second.weight == 1);
  client.ack(0, 1);
  CHECK_FALSE(client.flight(0).idle());
  client.answer(0, 1);
  CHECK(client.flight(0).idle());
  CHECK(client.flight(0).version == Version(1));
  CHECK(client.out.delivered.size() == 1);
  client.answer(0, 1);
  CHECK(client.out.delivered.size() == 1);
  CHECK(client.core.stats().stale == 1);
}

TEST_CASE("what belongs to nothing that is open is counted and dropped") {
  Client client({.chunks = 2});
  client.begin(2);
  client.ack(0, 1);
  client.resend(0, 1);
  client.answer(0, 0);
  CHECK(client.core.stats().stale == 3);
  client.ready(0, 1);
  client.ack(0, 2);
  client.ack(0, 0);
  client.resend(0, 2);
  client.answer(0, 0);
  client.answer(0, 2);
  CHECK(client.core.stats().stale == 8);
  const auto foreign = [&](ChunkKey key) {
    const std::uint64_t before = client.core.stats().stale;
    const std::vector<std::byte> payload(kBytes);
    client.core.on_answer(Answer{key, Version(1), EncodingId::kFp32}, payload, client.now);
    client.core.on_ack(Ack{key, Round(1)}, client.now);
    client.core.on_resend(Resend{key, Round(1)}, client.now);
    CHECK(client.core.stats().stale == before + 3);
  };
  foreign({JobId(1), kView, NodeRank(0), ChunkIndex(0)});
  foreign({kJob, ViewId(2), NodeRank(0), ChunkIndex(0)});
  foreign({kJob, kView, NodeRank(1), ChunkIndex(0)});
  foreign({kJob, kView, NodeRank(0), ChunkIndex(2)});
  foreign({kJob, kView, NodeRank(0), ChunkIndex(~0u)});
  CHECK(client.out.delivered.empty());
  CHECK(client.core.in_flight_bytes() == kBytes);
  client.answer(0, 1);
  CHECK(client.out.delivered.size() == 1);
}

TEST_CASE("a last push says so, also when it is sent again, and the ones before do not") {
  Client client;
  client.begin(1);
  client.ready(0, 1);
  client.answer(0, 1);
  client.ready(0, 2, true);
  client.resend(0, 2);
  REQUIRE(client.out.pushes.size() == 3);
  CHECK_FALSE(client.out.pushes[0].second.last);
  CHECK(client.out.pushes[1].second.last);
  CHECK(client.out.pushes[2].second.last);
}

TEST_CASE("an answer of a wrong length or encoding is refused in words and not delivered") {
  Client client;
  client.begin(1);
  client.ready(0, 1);
  client.answer(0, 1, kBytes - 4);
  REQUIRE(client.out.refusals.size() == 1);
  CHECK(client.out.refusals[0].code == ErrorCode::kWrongLength);
  CHECK(contains(client.out.refusals[0].message, "chunk 0"));
  CHECK(contains(client.out.refusals[0].message, "4092"));
  CHECK(contains(client.out.refusals[0].message, "4096"));
  const std::vector<std::byte> half(kBytes / 2);
  client.core.on_answer(Answer{client.key(0), Version(1), EncodingId::kBf16}, half, client.now);
  REQUIRE(client.out.refusals.size() == 2);
  CHECK(contains(client.out.refusals[1].message, "bf16"));
  CHECK(client.out.delivered.empty());
  CHECK_FALSE(client.flight(0).idle());
}

TEST_CASE("a server's error about this view is passed on, another's is stale") {
  Client client;
  client.begin(1);
  client.core.on_error(ErrorReply{client.key(0), Round(1), ErrorCode::kStaleView, "too old"}, client.now);
  REQUIRE(client.out.refusals.size() == 1);
  CHECK(client.out.refusals[0].message == "too old");
  client.core.on_error(ErrorReply{{kJob, ViewId(1), {}, {}}, Round(1), ErrorCode::kStaleView, ""}, client.now);
  CHECK(client.out.refusals.size() == 1);
  CHECK(client.core.stats().stale == 1);
}

TEST_CASE("an error about a round whose answer has come is of the past: the server has closed the job since") {
  Client client;
  client.begin(1);
  client.ready(0, 1);
  client.answer(0, 1);
  client.core.on_error(ErrorReply{client.key(0), Round(1), ErrorCode::kUnknownJob, "closed"}, client.now);
  CHECK(client.out.refusals.empty());
  client.core.on_error(ErrorReply{client.key(0), Round(2), ErrorCode::kUnknownJob, "closed"}, client.now);
  CHECK(client.out.refusals.size() == 1);
}

TEST_CASE("an error without a key is about a message that the server could not read: the job hears of it") {
  Client client;
  client.begin(1);
  // It had no memory for it: that is tried again.
  client.core.on_error(ErrorReply{{}, {}, ErrorCode::kInternal, "no memory"}, client.now);
  CHECK(client.out.refusals.empty());
  client.core.on_error(ErrorReply{{}, {}, ErrorCode::kMalformed, "a verdict that cannot be"}, client.now);
  REQUIRE(client.out.refusals.size() == 1);
  CHECK(client.out.refusals[0].code == ErrorCode::kMalformed);
  CHECK(contains(client.out.refusals[0].message, "a verdict that cannot be"));
}

TEST_CASE("an unacknowledged push is asked about, and sent again only if the server lacks it") {
  Client client;
  client.begin(1);
  client.ready(0, 1);
  client.pass(1'900 * kMs);
  CHECK(client.out.queries.empty());
  client.pass(200 * kMs);
  REQUIRE(client.out.queries.size() == 1);
  CHECK(client.out.queries[0].second.round == Round(1));
  client.pass(1'000 * kMs);
  CHECK(client.out.queries.size() == 1);
  client.pass(1'100 * kMs);
  CHECK(client.out.queries.size() == 2);
  CHECK(client.out.pushes.size() == 1);
  SUBCASE("the server lacks it") {
    client.resend(0, 1);
    REQUIRE(client.out.pushes.size() == 2);
    CHECK(client.out.pushes[1].second.round == Round(1));
    CHECK(client.core.stats().resends == 1);
  }
  SUBCASE("the server has it") {
    client.ack(0, 1);
  }
  SUBCASE("the server has answered it") {}
  client.answer(0, 1);
  CHECK(client.flight(0).idle());
  CHECK(client.core.in_flight_bytes() == 0);
  client.out.clear();
  client.pass(60'000 * kMs);
  CHECK(client.out.queries.empty());
}

TEST_CASE("a held push is asked about rarely, and sent again if the server has lost it") {
  Client client({.chunks = 2, .window = kBytes});
  client.begin(2);
  client.ready(0, 1);
  client.ack(0, 1);
  client.pass(9'900 * kMs);
  CHECK(client.out.queries.empty());
  client.pass(200 * kMs);
  CHECK(client.out.queries.size() == 1);
  client.ready(1, 1);  // takes the window
  client.resend(0, 1);
  CHECK(client.out.pushed_chunks() == std::vector<std::uint32_t>{0, 1});
  client.ack(1, 1);
  CHECK(client.out.pushed_chunks() == std::vector<std::uint32_t>{0, 1, 0});
  client.answer(0, 1);
  client.answer(1, 1);
  CHECK(client.core.in_flight_bytes() == 0);
}

TEST_CASE("an answer that overtakes a queued repetition makes it needless") {
  Client client({.chunks = 2, .window = kBytes});
  client.begin(2);
  client.ready(0, 1);
  client.ack(0, 1);
  client.ready(1, 1);
  client.resend(0, 1);  // queued behind the window
  client.ack(0, 1);     // late
  client.answer(0, 1);
  CHECK(client.flight(0).idle());
  client.answer(1, 1);
  CHECK(client.out.pushed_chunks() == std::vector<std::uint32_t>{0, 1});
  client.ready(0, 2);
  CHECK(client.out.pushes.back().second.round == Round(2));
}

TEST_CASE("a link with slow acknowledgements is given more patience") {
  Client client;
  client.begin(1);
  for (std::uint64_t round = 1; round <= 30; ++round) {
    client.ready(0, round);
    client.now += 1'000 * kMs;
    client.answer(0, round);
  }
  client.ready(0, 31);
  client.pass(5'000 * kMs);
  CHECK(client.out.queries.empty());  // 2 s and 8 times the usual second
  client.pass(5'200 * kMs);
  CHECK(client.out.queries.size() == 1);
}

TEST_CASE("a repeated push tells nothing about the link") {
  Client client;
  client.begin(1);
  client.ready(0, 1);
  client.pass(50'000 * kMs);
  client.resend(0, 1);
  client.now += 40'000 * kMs;
  client.answer(0, 1);
  client.ready(0, 2);
  client.pass(2'100 * kMs);  // no more patient than at first
  CHECK(client.out.queries.size() == 2);
}

TEST_CASE("a server on this machine tells nothing about the link to the others") {
  Client client({.chunks = 2, .connections = 2});
  client.core.crosses_no_link(ConnectionIndex(0));
  client.begin(2);
  client.ready(0, 1);
  client.now += 1 * kMs;
  client.ack(0, 1);
  CHECK(client.core.window().base_rtt_ns() == 0);
  client.ready(1, 1);
  client.now += 9 * kMs;
  client.ack(1, 1);
  CHECK(client.core.window().base_rtt_ns() == 9 * kMs);
}

TEST_CASE("stats count payload bytes as they travel") {
  Client client({.push = EncodingId::kBf16});
  client.begin(1);
  client.ready(0, 1);
  CHECK(client.core.stats().pushes == 1);
  CHECK(client.core.stats().push_bytes == kBytes / 2);
  client.answer(0, 1);
  CHECK(client.core.stats().answers == 2);
  CHECK(client.core.stats().bytes_pulled == 2 * kBytes);
}

// The trap of a window that counts unanswered pushes: node 0 pushes from the front, node 1 from the back, each with a
// window of one chunk; an answer needs both.
TEST_CASE("two nodes that push in opposite orders do not wait for each other for ever") {
  constexpr std::uint32_t kChunks = 8;
  Shard shard({.elements = kChunks * kChunk, .nodes = 2});
  shard.init(0.0f);
  Client clients[2] = {Client({.chunks = kChunks, .node = 0, .window = kBytes}),
                       Client({.chunks = kChunks, .node = 1, .window = kBytes})};
  for (Client& client : clients) client.core.start(client.now);
  const std::vector<std::byte> gradient = frame_of(kChunk, 1.0f);
  // One message of each node at a time, each carried to the shard and its replies back.
  const auto carry = [&](Client& client, std::uint32_t node) {
    bool moved = false;
    for (const auto& [connection, pull] : std::exchange(client.out.pulls, {})) {
      shard.core.on_pull(peer_of(node), pull);
      moved = true;
    }
    for (const auto& [connection, push] : std::exchange(client.out.pushes, {})) {
      shard.core.on_push(peer_of(node), push, payload_of(gradient));
      moved = true;
    }
    ShardRecorder said;
    std::swap(said, shard.out);
    for (auto& [to, ack] : said.acks) {
      clients[to.value - peer_of(0).value].core.on_ack(ack, client.now);
    }
    for (auto& sent : said.answers) {
      clients[sent.to.value - peer_of(0).value].core.on_answer(sent.header, sent.payload.bytes(), client.now);
    }
    return moved;
  };
  const auto settle = [&] {
    for (bool moved = true; moved;) {
      moved = carry(clients[0], 0);
      moved = carry(clients[1], 1) || moved;
    }
  };
  settle();
  for (std::uint32_t i = 0; i < kChunks; ++i) {
    clients[0].ready(i, 1);
    clients[1].ready(kChunks - 1 - i, 1);
    settle();
  }
  for (Client& client : clients) {
    for (std::uint32_t c = 0; c < kChunks; ++c) CHECK(client.flight(c).version == Version(1));
  }
}

TEST_CASE("the link's rates count what goes to other machines, and all of it if nothing does") {
  // Chunks go to two servers in turns; everything of a round arrives 1 ms after the one before.
  const auto rates = [](bool over_link, bool first_is_local) {
    Client client({.chunks = 64, .connections = 2, .over_link = over_link});
    if (first_is_local) client.core.crosses_no_link(ConnectionIndex(0));
    client.begin(64);
    client.pass(1000 * kMs);
    for (std::uint64_t round = 1; round <= 2; ++round) {
      for (std::uint32_t c = 0; c < 64; ++c) client.ready(c, round);
      for (std::uint32_t c = 0; c < 64; ++c) {
        client.now += kMs;
        client.ack(c, round);
        client.answer(c, round);
      }
      client.pass(1000 * kMs);
    }
    return std::pair{client.core.push_rate(), client.core.answer_rate()};
  };
  const double whole = static_cast<double>(kBytes) / 1e-3;
  CHECK(rates(true, false).first == doctest::Approx(whole));
  CHECK(rates(true, false).second == doctest::Approx(whole));
  CHECK(rates(false, true).first == doctest::Approx(whole));
  CHECK(rates(true, true).first == doctest::Approx(whole / 2));
  CHECK(rates(true, true).second == doctest::Approx(whole / 2));
}

}  // namespace tributary::client_core_test
