#include <doctest/doctest.h>

#include <cmath>

#include "tests/unit/required.h"
#include "tools/cli/run/strike_watch.h"

namespace tributary::cli::strike_watch_test {
namespace {

ProgressReport report(std::uint32_t rank, std::uint32_t restarts, std::uint64_t resumed, std::uint64_t complete) {
  return {.rank = rank,
          .world_size = 2,
          .restarts = restarts,
          .resumed = resumed,
          .complete = complete,
          .round = complete + 1};
}

TEST_CASE("what a rank tells before it has attached anew is no recovery") {
  StrikeWatch watch(2);
  watch.take(report(0, 0, 0, 6));
  watch.take(report(1, 0, 0, 7));
  CHECK(watch.complete() == 7);
  watch.strike();
  watch.take(report(0, 0, 0, 8));  // it had the answers when the server died
  CHECK_FALSE(watch.back());
  watch.take(report(0, 2, 8, 8));  // the first gradient of the view: nothing is complete
  CHECK_FALSE(watch.back());
  watch.take(report(0, 2, 8, 9));
  CHECK(watch.back());
  CHECK_FALSE(watch.all_back());
  watch.take(report(1, 1, 8, 9));
  CHECK(watch.all_back());
  CHECK(watch.recomputed() == 0);
}

TEST_CASE("rounds that were complete and are computed again are counted, those open are not") {
  StrikeWatch watch(1);
  watch.take(report(0, 0, 0, 20));
  watch.strike();
  watch.take(report(0, 0, 0, 21));
  watch.take(report(0, 1, 15, 16));
  CHECK(watch.all_back());
  CHECK(watch.recomputed() == 6);
}

TEST_CASE("a strike after another asks for a view of its own") {
  StrikeWatch watch(1);
  watch.take(report(0, 0, 0, 5));
  watch.strike();
  watch.take(report(0, 1, 5, 6));
  CHECK(watch.back());
  watch.strike();
  CHECK_FALSE(watch.back());
  watch.take(report(0, 1, 5, 7));
  CHECK_FALSE(watch.back());
  watch.take(report(0, 2, 7, 8));
  CHECK(watch.all_back());
  CHECK(watch.recomputed() == 0);
}

TEST_CASE("a job that went back counts from where it came to after that") {
  StrikeWatch watch(1);
  watch.take(report(0, 0, 0, 90));
  watch.strike();
  watch.take(report(0, 1, 40, 50));
  CHECK(watch.complete() == 50);
  CHECK(watch.recomputed() == 50);
  watch.strike();
  watch.take(report(0, 2, 50, 51));
  CHECK(watch.complete_before() == 50);
  CHECK(watch.recomputed() == 0);
}

TEST_CASE("of several views since the strike the one that began earliest says what was computed again") {
  StrikeWatch watch(2);
  watch.take(report(0, 0, 0, 9));
  watch.strike();
  watch.take(report(0, 1, 4, 4));
  watch.take(report(0, 2, 6, 7));
  watch.take(report(1, 2, 6, 7));
  CHECK(watch.all_back());
  CHECK(watch.recomputed() == 5);
  watch.take(report(7, 9, 0, 99));  // no rank of ours
  CHECK(watch.complete() == 7);
}

TEST_CASE("a datagram is a report if it says the rank, its round and samples") {
  const char* whole =
      R"({"rank":1,"world_size":4,"restarts":2,"resumed":10,"complete":11,"round":12,"rounds":90,"samples":8,
          "samples_sum":18446744073709551615,"correct":3,"loss_sum":1.5,"compute_ns":5,"reduce_ns":6,"wait_ns":7})";
  const auto parsed = required(parse_progress(whole));
  CHECK(parsed.rank == 1);
  CHECK(parsed.restarts == 2);
  CHECK(parsed.resumed == 10);
  CHECK(parsed.complete == 11);
  CHECK(parsed.samples_sum == ~0ull);
  CHECK(parsed.loss_sum == 1.5);
  CHECK(parsed.step_ns() == 18);
  CHECK_FALSE(parsed.test_accuracy);
  CHECK(parsed.correct == 3);
  const auto least = required(parse_progress(R"({"rank":1,"round":12,"samples":8,"loss_sum":null})"));
  CHECK(least.rounds == 0);
  CHECK_FALSE(least.correct);
  REQUIRE(least.loss_sum);
  CHECK(std::isnan(*least.loss_sum));
  CHECK_FALSE(parse_progress(R"({"rank":1,"round":12,"samples":8})")->loss_sum);
  CHECK_FALSE(parse_progress(R"({"rank":1,"world_size":4,"round":12})"));
  CHECK_FALSE(parse_progress(R"({"rank":"one"})"));
  CHECK_FALSE(parse_progress("["));
}

}  // namespace
}  // namespace tributary::cli::strike_watch_test
