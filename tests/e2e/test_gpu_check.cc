// bench/gpu_check with an nvidia-smi and programs that only pretend, and with real ones: emulated kernels, and daemons
// that stand still. Covers the commands it runs, its verdicts on their exits, and the output it keeps.
#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "tests/e2e/e2e.h"
#include "tests/unit/required.h"

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
           "case $1 in -L) echo 'GPU 0: Some \"quoted\" GPU (UUID: x)' ;; -q) echo 'all about it' ;; *) echo 'Some "
           "\"quoted\" GPU, 580.1, 81559, "
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
    echo '{"gb_per_s_each_way":9.5,"ratio_to_ceiling":0.0,'\
'"time_split":{"round_us":7,"device_to_host_us":2,"host_to_device_us":3},'\
'"link":{"device_to_host_gb_per_s":19.0,"host_to_device_gb_per_s":25.0}}' ;;
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
                                     out(),
                                     "--json"};
    argv.insert(argv.end(), more.begin(), more.end());
    const std::string out = dir_ / "stdout";
    fs::remove(out);
    const std::string path = (dir_ / "path") + ":" + std::getenv("PATH");
    auto process = required(Process::spawn({.argv = argv, .log_file = out, .environment = {{"PATH", path}}}));
    const auto status = process.wait(kPatience);
    INFO(last_lines(out, 5) << last_lines(dir_ / "stderr", 20));
    REQUIRE(status);
    CHECK(status->signal == 0);
    CHECK(status->code == expected_status);
    std::ifstream in(out);
    return nlohmann::json::parse(in);  // throws if there is anything but one value
  }

  // A file of the results.
  std::string kept(const std::string& name) const {
    return e2e::run({"/bin/bash", "-c", "tar xOf '" + out() + "/results.tar' '" + name + ".gz' | gunzip"}).text;
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
  for (const char* test : {"test_gpu_kernels", "test_gpu_node", "test_gpu_third"}) fake.program(test, kDoctestEnd);
  fake.program("test_gpu_costs", "exit 1");  // of a build tree: its GPU is emulated
  fake.sanitizer("for last; do :; done; echo \"$*\" >>'" + (fake.dir() / "sanitized") +
                 "'; until test -x \"$1\"; do shift; done; exec \"$@\"");
  const nlohmann::json result = fake.run(0);
  CHECK(result.at("status") == "passed");
  CHECK(result.at("version") == "tributary 9.9.9");
  const nlohmann::json& gpu = result.at("machine").at("gpus").at(0);
  CHECK(gpu.at("name") == "Some \"quoted\" GPU");
  CHECK(gpu.at("memory_mib") == 81559);
  CHECK(gpu.at("driver") == "580.1");
  for (const char* name : {"test_gpu_kernels", "test_gpu_node, all-reduce", "test_gpu_third",
                           "memcheck test_gpu_kernels, small cases", "racecheck test_gpu_kernels, small cases"}) {
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
        // Few values are no measure of a kernel.
        "bench gpu-kernels, 2^18 values: copy 4000 GB/s; 1 kernels\n",
        "bench gpu-pipeline, int8, 4 MiB, ranks 1: 9.50 GB/s each way, 0.50 of bare copies; of a chunk's 7 us 2 up, 3 "
        "down",
        "skipped: bench gpu-costs: this build's 'tributary bench' has no gpu-costs"}) {
    CHECK_MESSAGE(contains(page, said), said, "\n", page);
  }
  CHECK(step(result, "bench gpu-pipeline, fp32, tcp").at("status") == "passed");
  CHECK(step(result, "bench gpu-pipeline, MPS, ranks 1").at("reason") == "nvidia-cuda-mps-control is not on PATH");
  // No machine that this test runs on has both a torch for CUDA and a GPU that only pretends.
  for (const char* name : {"torch, gpt", "torch, gpt, MPS, ranks 2", "losses, calm", "losses, worker"}) {
    CHECK(contains(step(result, name).at("reason").get<std::string>(), "has no torch with CUDA"));
  }
  std::ifstream sanitized(fake.dir() / "sanitized");
  std::string line;
  std::size_t lines = 0;
  for (; std::getline(sanitized, line); ++lines) {
    CHECK(contains(line, "--error-exitcode"));
    CHECK(contains(line, "--test-case="));
    // Tests make calls fail, and look at what is said.
    CHECK(contains(line, "--report-api-errors no") == contains(line, "memcheck"));
  }
  CHECK(lines == 2);
  // Whether it is right comes before how fast it is.
  std::vector<std::string> order;
  for (const auto& one : result.at("steps")) order.push_back(one.at("rung"));
  order.erase(std::unique(order.begin(), order.end()), order.end());
  CHECK(order == std::vector<std::string>{"doctor", "kernels", "node", "tests", "pipeline", "costs", "speed", "torch",
                                          "losses", "sanitizer", "pipelines"});
  std::ifstream whole(fake.out() + "/gpu_check.json");
  CHECK(nlohmann::json::parse(whole) == result);
  CHECK(nlohmann::json::parse(fake.kept("doctor/step.json")) == step(result, "doctor"));
  CHECK(fake.kept("machine/nvidia-smi-q.txt") == "all about it\n");
  // From a rung on.
  const nlohmann::json later = fake.run(0, {"--from", "pipelines"});
  CHECK(later.at("steps").at(0).at("rung") == "pipelines");
}

