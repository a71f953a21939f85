// NodeValues: how a node combines the values of its ranks, and the answers that outlive a view.
#include <doctest/doctest.h>

#include "tests/unit/required.h"
#include "worker/node/node_values.h"

namespace tributary::node_values_test {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

SharedValues value(std::uint64_t round, std::uint32_t index, const std::string& text) {
  return {Round(round), index, false, {{0, bytes_of(text)}}};
}

SharedValues answer(std::uint64_t round, std::uint32_t index, const std::string& all = "x") {
  SharedValues values{Round(round), index, true, {}};
  for (std::uint32_t rank = 0; rank < 4; ++rank) values.values.push_back({rank, bytes_of(all)});
  return values;
}

// Ranks 2 and 3 of a job.
struct Node {
  NodeValues view(std::uint32_t number, std::uint64_t round, bool elastic = false) {
    return NodeValues(JobId(9), ViewId(number), 2, 2, elastic, kept.begin("a", JobId(9), Round(round), 0));
  }
  KeptAnswers kept;
};

NodeValues::Actions on(NodeValues& values, std::uint32_t local_rank, const SharedValues& said, std::uint64_t now = 0) {
  return required(values.on(local_rank, said, now));
}

bool nothing(const NodeValues::Actions& actions) {
  return actions.say.empty() && actions.answered.empty();
}

std::string broken(NodeValues& values, std::uint32_t local_rank, const SharedValues& said) {
  const auto actions = failure_of(values.on(local_rank, said, 0));
  return actions.message;
}

}  // namespace

TEST_CASE(
    "when all local ranks have given, the coordinator gets it under the view's ranks, and its answer goes to them") {
  Node node;
  NodeValues values = node.view(3, 0);
  CHECK(nothing(on(values, 1, value(5, 0, "b"))));
  const auto said = on(values, 0, value(5, 0, "a"));
  CHECK(said.answered.empty());
  REQUIRE(said.say.size() == 1);
  CHECK(said.say[0].job == JobId(9));
  CHECK(said.say[0].view == ViewId(3));
  CHECK(said.say[0].shared == SharedValues{Round(5), 0, false, {{2, bytes_of("a")}, {3, bytes_of("b")}}});
  const auto told = values.on(answer(5, 0));
  CHECK(told.answered == std::vector<std::uint32_t>{0, 1});
  CHECK(told.answer == answer(5, 0));
  // Said again by the coordinator: nobody waits.
  CHECK(nothing(values.on(answer(5, 0))));
  CHECK(values.tick(1'000'000).empty());
}

TEST_CASE("what is open is said again, also what some local ranks have still to give") {
  Node node;
  NodeValues values = node.view(3, 0);
  CHECK(nothing(on(values, 1, value(5, 0, "b"))));
  CHECK(values.tick(NodeValues::kRepeatMs - 1).empty());
  const auto again = only_one(values.tick(NodeValues::kRepeatMs));
  CHECK(again.shared.values == std::vector<RankValue>{{3, bytes_of("b")}});
  CHECK(values.tick(NodeValues::kRepeatMs + 1).empty());
  CHECK(values.tick(2 * NodeValues::kRepeatMs).size() == 1);
  // It was answered long ago, in a view that this worker had no part in.
  CHECK(values.on(answer(5, 0)).answered == std::vector<std::uint32_t>{1});
  CHECK(on(values, 0, value(5, 0, "a")).answered == std::vector<std::uint32_t>{0});
}

TEST_CASE("a rank that asks again is answered from view to view, without the coordinator") {
  Node node;
  {
    NodeValues values = node.view(3, 0);
    for (std::uint32_t rank = 0; rank < 2; ++rank) on(values, rank, value(5, 0, "a"));
    values.on(answer(5, 0));
    for (std::uint32_t rank = 0; rank < 2; ++rank) on(values, rank, value(6, 0, "a"));
    values.on(answer(6, 0));
    on(values, 0, value(6, 1, "a"));
  }
  NodeValues values = node.view(4, 6);
  REQUIRE(values.all().size() == 2);  // what is open has ended with its view
  CHECK(values.all()[0].view == ViewId(4));
  CHECK(values.all()[0].shared == answer(5, 0));
  const auto told = on(values, 1, value(5, 0, "another"));
  CHECK(told.say.empty());
  CHECK(told.answered == std::vector<std::uint32_t>{1});
  CHECK(told.answer == answer(5, 0));
  on(values, 1, value(6, 1, "b"));
  CHECK(values.all().size() == 3);
  NodeValues back = node.view(5, 5);  // that round is gone through again
  CHECK(back.all().size() == 1);
  CHECK(nothing(on(back, 0, value(6, 0, "a"))));
}

