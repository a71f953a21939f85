// `tributary doctor` as a user calls it. Passes with and without a GPU in the machine.
#include "tests/e2e/e2e.h"

namespace tributary::e2e::doctor_test {
namespace {

TEST_CASE("the doctor's JSON names every check, and its status says whether there is a problem") {
  const Outcome outcome = run({bin("tributary"), "doctor", "--json"});
  const auto json = nlohmann::json::parse(outcome.text, nullptr, false);
  REQUIRE_MESSAGE(json.is_object(), outcome.text);
  CHECK(outcome.status == (json.at("problems") > 0 ? 1 : 0));
  CHECK(json.at("ok") == (outcome.status == 0));
  const auto& checks = json.at("checks");
  for (const std::string name : {"programs", "processor", "memory", "/dev/shm", "open files", "CUDA", "NCCL"}) {
    CAPTURE(name);
    CHECK(std::any_of(checks.begin(), checks.end(), [&](const auto& check) { return check.at("name") == name; }));
  }
  for (const auto& check : checks) {
    CHECK((check.at("level") == "ok") == check.at("advice").get<std::string>().empty());
  }
  const Outcome text = run({bin("tributary"), "doctor"});
  CHECK(text.status == outcome.status);
  CHECK(contains(text.text, "/dev/shm"));
}

}  // namespace
}  // namespace tributary::e2e::doctor_test
