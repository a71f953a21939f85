// Clients and a shard with backup workers over a network that loses, doubles and reorders: nodes of different speed
// train to the last round. Element k of every chunk counts the pushes of node k that are in it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/unit/client_fixture.h"

namespace tributary {

using namespace testing;

namespace {

constexpr std::uint32_t kChunks = 3;

struct Run {
  explicit Run(std::uint64_t seed)
      : random(seed),
        nodes(static_cast<std::uint32_t>(2 + random() % 3)),
        backups(static_cast<std::uint32_t>(1 + random() % (nodes - 1))),
        rounds(5 + random() % 15),
        lossy(random() % 2 == 0),
        shard(setup()) {
    shard.init(0.0f);
    for (std::uint32_t n = 0; n < nodes; ++n) {
      ends.push_back(std::make_unique<End>(*this, n));
      slow.push_back(1ull << random() % 6);
    }
    for (auto& end : ends) end->client.core.start(now);
    flush();
  }

  ShardSetup setup() const {
    ShardSetup s{.elements = kChunks * kChunk, .nodes = nodes};
    s.clocks.emplace();
    s.clocks->backups = backups;
    return s;
  }

  // A node: its client, and what its trainer has.
  struct End {
    End(Run& world, std::uint32_t number) : run(world), node(number), client({.chunks = kChunks, .node = number}) {}
    // As the trainer would: a gradient for all chunks when all have their answers, until the job is at its end.
    void ready() {
      computing = false;
      ++clock;
      for (std::uint32_t c = 0; c < kChunks; ++c) {
        const bool last = settled[c] + 1 >= run.rounds;
        client.core.gradient_ready(ChunkIndex(c), Round(clock), 1, run.now, last);
      }
    }
    void look() {
      for (; seen < client.out.delivered.size(); ++seen) {
        const Answer& answer = client.out.delivered[seen];
        const std::uint32_t c = answer.key.chunk.value;
        const bool goes_on = answer.version.value > 0 && settled[c] < run.rounds;
        CHECK(answer.slowest.value >= settled[c] + (goes_on ? 1 : 0));
        settled[c] = answer.slowest.value;
        if (answer.version.value == 0) continue;
        ++(answer.dropped ? dropped : counted)[c];
      }
      if (computing || done()) return;
      for (std::uint32_t c = 0; c < kChunks; ++c) {
        if (!client.core.idle(ChunkIndex(c))) return;
      }
      computing = true;
      run.after(run.random() % (20 * run.slow[node]), [this] { ready(); });
    }
    bool done() const {
      return std::ranges::all_of(settled, [this](std::uint64_t s) { return s >= run.rounds; });
    }

    Run& run;
    const std::uint32_t node;
    Client client;
    std::uint64_t clock = 0;
    bool computing = false;
    std::size_t seen = 0;
    std::uint64_t settled[kChunks] = {}, dropped[kChunks] = {}, counted[kChunks] = {};
  };

  void after(std::uint64_t ms, std::function<void()> event) { events.emplace(now + ms * kMs, std::move(event)); }
  // Somewhere on the network: lost, late, twice.
  void send(const std::function<void()>& message) {
    if (lossy && random() % 20 == 0) return;
    after(1 + random() % 10, message);
    if (lossy && random() % 10 == 0) after(1 + random() % 30, message);
  }
  std::vector<std::byte> gradient(std::uint32_t node) const {
    std::vector<std::byte> bytes(kBytes);
    reinterpret_cast<float*>(bytes.data())[node] = static_cast<float>(nodes - backups);
    return bytes;
  }

  // What everybody has to say goes out.
  void flush() {
    for (auto& end : ends) {
      const PeerId peer = peer_of(end->node);
      ClientRecorder& out = end->client.out;
      for (const auto& [connection, pull] : out.pulls) send([this, peer, m = pull] { shard.core.on_pull(peer, m); });
      for (const auto& [connection, push] : out.pushes) {
        send([this, peer, m = push, n = end->node] { shard.core.on_push(peer, m, payload_of(gradient(n))); });
      }
      for (const auto& [connection, query] : out.queries) {
        send([this, peer, m = query] { shard.core.on_query(peer, m); });
      }
      CHECK(out.refusals.empty());
      out.pulls.clear();
      out.pushes.clear();
      out.queries.clear();
    }
    const auto to = [&](PeerId peer) -> ClientCore& { return ends[peer.value - peer_of(0).value]->client.core; };
    for (const auto& sent : shard.out.answers) {
      send([this, &client = to(sent.to), header = sent.header, payload = sent.payload] {
        client.on_answer(ConnectionIndex(0), header, payload.bytes(), now);
      });
    }
    for (const auto& [peer, m] : shard.out.receipts) {
      send([this, &client = to(peer), m] { client.on_receipt(ConnectionIndex(0), m, now); });
    }
    for (const auto& [peer, m] : shard.out.resends) {
      send([this, &client = to(peer), m] { client.on_resend(ConnectionIndex(0), m, now); });
    }
    CHECK(shard.out.errors.empty());
    shard.out.clear();
  }

  bool done() const {
    return std::ranges::all_of(ends, [](const auto& end) { return end->done(); });
  }
  void run() {
    for (int step = 0; step < 200'000 && !done(); ++step) {
      if (events.empty() || events.begin()->first > now + 500 * kMs) {
        now += 500 * kMs;  // time-outs
        for (auto& end : ends) end->client.core.tick(now);
      } else {
        auto event = events.extract(events.begin());
        now = std::max(now, event.key());
        event.mapped()();
        for (auto& end : ends) end->client.core.tick(now);
      }
      flush();
      for (auto& end : ends) end->look();
      flush();
    }
  }

  std::mt19937_64 random;
  const std::uint32_t nodes, backups;
  const std::uint64_t rounds;
  const bool lossy;
  std::uint64_t now = 1000 * kMs;
  std::vector<std::uint64_t> slow;  // by node
  Shard shard;
  std::vector<std::unique_ptr<End>> ends;
  std::multimap<std::uint64_t, std::function<void()>> events;  // they hold buffers of the shard
};

}  // namespace

TEST_CASE("with backup workers every push is in the parameters once or was said to be dropped, over any network") {
  std::uint64_t dropped = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    Run run(seed);
    run.run();
    REQUIRE(run.done());
    for (std::uint32_t c = 0; c < kChunks; ++c) {
      CHECK(run.shard.version(c) == run.rounds);
      std::uint64_t all = 0;
      for (const auto& end : run.ends) {
        CHECK(end->settled[c] == run.rounds);
        CHECK(-run.shard.params(c)[end->node] == static_cast<float>(end->counted[c]));
        all += end->counted[c];
        dropped += end->dropped[c];
      }
      CHECK(all == run.rounds * (run.nodes - run.backups));
    }
  }
  CHECK(dropped > 0);
}

}  // namespace tributary
