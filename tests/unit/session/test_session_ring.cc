// Gradients that a rank writes into the redo ring (SessionOptions::gradients_move).
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/unit/required.h"
#include "tests/unit/worker/node_fixture.h"

namespace tributary::session_ring_test {

using namespace testing;

TEST_CASE("the only rank of a node writes each round's gradient into the ring, and none that is kept is touched") {
  RunningNode node;
  SessionOptions options = node.session_options();
  options.gradients_move = true;
  options.recovery = std::make_shared<RecoveryHandle>();
  auto attached = node.attach(options);
  node.coordinator.await<JoinJob>();
  JobWelcome message = node.welcome_message();
  message.redo = true;
  node.server->on_control(message);
  auto session = FakeNode::session_of(std::move(attached));
  REQUIRE(session->start());
  const std::shared_ptr<NodeJob> job = node.lanes.job();
  const std::shared_ptr<RedoRing> ring = job->spec().redo;
  CHECK(job->spec().gradients_in_ring);
  CHECK(job->gradients(0) == nullptr);
  const Layout& layout = session->layout();
  const auto kept = [&](std::uint64_t round, std::size_t tensor) {
    const std::uint64_t at = layout.tensor_offset(tensor);
    const std::uint32_t chunk = layout.chunks_of(tensor).first;
    const auto frame = required(ring->find(ChunkIndex(chunk), Round(round)));
    return reinterpret_cast<const float*>(frame.bytes.data())[at - layout.chunk(ChunkIndex(chunk)).begin];
  };
  const std::uint64_t rounds = 2 * ring->rounds();
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    for (std::size_t t = 0; t < 3; ++t) {
      std::ranges::fill(session->gradient(t), static_cast<float>(10 * round + t));
      if (t == 0 && round > ring->rounds()) CHECK(kept(round - ring->rounds(), 1) == 10 * (round - ring->rounds()) + 1);
    }
    ready_all(*session);
    node.lanes.complete(Round(round));
    for (std::uint32_t c = 0; c < layout.chunks(); ++c) ring->publish(ChunkIndex(c), Round(round), 1);
    CHECK(session->wait() == StepState::kContinue);
    CHECK(kept(round, 2) == 10 * round + 2);
  }
  CHECK(session->parameters(2).front() == 10.0f * rounds * (rounds + 1) / 2 + 2 * rounds);
  CHECK(ring->kept().first == Round(rounds - ring->rounds() + 1));
  CHECK(options.recovery->memory);
}

TEST_CASE("gradients stay in one place where the rank wants that, has company, or pushes something else than fp32") {
  RunningNode node;
  const std::uint32_t ranks = 2;
  std::vector<FakeNode::Attached> attached;
  SessionOptions options = node.session_options();
  SUBCASE("it asks for that") {
    attached.push_back(node.attach(options));
  }
  SUBCASE("bf16") {
    options.gradients_move = true;
    options.job.push = EncodingId::kBf16;
    attached.push_back(node.attach(options));
  }
  SUBCASE("two ranks") {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      options = node.session_options(rank, ranks);
      options.gradients_move = true;
      attached.push_back(node.attach(options));
    }
  }
  node.coordinator.await<JoinJob>();
  JobWelcome message = node.welcome_message();
  message.redo = true;
  node.server->on_control(message);
  std::vector<std::unique_ptr<Session>> sessions;  // all of them: one that leaves ends the view
  for (auto& one : attached) sessions.push_back(FakeNode::session_of(std::move(one)));
  const std::shared_ptr<NodeJob> job = node.lanes.job();
  REQUIRE(job);
  CHECK(job->spec().redo);
  CHECK_FALSE(job->spec().gradients_in_ring);
  for (const auto& session : sessions) {
    const float* before = session->gradient(0).data();
    session->ready(0, 1);
    CHECK(session->gradient(0).data() == before);
  }
}

}  // namespace tributary::session_ring_test