TEST_CASE("an answer that a trainer brings is told to the coordinator and to ranks that wait, once") {
  Node node;
  NodeValues values = node.view(3, 5);
  CHECK(nothing(on(values, 1, value(5, 0, "b"))));
  const auto brought = on(values, 0, answer(5, 0));
  CHECK(brought.answered == std::vector<std::uint32_t>{1});
  REQUIRE(brought.say.size() == 1);
  CHECK(brought.say[0].shared == answer(5, 0));
  CHECK(nothing(on(values, 1, answer(5, 0))));
  // The coordinator's counts, if it has another one: of an elastic job, in which others have gone on.
  values.on(answer(5, 0, "theirs"));
  CHECK(on(values, 1, value(5, 0, "b")).answer == answer(5, 0, "theirs"));
}

TEST_CASE("in an elastic job the coordinator alone answers, and is asked at once for what may be known") {
  Node node;
  NodeValues values = node.view(3, 5, true);
  CHECK(nothing(on(values, 1, value(5, 0, "b"))));
  const auto brought = on(values, 0, answer(5, 0));
  CHECK(brought.answered.empty());
  REQUIRE(brought.say.size() == 2);
  CHECK(brought.say[0].shared == answer(5, 0));
  CHECK(brought.say[1].shared.values == std::vector<RankValue>{{3, bytes_of("b")}});
  const auto asked = on(values, 0, value(5, 0, "a"));
  CHECK(asked.answered.empty());
  CHECK(asked.say.size() == 1);
  const auto told = values.on(answer(5, 0, "theirs"));
  CHECK(told.answered == std::vector<std::uint32_t>{0, 1});
  CHECK(told.answer == answer(5, 0, "theirs"));
  CHECK(values.all()[0].shared == answer(5, 0, "theirs"));
}

TEST_CASE("a trainer that does not wait for its answer, or gives two, breaks the rules") {
  Node node;
  NodeValues values = node.view(3, 0);
  on(values, 1, value(5, 0, "b"));
  CHECK(broken(values, 1, value(5, 1, "b")) ==
        "rank 3 gave value 1 after round 5 while it waits for value 0 after round 5; a rank waits for each answer");
  CHECK(broken(values, 1, value(5, 0, "c")).find("a second time with other bytes") != std::string::npos);
  CHECK(nothing(on(values, 1, value(5, 0, "b"))));
  CHECK(broken(values, 0, {Round(5), 0, false, {}}) == "rank 2 gave 0 values as its value 0 after round 5; it is one");
}

TEST_CASE("a rank that has left is not waited for") {
  Node node;
  NodeValues values = node.view(3, 0);
  CHECK_FALSE(values.waits_for(0, 1'000'000));
  on(values, 1, value(5, 0, "b"), 1000);
  CHECK_FALSE(values.waits_for(0, 1000 + NodeValues::kPatienceMs - 1));
  CHECK(values.waits_for(0, 1000 + NodeValues::kPatienceMs));
  CHECK_FALSE(values.waits_for(1, 1000 + NodeValues::kPatienceMs));
}

TEST_CASE("answers go with a job that has had no view for long, or that others push out") {
  KeptAnswers kept;
  kept.begin("a", JobId(9), Round(5), 0)->add(answer(5, 0));
  kept.in_use("a", 1000);
  kept.tick(1000 + KeptAnswers::kKeepMs);
  CHECK(kept.begin("a", JobId(9), Round(5), 1000)->all().size() == 1);
  SUBCASE("long") {
    kept.tick(1001 + KeptAnswers::kKeepMs);
  }
  SUBCASE("others") {
    for (std::size_t job = 0; job < KeptAnswers::kMaxJobs; ++job) kept.begin(std::to_string(job), JobId(1), {}, 2000);
  }
  CHECK(kept.begin("a", JobId(9), Round(5), 3000)->all().empty());
}

}  // namespace tributary::node_values_test
