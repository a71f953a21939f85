// bench/gpu_check with programs and an nvidia-smi that only pretend: what it runs, what it makes of how they end, and
// that its output is one JSON object whatever happens.
#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "tests/e2e/e2e.h"

namespace tributary::e2e::gpu_check_test {
namespace {

namespace fs = std::filesystem;

class Fake {
 public:
  Fake() {
    fs::create_directories(bin());
    fs::create_directories(dir_ / "path");
  }
  std::string bin() const { return dir_ / "bundle/bin"; }
  std::string out() const { return dir_ / "out"; }
  const TempDir& dir() const { return dir_; }

  void script(const std::string& path, const std::string& body) const {
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    fs::permissions(path, fs::perms::owner_all);
  }
  void program(const std::string& name, const std::string& body) const { script(bin() + "/" + name, body); }
  void gpu() const {
    script(dir_ / "path/nvidia-smi",
           "case $1 in -L) echo 'GPU 0: Some \"quoted\" GPU (UUID: x)' ;; *) echo 'Some \"quoted\" GPU, 580.1, 81559, "
           "9.0' ;; "
           "esac");
  }
  void sanitizer(const std::string& body) const { script(dir_ / "path/compute-sanitizer", body); }
  // A tributary that knows a doctor and two benchmarks of a GPU.
  void tributary() const {
    program("tributary",
            R"(case "$1 $2" in
  '--version '*) echo 'tributary 9.9.9' ;;
  '--help '*) printf '  up    train\n  doctor   look\n  bench   measure\n' ;;
  'doctor '*) echo '{"doctor":true}' ;;
  'bench --help') printf '  pushpull  x\n  gpu-kernels  y\n  gpu-pipeline  z\n' ;;
  'bench gpu-kernels') echo 'warming up' >&2; cat <<END
{"asked":"$*","gb_per_s":[1,2],"copy_gb_per_s":4000,"results":[{"kernel":"slow one","one_pass":true,"ratio":0.5}]}
END
    ;;
  'bench gpu-pipeline')
    echo '{"gb_per_s_each_way":9.5,"time_split":{"round_us":7,"device_to_host_us":2,"host_to_device_us":3}}' ;;
  *) exit 3 ;;
esac)");
  }

  nlohmann::json run(int expected_status, std::vector<std::string> more = {}) {
    std::vector<std::string> argv = {"/bin/sh",
                                     "-c",
                                     "exec \"$0\" \"$@\" 2>'" + (dir_ / "stderr") + "'",
                                     std::string(TRIBUTARY_SOURCE_DIR) + "/bench/gpu_check",
                                     "--bin",
                                     bin(),
                                     "--out",
                                     out()};
    argv.insert(argv.end(), more.begin(), more.end());
    const std::string out = dir_ / "stdout";
    fs::remove(out);
    const std::string path = (dir_ / "path") + ":" + std::getenv("PATH");
    auto process = Process::spawn({.argv = argv, .log_file = out, .environment = {{"PATH", path}}});
    REQUIRE_MESSAGE(process, process.error().message);
    const auto status = process->wait(kPatience);
    INFO(last_lines(out, 5) << last_lines(dir_ / "stderr", 20));
    REQUIRE(status);
    CHECK(status->signal == 0);
    CHECK(status->code == expected_status);
    std::ifstream in(out);
    return nlohmann::json::parse(in);  // throws if there is anything but one value
  }

 private:
  TempDir dir_;
};

const nlohmann::json& step(const nlohmann::json& result, const std::string& name) {
  const auto& steps = result.at("steps");
  const auto found = std::find_if(steps.begin(), steps.end(), [&](const auto& s) { return s.at("name") == name; });
  INFO(result.dump(1) << " has no step " << name);
  REQUIRE(found != steps.end());
  return *found;
}

constexpr const char* kDoctestEnd =
    "echo '[doctest] test cases:  8 |  7 passed | 0 failed | 1 skipped'; echo '[doctest] Status: SUCCESS!'";

TEST_CASE("gpu_check says that there is no GPU") {
  Fake fake;
  fake.tributary();
  // Devices of this machine are seen whatever PATH says.
  const auto entries = fs::directory_iterator("/dev");
  if (std::any_of(fs::begin(entries), fs::end(entries), [](const fs::directory_entry& e) {
        const std::string name = e.path().filename();
        return name.starts_with("nvidia") && name.size() > 6 && std::isdigit(static_cast<unsigned char>(name[6]));
      })) {
    MESSAGE("this machine has one");
    return;
  }
  fake.script(fake.dir() / "path/nvidia-smi", "exit 9");
  const nlohmann::json result = fake.run(2, {"--budget", "60"});
  CHECK(result.at("status") == "no GPU");
  CHECK(result.at("steps").empty());
  CHECK(result.at("seconds").get<double>() < 60.0);
  CHECK_FALSE(result.at("reason").get<std::string>().empty());
}

