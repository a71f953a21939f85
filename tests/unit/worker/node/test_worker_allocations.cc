// A round must not allocate in our code: not in a trainer's ready() and wait(), not in a lane. Counted are operator new
// calls, which is what our code would allocate with; libzmq takes its message blocks from malloc itself
// (worker/node/lane.h says which). Under sanitizers, which own the allocator, this only checks that the code runs.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/unit/server/lane/local_server.h"
#include "tests/unit/worker/node/worker_lane_fixture.h"
#include "tests/unit/worker/node_fixture.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<long> counted{0};
thread_local bool exempt = false;  // threads that play the other side
thread_local long on_this_thread = 0;

}  // namespace

#ifndef TRIBUTARY_SANITIZED
// Not inlined: the compiler would see malloc and delete, or new and free, meet.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++on_this_thread;
  if (counting.load(std::memory_order_relaxed) && !exempt) counted.fetch_add(1);
  if (void* block = std::malloc(size)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* block) noexcept {
  std::free(block);
}
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept {
  std::free(block);
}
#endif

using namespace tributary;
using namespace tributary::testing;

TEST_CASE("the counter counts") {
  counted = 0;
  counting = true;
  auto block = std::make_unique<std::array<int, 100>>();
  counting = false;
  CHECK(block);
#ifndef TRIBUTARY_SANITIZED
  CHECK(counted == 1);
#endif
}

// Sixty rounds, of which all but the first ten allocate nothing. This thread plays the trainers.
void check_rounds(LaneNode& node, std::uint32_t ranks) {
  exempt = true;
  counted = 0;
  for (std::uint64_t round = 1; round <= 60; ++round) {
    counting = round > 10;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) node.ready(rank, round, 0.5f);
    REQUIRE(node.reaches(round));
  }
  counting = false;
  exempt = false;
  CHECK(counted == 0);
}

TEST_CASE("a lane's round allocates nothing, with one rank and with several") {
  for (const std::uint32_t ranks : {1u, 2u}) {
    FakeServerLane server([] { exempt = true; });
    LaneNode node;
    node.open({server.endpoint()}, ranks);
    node.start();
    check_rounds(node, ranks);
    CHECK(node.memory_comes_back());
  }
}

TEST_CASE("between lanes that share memory a round allocates nothing on either side") {
  LocalServer server;
  LaneNode node;
  server.serve(node);
  node.open({server.lane->endpoint()}, 2);
  node.start();
  check_rounds(node, 2);
  CHECK(node.job->lane_stats(0).shared_connections.value() == 1);
  CHECK(node.memory_comes_back());
}

TEST_CASE("ready and wait allocate nothing") {
  RunningNode node;
  auto sessions = node.sessions(1);
  Session& session = *sessions[0];
  std::thread worker([&] {
    for (std::uint64_t round = 1; round <= 50; ++round) node.lanes.complete(Round(round));
  });
  const long before = on_this_thread;
  bool all_continue = true;
  for (std::uint64_t round = 1; round <= 50; ++round) {
    for (std::size_t t = 0; t < 3; ++t) session.ready(t, 1);
    const Result<StepState> state = session.wait();
    all_continue = all_continue && state && *state == StepState::kContinue;
  }
  CHECK(on_this_thread == before);
  worker.join();
  CHECK(all_continue);
}
