// The thread on which a daemon diagnoses itself.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "common/daemon/log.h"
#include "common/doctor/self_diagnosis.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::self_diagnosis_test {
namespace {

using std::chrono::seconds;

// Collects findings as they arrive.
class Told {
 public:
  void add(const Diagnosed& found) {
    const std::lock_guard lock(mutex_);
    all_.push_back(found);
    changed_.notify_all();
  }
  // Once there are so many; fewer after a long time.
  std::vector<Diagnosed> wait(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, seconds(60), [&] { return all_.size() >= count; });
    return all_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Diagnosed> all_;
};

Diagnose order(std::uint32_t diagnosis, bool over = false) {
  return {.diagnosis = diagnosis, .over = over};
}

}  // namespace

TEST_CASE("A diagnosis is made once, and answered as often as it is asked for") {
  Told told;
  std::atomic<int> looks{0};
  SelfDiagnosis diagnosis(
      [&](const Diagnose& asked, const std::atomic<bool>&) {
        ++looks;
        return Diagnosed{.diagnosis = asked.diagnosis};
      },
      [&](const Diagnosed& found) { told.add(found); }, quiet_logger());
  diagnosis.on(order(5));
  REQUIRE(told.wait(1).size() == 1);
  diagnosis.on(order(5));
  REQUIRE(told.wait(2).size() == 2);
  CHECK(looks == 1);
  diagnosis.on(order(6));
  const auto all = told.wait(3);
  REQUIRE(all.size() == 3);
  CHECK(all[2].diagnosis == 6);
  CHECK(looks == 2);
}

TEST_CASE("One that is over, or that another follows, is broken off and not told") {
  Told told;
  std::promise<void> begun;
  SelfDiagnosis diagnosis(
      [&](const Diagnose& asked, const std::atomic<bool>& stopping) {
        if (asked.diagnosis == 1) {
          begun.set_value();
          while (!stopping.load()) std::this_thread::yield();
        }
        return Diagnosed{.diagnosis = asked.diagnosis};
      },
      [&](const Diagnosed& found) { told.add(found); }, quiet_logger());
  diagnosis.on(order(1));
  begun.get_future().wait();
  SUBCASE("another") {
    diagnosis.on(order(2));
  }
  SUBCASE("over") {
    diagnosis.on(order(1, true));
    diagnosis.on(order(2));
  }
  const auto all = only_one(told.wait(1));
  CHECK(all.diagnosis == 2);
}

TEST_CASE("Too many lines are cut, and what fails is a problem of its own") {
  Told told;
  SelfDiagnosis diagnosis(
      [](const Diagnose& asked, const std::atomic<bool>&) -> Diagnosed {
        if (asked.diagnosis == 2) throw std::runtime_error("no such thing");
        Diagnosed found;
        found.checks.resize(kMaxChecks + 5);
        return found;
      },
      [&](const Diagnosed& found) { told.add(found); }, quiet_logger());
  diagnosis.on(order(1));
  const auto cut = only_one(told.wait(1));
  CHECK(cut.checks.size() == kMaxChecks);
  CHECK(cut.checks.back().found == "6 lines are left out");
  diagnosis.on(order(2));
  const auto failed = told.wait(2);
  REQUIRE(failed.size() == 2);
  REQUIRE(failed[1].checks.size() == 1);
  CHECK(failed[1].checks[0].level == CheckLevel::kProblem);
  CHECK(testing::contains(failed[1].checks[0].found, "no such thing"));
}

TEST_CASE("A daemon that stops does not wait for a system that does not answer, and nobody is told afterwards") {
  const auto told = std::make_shared<std::atomic<bool>>(false);
  const auto answers = std::make_shared<std::promise<void>>();
  const auto asked = std::make_shared<std::promise<void>>();
  const auto ended = std::make_shared<std::promise<void>>();
  {
    SelfDiagnosis diagnosis(
        [answer = answers->get_future().share(), asked, ended](const Diagnose& order, const std::atomic<bool>&) {
          asked->set_value();
          answer.wait();
          ended->set_value();
          return Diagnosed{.diagnosis = order.diagnosis};
        },
        [told](const Diagnosed&) { told->store(true); }, quiet_logger());
    diagnosis.on(order(1));
    asked->get_future().wait();
  }  // after kStopPatience
  answers->set_value();
  ended->get_future().wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK_FALSE(told->load());
}

}  // namespace tributary::self_diagnosis_test