TEST_CASE("gpu_check runs tests, sanitizers and benchmarks, and keeps their figures") {
  Fake fake;
  fake.gpu();
  fake.tributary();
  fake.program("test_gpu_one", kDoctestEnd);
  fake.program("test_gpu_two", kDoctestEnd);
  fake.sanitizer("for last; do :; done; echo \"$*\" >>'" + (fake.dir() / "sanitized") + "'; exec \"$last\"");
  const nlohmann::json result = fake.run(0);
  CHECK(result.at("status") == "passed");
  CHECK(result.at("version") == "tributary 9.9.9");
  const nlohmann::json& gpu = result.at("machine").at("gpus").at(0);
  CHECK(gpu.at("name") == "Some \"quoted\" GPU");
  CHECK(gpu.at("memory_mib") == 81559);
  CHECK(gpu.at("driver") == "580.1");
  for (const char* name : {"test_gpu_one", "test_gpu_two", "memcheck test_gpu_one", "racecheck test_gpu_two"}) {
    CHECK(step(result, name).at("status") == "passed");
    CHECK(step(result, name).at("figures").at("passed") == 7);
    CHECK(step(result, name).at("figures").at("skipped") == 1);
  }
  CHECK(step(result, "doctor").at("figures").at("doctor") == true);
  const nlohmann::json& kernels = step(result, "bench gpu-kernels, 2^28 values").at("figures");
  CHECK(kernels.at("gb_per_s").at(1) == 2);
  CHECK(kernels.at("asked") == "bench gpu-kernels --elements 268435456 --json");
  CHECK(step(result, "bench gpu-costs").at("status") == "skipped");
  const std::string page = last_lines(fake.out() + "/gpu_check.txt", 1000);
  for (const char* said :
       {"gpu_check: passed", "name Some \"quoted\" GPU", "1 of one pass below 0.85 of it; slow one 0.50",
        "bench gpu-pipeline, int8, 4 MiB, ranks 1: 9.50 GB/s each way; of a chunk's 7 us 2 up, 3 down",
        "skipped: bench gpu-costs: this build's 'tributary bench' has no gpu-costs"}) {
    CHECK_MESSAGE(page.find(said) != std::string::npos, said, "\n", page);
  }
  CHECK(step(result, "bench gpu-pipeline").at("status") == "passed");
  CHECK(step(result, "bench gpu-pipeline, MPS").at("reason") == "nvidia-cuda-mps-control is not on PATH");
  // No machine that this test runs on has both a torch for CUDA and a GPU that only pretends.
  CHECK(step(result, "torch, gpt").at("status") == "skipped");
  CHECK(step(result, "torch, gpt").at("reason").get<std::string>().find("has no torch with CUDA") != std::string::npos);
  std::ifstream sanitized(fake.dir() / "sanitized");
  std::string line;
  std::size_t lines = 0;
  for (; std::getline(sanitized, line); ++lines) {
    CHECK(line.find("--error-exitcode") != std::string::npos);
    // Tests make calls fail, and look at what is said.
    CHECK((line.find("--report-api-errors no") != std::string::npos) == (line.find("memcheck") != std::string::npos));
  }
  CHECK(lines == 8);
  // What tells most comes first.
  std::vector<std::string> order;
  for (const auto& one : result.at("steps")) order.push_back(one.at("name").get<std::string>().substr(0, 5));
  order.erase(std::unique(order.begin(), order.end()), order.end());
  CHECK(order == std::vector<std::string>{"docto", "bench", "test_", "torch", "memch", "racec", "syncc", "initc"});
  // Each step's object was written when it ended, the whole at the end.
  std::ifstream written(fake.out() + "/steps.jsonl");
  for (const auto& one : result.at("steps")) {
    REQUIRE(std::getline(written, line));
    CHECK(nlohmann::json::parse(line) == one);
  }
  std::ifstream whole(fake.out() + "/gpu_check.json");
  CHECK(nlohmann::json::parse(whole) == result);
}

TEST_CASE("gpu_check measures the pipeline once more under MPS, which it starts and ends") {
  Fake fake;
  fake.gpu();
  fake.tributary();
  const std::string said = fake.dir() / "mps";
  fake.script(fake.dir() / "path/nvidia-cuda-mps-control",
              "case \"$1\" in -d) touch \"$CUDA_MPS_PIPE_DIRECTORY/control\"; echo began >>'" + said +
                  "' ;; *) read word; test -e \"$CUDA_MPS_PIPE_DIRECTORY/control\" && echo \"$word\" >>'" + said +
                  "' ;; esac");
  nlohmann::json result = fake.run(0, {"--only", "MPS"});
  CHECK(step(result, "bench gpu-pipeline, MPS").at("status") == "passed");
  CHECK(step(result, "bench gpu-pipeline, MPS").at("figures").at("gb_per_s_each_way") == 9.5);
  std::ifstream in(said);
  CHECK(std::string(std::istreambuf_iterator<char>(in), {}) == "began\nquit\n");
  fake.script(fake.dir() / "path/nvidia-cuda-mps-control", "echo 'no right to' >&2; exit 1");
  result = fake.run(0, {"--only", "gpu-pipeline"});
  CHECK(step(result, "bench gpu-pipeline, MPS").at("reason") == "nvidia-cuda-mps-control -d: no right to");
}

