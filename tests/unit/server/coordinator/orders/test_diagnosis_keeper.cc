// Diagnoses: the daemons to diagnose, their order, and the end of a diagnosis.
#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "server/coordinator/orders/diagnosis_keeper.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::diagnosis_keeper_test {
namespace {

constexpr std::uint64_t kSeed = 6;
constexpr std::uint32_t kFirst = 7;

DiagnosedDaemon daemon(bool server, std::uint64_t incarnation) {
  return {server,      (server ? "server " : "worker ") + std::to_string(incarnation),
          incarnation, "key-" + std::to_string(incarnation),
          false,       {},
          {}};
}

struct Diagnosis {
  DiagnosisKeeper keeper{kSeed};
  std::set<std::uint64_t> lost;
  std::uint64_t now = 1000;

  std::vector<std::uint64_t> due() {
    std::vector<std::uint64_t> all;
    const auto gone = [&](std::uint64_t who) {
      return lost.contains(who) ? std::string("it was lost") : std::string();
    };
    for (const DiagnosedDaemon& asked : keeper.tick(gone, now)) all.push_back(asked.incarnation);
    return all;
  }
  void says(std::uint64_t who, std::uint32_t diagnosis = kFirst) { keeper.on(who, Diagnosed{.diagnosis = diagnosis}); }
};

using Who = std::vector<std::uint64_t>;

}  // namespace

TEST_CASE("Servers are asked first, and workers together when all servers have answered") {
  Diagnosis diagnosis;
  CHECK(diagnosis.keeper.begin({}, {daemon(false, 11), daemon(true, 1), daemon(false, 12), daemon(true, 2)}) == kFirst);
  CHECK(diagnosis.due() == Who{1, 2});
  CHECK(diagnosis.due().empty());  // they have been asked
  diagnosis.says(1);
  CHECK(diagnosis.due().empty());
  diagnosis.says(2);
  CHECK(diagnosis.due() == Who{11, 12});
  diagnosis.says(11);
  diagnosis.says(12);
  CHECK_FALSE(diagnosis.keeper.under_way());
  const auto status = required(diagnosis.keeper.status(kFirst));
  CHECK(status.over);
  for (const DiagnosedDaemon& one : status.daemons) CHECK(one.said);
  CHECK_FALSE(diagnosis.keeper.status(kFirst + 1));
}

TEST_CASE("Workers that measure are asked one after the other") {
  Diagnosis diagnosis;
  diagnosis.keeper.begin({.measure = true, .paths = {}}, {daemon(true, 1), daemon(false, 11), daemon(false, 12)});
  CHECK(diagnosis.due() == Who{1});
  diagnosis.says(1);
  CHECK(diagnosis.due() == Who{11});
  CHECK(diagnosis.due().empty());
  diagnosis.says(11);
  CHECK(diagnosis.due() == Who{12});
  diagnosis.says(12);
  CHECK_FALSE(diagnosis.keeper.under_way());
}

TEST_CASE("A question is repeated until it is answered; who is lost or never answers is given up, with the reason") {
  Diagnosis diagnosis;
  diagnosis.keeper.begin({}, {daemon(true, 1), daemon(false, 11), daemon(false, 12)});
  CHECK(diagnosis.due() == Who{1});
  diagnosis.now += DiagnosisKeeper::kAgainMs;
  CHECK(diagnosis.due() == Who{1});
  diagnosis.says(1);
  CHECK(diagnosis.due() == Who{11, 12});
  diagnosis.lost.insert(11);
  diagnosis.now += DiagnosisKeeper::kPatienceMs;
  CHECK(diagnosis.due() == Who{12});
  CHECK(diagnosis.keeper.under_way());
  diagnosis.now += 1;
  CHECK(diagnosis.due().empty());
  CHECK_FALSE(diagnosis.keeper.under_way());
  const auto status = required(diagnosis.keeper.status(kFirst));
  CHECK(status.daemons[1].silent_because == "it was lost");
  CHECK(testing::contains(status.daemons[2].silent_because, "60 s"));
}

TEST_CASE("What strangers say, or of another diagnosis, or twice, changes nothing") {
  Diagnosis diagnosis;
  diagnosis.keeper.begin({}, {daemon(true, 1)});
  CHECK(diagnosis.due() == Who{1});
  diagnosis.says(2);
  diagnosis.says(1, kFirst + 5);
  CHECK(diagnosis.keeper.under_way());
  diagnosis.says(1);
  CHECK_FALSE(diagnosis.keeper.under_way());
  diagnosis.says(1);
  CHECK(diagnosis.keeper.begin({}, {}) == kFirst + 1);  // of nobody: it is over
  CHECK_FALSE(diagnosis.keeper.under_way());
  CHECK_FALSE(diagnosis.keeper.status(kFirst));
}

TEST_CASE("What all daemons say together is bounded, and a revoked key is waited for no more") {
  Diagnosis diagnosis;
  diagnosis.keeper.begin({}, {daemon(true, 1), daemon(true, 2), daemon(true, 3)});
  CHECK(diagnosis.due() == Who{1, 2, 3});
  Diagnosed much{.diagnosis = kFirst};
  much.checks.push_back({"s", "n", CheckLevel::kOk, std::string(DiagnosisKeeper::kMaxBytes / 2 + 1, 'x'), ""});
  diagnosis.keeper.on(1, much);
  diagnosis.keeper.on(2, much);
  CHECK_FALSE(diagnosis.keeper.expel("key-9"));
  CHECK(diagnosis.keeper.expel("key-3"));
  CHECK(diagnosis.due().empty());
  const auto status = required(diagnosis.keeper.status(kFirst));
  CHECK(status.over);
  CHECK(status.daemons[0].said);
  CHECK(testing::contains(status.daemons[1].silent_because, "no room"));
  CHECK(status.daemons[2].silent_because == "its key was revoked");
  CHECK(status.daemons[2].key.empty());
}

}  // namespace tributary::diagnosis_keeper_test
