// --device and `tributary doctor` as a user calls them. Passes with and without a GPU in the machine; what a GPU
// computes is tests/gpu's.
#include "common/devices/cuda_devices.h"
#include "tests/e2e/e2e.h"

namespace tributary::e2e::devices_test {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Outcome {
  int status = -1;
  std::string text;  // standard output and error
};

Outcome call(const TempDir& dir, std::vector<std::string> argv) {
  const std::string log = dir / "call.log";
  std::filesystem::remove(log);
  auto process = Process::spawn({.argv = std::move(argv), .log_file = log});
  REQUIRE_MESSAGE(process, process.error().message);
  const auto status = process->wait(kPatience);
  REQUIRE(status);
  std::ifstream in(log);
  return {status->code, {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()}};
}

Outcome train(const TempDir& dir, const std::string& job_file, const std::string& device) {
  return call(dir, {bin("tributary-train"), "--job", job_file, "--standalone", "--json", "--device", device});
}

nlohmann::json result_of(const Outcome& outcome) {
  INFO(outcome.text);
  REQUIRE(outcome.status == 0);
  const auto begin = outcome.text.find("{\"job\"");
  REQUIRE(begin != std::string::npos);
  return nlohmann::json::parse(outcome.text.substr(begin, outcome.text.find('\n', begin) - begin));
}

TEST_CASE("the trainer computes on the CPU when asked to, and says so") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "cpu"});
  const Outcome outcome = train(dir, job_file, "cpu");
  const auto json = result_of(outcome);
  CHECK(json.at("device") == "cpu");
  CHECK(has(json.at("computes_with"), "OpenBLAS"));
  CHECK(json.at("digest") == standalone_digest(dir, job_file, 1));
  CHECK(has(outcome.text, "computing on cpu with OpenBLAS"));
  CHECK(has(outcome.text, "device       cpu"));
}

TEST_CASE("without a GPU auto is the CPU with the same bits and the reason, and cuda is a mistake of the user") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "none", .rounds = 10});
  const CudaSystem system = inspect_cuda();
  if (!system.devices.empty()) return;
  const Outcome chosen = train(dir, job_file, "auto");
  const auto json = result_of(chosen);
  CHECK(json.at("device") == "cpu");
  CHECK(json.at("digest") == standalone_digest(dir, job_file, 1));
  CHECK(has(chosen.text, system.no_devices));
  const Outcome refused = train(dir, job_file, "cuda");
  CHECK(refused.status == 2);
  CHECK(has(refused.text, "tributary-train: --device cuda: " + system.no_devices));
}

TEST_CASE("a device that no machine has is refused by trainer and tool before anything starts") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "absent"});
  for (const std::string device : {"cuda:4096", "gpu"}) {
    CAPTURE(device);
    const Outcome trainer = train(dir, job_file, device);
    CHECK(trainer.status == 2);
    CHECK(has(trainer.text, "--device " + device));
    const Outcome tool = call(dir, {bin("tributary"), "up", job_file, "--base-dir", dir / "run", "--device", device});
    CHECK(tool.status == 2);
    CHECK(has(tool.text, "--device " + device));
    CHECK_FALSE(std::filesystem::exists(dir / "run"));
  }
}

TEST_CASE("a rank that asks for a GPU which is not there ends with status 2 and its rank") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "rank"});
  const Outcome outcome =
      call(dir, {bin("tributary-train"), "--job", job_file, "--rank", "1", "--world-size", "2", "--local-rank", "1",
                 "--local-world-size", "2", "--node-rank", "0", "--device", "cuda:4096"});
  CHECK(outcome.status == 2);
  CHECK(has(outcome.text, "rank 1: --device cuda:4096"));
}

TEST_CASE("the doctor's JSON names every check, and its status says whether there is a problem") {
  const TempDir dir;
  const Outcome outcome = call(dir, {bin("tributary"), "doctor", "--json"});
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
  const Outcome text = call(dir, {bin("tributary"), "doctor"});
  CHECK(text.status == outcome.status);
  CHECK(has(text.text, "/dev/shm"));
}

}  // namespace
}  // namespace tributary::e2e::devices_test
