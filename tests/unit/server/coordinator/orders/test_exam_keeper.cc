// Diagnoses: the daemons to examine, their order, and the end of a diagnosis.
#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "server/coordinator/orders/exam_keeper.h"

namespace tributary::exam_keeper_test {
namespace {

constexpr std::uint64_t kSeed = 6;
constexpr std::uint32_t kFirst = 7;

ExaminedDaemon daemon(bool server, std::uint64_t incarnation) {
  return {server,      (server ? "server " : "worker ") + std::to_string(incarnation),
          incarnation, "key-" + std::to_string(incarnation),
          false,       {},
          {}};
}

struct Exam {
  ExamKeeper keeper{kSeed};
  std::set<std::uint64_t> lost;
  std::uint64_t now = 1000;

  std::vector<std::uint64_t> due() {
    std::vector<std::uint64_t> all;
    const auto gone = [&](std::uint64_t who) {
      return lost.contains(who) ? std::string("it was lost") : std::string();
    };
    for (const ExaminedDaemon& asked : keeper.tick(gone, now)) all.push_back(asked.incarnation);
    return all;
  }
  void says(std::uint64_t who, std::uint32_t exam = kFirst) { keeper.on(who, Examined{.exam = exam}); }
};

using Who = std::vector<std::uint64_t>;

}  // namespace

TEST_CASE("Servers are asked first, and workers together when all servers have answered") {
  Exam exam;
  CHECK(exam.keeper.begin({}, {daemon(false, 11), daemon(true, 1), daemon(false, 12), daemon(true, 2)}) == kFirst);
  CHECK(exam.due() == Who{1, 2});
  CHECK(exam.due().empty());  // they have been asked
  exam.says(1);
  CHECK(exam.due().empty());
  exam.says(2);
  CHECK(exam.due() == Who{11, 12});
  exam.says(11);
  exam.says(12);
  CHECK_FALSE(exam.keeper.under_way());
  const auto status = exam.keeper.status(kFirst);
  REQUIRE(status);
  CHECK(status->over);
  for (const ExaminedDaemon& one : status->daemons) CHECK(one.said);
  CHECK_FALSE(exam.keeper.status(kFirst + 1));
}

TEST_CASE("Workers that measure are asked one after the other") {
  Exam exam;
  exam.keeper.begin({.measure = true, .paths = {}}, {daemon(true, 1), daemon(false, 11), daemon(false, 12)});
  CHECK(exam.due() == Who{1});
  exam.says(1);
  CHECK(exam.due() == Who{11});
  CHECK(exam.due().empty());
  exam.says(11);
  CHECK(exam.due() == Who{12});
  exam.says(12);
  CHECK_FALSE(exam.keeper.under_way());
}

TEST_CASE("A question is repeated until it is answered; who is lost or never answers is given up, with the reason") {
  Exam exam;
  exam.keeper.begin({}, {daemon(true, 1), daemon(false, 11), daemon(false, 12)});
  CHECK(exam.due() == Who{1});
  exam.now += ExamKeeper::kAgainMs;
  CHECK(exam.due() == Who{1});
  exam.says(1);
  CHECK(exam.due() == Who{11, 12});
  exam.lost.insert(11);
  exam.now += ExamKeeper::kPatienceMs;
  CHECK(exam.due() == Who{12});
  CHECK(exam.keeper.under_way());
  exam.now += 1;
  CHECK(exam.due().empty());
  CHECK_FALSE(exam.keeper.under_way());
  const auto status = exam.keeper.status(kFirst);
  REQUIRE(status);
  CHECK(status->daemons[1].silent_because == "it was lost");
  CHECK(status->daemons[2].silent_because.find("60 s") != std::string::npos);
}

TEST_CASE("What strangers say, or of another examination, or twice, changes nothing") {
  Exam exam;
  exam.keeper.begin({}, {daemon(true, 1)});
  CHECK(exam.due() == Who{1});
  exam.says(2);
  exam.says(1, kFirst + 5);
  CHECK(exam.keeper.under_way());
  exam.says(1);
  CHECK_FALSE(exam.keeper.under_way());
  exam.says(1);
  CHECK(exam.keeper.begin({}, {}) == kFirst + 1);  // of nobody: it is over
  CHECK_FALSE(exam.keeper.under_way());
  CHECK_FALSE(exam.keeper.status(kFirst));
}

TEST_CASE("What all daemons say together is bounded, and a revoked key is waited for no more") {
  Exam exam;
  exam.keeper.begin({}, {daemon(true, 1), daemon(true, 2), daemon(true, 3)});
  CHECK(exam.due() == Who{1, 2, 3});
  Examined much{.exam = kFirst};
  much.checks.push_back({"s", "n", CheckLevel::kOk, std::string(ExamKeeper::kMaxBytes / 2 + 1, 'x'), ""});
  exam.keeper.on(1, much);
  exam.keeper.on(2, much);
  CHECK_FALSE(exam.keeper.expel("key-9"));
  CHECK(exam.keeper.expel("key-3"));
  CHECK(exam.due().empty());
  const auto status = exam.keeper.status(kFirst);
  REQUIRE(status);
  CHECK(status->over);
  CHECK(status->daemons[0].said);
  CHECK(status->daemons[1].silent_because.find("no room") != std::string::npos);
  CHECK(status->daemons[2].silent_because == "its key was revoked");
  CHECK(status->daemons[2].key.empty());
}

}  // namespace tributary::exam_keeper_test