TEST_CASE("gpu_check ends when its budget is spent, and says what was left out for it") {
  Fake fake;
  fake.gpu();
  fake.tributary();
  fake.program("test_gpu_endless", "sleep 100 & wait");
  fake.program("test_gpu_later", kDoctestEnd);
  const nlohmann::json result = fake.run(1, {"--budget", "8"});
  CHECK(result.at("seconds").get<double>() < 20.0);
  CHECK(step(result, "bench gpu-kernels, 2^18 values").at("status") == "passed");
  CHECK(step(result, "test_gpu_endless").at("status") == "failed");
  CHECK(step(result, "test_gpu_endless").at("seconds").get<double>() < 10.0);
  CHECK(step(result, "test_gpu_later").at("status") == "skipped");
  CHECK(step(result, "test_gpu_later").at("reason") == "the budget is spent (--budget)");
}

TEST_CASE("gpu_check counts cases without the library they are about as skipped, and tests hear what is required") {
  Fake fake;
  fake.gpu();
  fake.tributary();
  const std::string skipped = "echo 'x.cc:26: MESSAGE: skipped: NCCL cannot be loaded'";
  fake.program("test_gpu_none",
               skipped + "; echo '[doctest] test cases: 1 | 1 passed | 0 failed | 0 skipped'; echo $TRIBUTARY_REQUIRE");
  fake.program("test_gpu_some", skipped + "; echo '[doctest] test cases: 3 | 3 passed | 0 failed | 0 skipped'");
  fake.program("test_gpu_needs", "test \"$TRIBUTARY_REQUIRE\" = nccl && exit 1; exit 0");
  nlohmann::json result = fake.run(0, {"--only", "^test_"});
  CHECK(step(result, "test_gpu_none").at("status") == "skipped");
  CHECK(step(result, "test_gpu_none").at("reason") == "NCCL cannot be loaded");
  CHECK(step(result, "test_gpu_some").at("status") == "passed");
  CHECK(step(result, "test_gpu_some").at("figures").at("passed") == 2);
  CHECK(step(result, "test_gpu_some").at("figures").at("skipped") == 1);
  result = fake.run(1, {"--only", "^test_", "--require", "nccl"});
  CHECK(step(result, "test_gpu_needs").at("status") == "failed");
}

TEST_CASE("gpu_check fails with a test, a sanitizer's finding, and a step that takes too long") {
  Fake fake;
  fake.gpu();
  fake.tributary();
  fake.program("test_gpu_bad", "echo 'a \"bad\" \\ result\t'; exit 1");
  fake.program("test_gpu_slow", "sleep 100 & wait");
  fake.sanitizer("exit 86");
  const nlohmann::json result = fake.run(1, {"--limit", "1"});
  CHECK(result.at("status") == "failed");
  CHECK(step(result, "test_gpu_bad").at("status") == "failed");
  CHECK(step(result, "test_gpu_bad").at("reason").get<std::string>().find("a \"bad\" \\ result") != std::string::npos);
  CHECK(step(result, "test_gpu_slow").at("status") == "failed");
  CHECK(step(result, "test_gpu_slow").at("reason") == "took longer than 1 s");
  CHECK(step(result, "test_gpu_slow").at("seconds").get<double>() < 20.0);
  CHECK(step(result, "memcheck test_gpu_bad").at("status") == "failed");
}

TEST_CASE("gpu_check says why it skips, and that nothing was checked") {
  Fake fake;
  fake.gpu();
  fake.program("tributary", "case \"$1\" in --version) echo tributary ;; --help) echo '  up x' ;; *) exit 1 ;; esac");
  const nlohmann::json result = fake.run(1);
  CHECK(result.at("status") == "failed");
  CHECK(result.at("reason").get<std::string>().find("nothing was checked") != std::string::npos);
  for (const auto& one : result.at("steps")) {
    CHECK(one.at("status") == "skipped");
    CHECK_FALSE(one.at("reason").get<std::string>().empty());
  }
  fake.tributary();
  const nlohmann::json only = fake.run(0, {"--only", "^bench"});
  CHECK(step(only, "bench gpu-kernels, 2^18 values").at("status") == "passed");
  CHECK(step(only, "doctor").at("status") == "skipped");
}

}  // namespace
}  // namespace tributary::e2e::gpu_check_test
