// Trainers' metrics of their rounds, from a session to the coordinator.
#include <doctest/doctest.h>

#include <cmath>

#include "common/math/figures.h"
#include "common/wire/codec.h"
#include "server/coordinator/round/job_figures.h"
#include "tests/unit/worker/node_fixture.h"

namespace tributary::testing::figures_test {
namespace {

double mean_of(const Figures& figures, const char* name) {
  const Figure* figure = figures.find(name);
  REQUIRE(figure);
  return figure->mean;
}

}  // namespace

TEST_CASE("figures add up to means by samples, each by those who said it") {
  Figures all;
  CHECK(all.empty());
  all.add({Round(3), {{"loss", 2.0, 10}}});
  all.add({Round(4), {{"loss", 1.0, 30}, {"accuracy", 0.5, 30}}});
  all.add({Round(2), {{"loss", 9.0, 0}, {"accuracy", 1.0, 10}}});
  CHECK(all.round == Round(4));
  CHECK(mean_of(all, "loss") == doctest::Approx(1.25));
  CHECK(mean_of(all, "accuracy") == doctest::Approx(0.625));
  CHECK(all.find("loss")->samples == 40);

  all = {};
  all.add({Round(1), {{"loss", std::nan(""), 0}}});
  all.add({Round(1), {{"loss", 2.0, 4}}});
  all.add({Round(1), {{"loss", std::nan(""), 0}}});
  CHECK(mean_of(all, "loss") == 2.0);
  all.add({Round(1), {{"loss", 2.0, ~0ull}}});
  CHECK(all.find("loss")->samples == ~0ull);

  Figures none;
  none.add({Round(1), {{"loss", 2.0, 0}}});
  none.add({Round(1), {{"loss", 4.0, 0}}});
  CHECK(mean_of(none, "loss") == 2.0);

  all.renew({Round(3), {{"accuracy", 0.75, 1}}});
  CHECK(all.round == Round(1).next().next());
  CHECK(mean_of(all, "accuracy") == 0.75);
  CHECK(mean_of(all, "loss") == 2.0);
  all.add({Round(5), {{"loss", std::nan(""), 1}}});
  CHECK(std::isnan(mean_of(all, "loss")));

  Figures many;
  for (std::size_t i = 0; i < 2 * kMaxFigures; ++i) many.add({Round(1), {{"f" + std::to_string(i), 1.0, 1}}});
  CHECK(many.values.size() == kMaxFigures);
}

TEST_CASE("figures without a sound name are refused") {
  const auto read = [](const std::string& name) {
    return decode_attach(encode_attach(RankFigures{{Round(1), {{name, 0.5, 1}}}})).has_value();
  };
  CHECK(read("loss"));
  CHECK(read(std::string(kMaxFigureNameBytes, 'x')));
  CHECK_FALSE(read(std::string(kMaxFigureNameBytes + 1, 'x')));
  CHECK_FALSE(read(""));
  CHECK_FALSE(read("\xff"));
  Figures many;
  many.values.resize(kMaxFigures + 1, {"loss", 0.5, 1});
  CHECK_FALSE(decode_attach(encode_attach(RankFigures{many})));
}

TEST_CASE("a job's figures are those of the nodes of the last view in which some were said") {
  JobFigures job;
  CHECK(job.together().empty());
  job.note(NodeRank(0), ViewId(1), {Round(5), {{"loss", 1.0, 10}}});
  job.note(NodeRank(1), ViewId(1), {Round(6), {{"loss", 2.0, 10}}});
  job.note(NodeRank(1), ViewId(1), {});
  CHECK(job.together().round == Round(6));
  CHECK(mean_of(job.together(), "loss") == doctest::Approx(1.5));
  job.note(NodeRank(0), ViewId(1), {Round(7), {{"loss", 0.5, 10}}});
  CHECK(mean_of(job.together(), "loss") == doctest::Approx(1.25));
  job.note(NodeRank(0), ViewId(2), {});
  CHECK(job.together().round == Round(7));
  job.note(NodeRank(0), ViewId(2), {Round(8), {{"loss", 0.25, 10}}});
  CHECK(mean_of(job.together(), "loss") == 0.25);
}

TEST_CASE("a worker tells what its ranks said together, and ranks do not say every round") {
  FakeNode node;
  node.run();
  auto sessions = node.sessions(2);
  const auto said = [&] {
    const std::vector<NodePace> paces = node.server->heartbeat().paces;
    return paces.empty() ? Figures() : paces.front().figures;
  };
  CHECK(said().empty());
  const auto round = [&](std::uint64_t number, double loss) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      CHECK(sessions[rank]->log(Round(number), "loss", loss + rank, 8));
      ready_all(*sessions[rank]);
    }
    node.lanes.complete(Round(number));
    for (auto& session : sessions) CHECK(session->wait());
  };
  round(1, 1.0);
  REQUIRE(eventually([&] { return !said().empty() && said().find("loss")->samples == 16; }));
  CHECK(said().round == Round(1));
  CHECK(mean_of(said(), "loss") == doctest::Approx(1.5));
  // Within the interval they add up, and the rest is told at the end.
  for (std::uint64_t number = 2; number <= 4; ++number) round(number, 2.0);
  for (auto& session : sessions) CHECK(session->finish(LeaveKind::kFinished));
  const LeaveJob left = node.coordinator.await<LeaveJob>();
  CHECK(left.kind == LeaveKind::kFinished);
}

}  // namespace tributary::testing::figures_test