TEST_CASE("gpu_check keeps enough of a step that fails, crashes or hangs to mend it elsewhere") {
  Fake fake;
  fake.gpu();
  // A benchmark whose daemons serve for a quarter of an hour.
  fake.program("tributary",
               "case \"$1 $2\" in '--help '*) echo '  bench x' ;; 'bench --help') echo '  gpu-pipeline z' ;; "
               "'bench gpu-pipeline') shift 2; exec '" +
                   bin("tributary") +
                   "' bench pushpull \"$@\" --model-bytes 4mb --seconds 900 --slices 1 --no-ceiling ;; esac");
  // The emulation's kernels have the names of the cases on a device.
  fake.program("test_gpu_kernels", "exec '" + bin("test_cuda_emulated") + "' --test-case='CUDA scale*'");
  fake.program("test_gpu_node", "echo 'opening lent memory' >&2; kill -SEGV $$");
  fake.program("test_gpu_other", "echo 'a \"bad\" \\ result\t'; exit 1");
  const nlohmann::json result = fake.run(1, {"--limit", "12"});
  CHECK(step(result, "test_gpu_kernels").at("status") == "passed");
  const nlohmann::json& crashed = step(result, "test_gpu_node, another process");
  CHECK(crashed.at("reason") == "ended by signal 11:\nopening lent memory");
  CHECK(fake.kept("test_gpu_node-another-process/nvidia-smi-q.txt") == "all about it\n");
  CHECK(step(result, "test_gpu_other").at("reason").get<std::string>().find("a \"bad\" \\ result") !=
        std::string::npos);
  const std::string hung = "bench gpu-pipeline, fp32, shm", folder = "bench-gpu-pipeline-fp32-shm";
  CHECK(step(result, hung).at("reason").get<std::string>().starts_with("took longer than 12 s"));
  // Others of its kind would take their time, too.
  CHECK(step(result, "bench gpu-pipeline, fp32, 1 MiB, ranks 1").at("reason") == "'" + hung + "' failed");
  const std::string threads = fake.kept(folder + "/threads.txt");
  CHECK_MESSAGE(contains(threads, "tributary-worker"), threads);
  const Outcome logs = run({"/bin/bash", "-c", "tar tf '" + fake.out() + "/results.tar' | grep '" + folder + "/logs'"});
  INFO(logs.text);
  std::string worker;
  std::istringstream names(logs.text);
  for (std::string name; std::getline(names, name);) {
    if (contains(name, "worker-0.log")) worker = fake.kept(name.substr(0, name.size() - 3));
    if (contains(name, "worker-0.toml")) {
      CHECK(contains(fake.kept(name.substr(0, name.size() - 3)), "level = \"debug\""));
    }
  }
  CHECK(contains(worker, "crash: signal 6"));
  CHECK(contains(worker, "(+0x"));
  CHECK(contains(worker, "which the signal hit"));
  const std::string page = last_lines(fake.out() + "/gpu_check.txt", 1000);
  CHECK_MESSAGE(page.find("gpu_check: failed, ") < 5, page);
  CHECK(contains(page, "failed: node: test_gpu_node, another process: ended by signal 11"));
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
  CHECK(step(result, "bench gpu-pipeline, MPS, ranks 1").at("status") == "passed");
  CHECK(step(result, "bench gpu-pipeline, MPS, ranks 1").at("figures").at("gb_per_s_each_way") == 9.5);
  const auto text = [&] {
    std::ifstream in(said);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  CHECK(text() == "began\nquit\nbegan\nquit\n");  // with one rank and with two
  fs::remove(said);
  fake.run(0, {"--only", "doctor"});
  CHECK_FALSE(fs::exists(said));
  fake.script(fake.dir() / "path/nvidia-cuda-mps-control", "echo 'no right to' >&2; exit 1");
  result = fake.run(0, {"--only", "gpu-pipeline"});
  CHECK(step(result, "bench gpu-pipeline, MPS, ranks 2").at("reason") == "nvidia-cuda-mps-control -d: no right to");
}

TEST_CASE("gpu_check ends when its budget is spent, and says what was left out for it") {
  Fake fake;
  fake.gpu();
  fake.tributary();
  fake.program("test_gpu_kernels", kDoctestEnd);
  fake.program("test_gpu_node", "sleep 100 & wait");
  fake.program("test_gpu_later", kDoctestEnd);
  const nlohmann::json result = fake.run(1, {"--budget", "8"});
  CHECK(result.at("seconds").get<double>() < 20.0);
  CHECK(step(result, "test_gpu_kernels").at("status") == "passed");
  CHECK(step(result, "test_gpu_node, sums and encodings").at("status") == "failed");
  CHECK(step(result, "test_gpu_node, sums and encodings").at("seconds").get<double>() < 15.0);
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

TEST_CASE("gpu_check fails with a sanitizer's finding, and with a filter that fits no case") {
  Fake fake;
  fake.gpu();
  fake.program("test_gpu_kernels", kDoctestEnd);
  fake.program("test_gpu_node", "echo '[doctest] test cases: 0 | 0 passed | 0 failed | 9 skipped'");
  fake.tributary();
  fake.sanitizer("exit 86");
  const nlohmann::json result = fake.run(1);
  CHECK(step(result, "memcheck test_gpu_kernels, small cases").at("reason") == "exit status 86");
  CHECK(step(result, "test_gpu_node, all-reduce").at("reason") == "no case of it was run");
  fake.sanitizer("echo '========= Error: Device not supported. Please refer to its documentation'; exit 1");
  const nlohmann::json unsupported = fake.run(1);
  const nlohmann::json& small = step(unsupported, "racecheck test_gpu_kernels, small cases");
  CHECK(small.at("status") == "skipped");
  CHECK(small.at("reason").get<std::string>().starts_with("compute-sanitizer: Error: Device not supported"));
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
