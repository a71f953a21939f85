#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "common/doctor/check_list.h"
#include "common/doctor/gpu_checks.h"
#include "common/doctor/machine_checks.h"
#include "tests/unit/expect.h"
#include "tools/cli/install_checks.h"

namespace tributary::cli::doctor_test {
namespace {

using testing::contains;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

// All that `tributary doctor` asks of a machine.
struct Facts : MachineFacts, GpuFacts, InstallFacts {};

std::vector<Check> judge(const Facts& facts) {
  std::vector<Check> checks = judge(static_cast<const InstallFacts&>(facts));
  for (const auto& more : {tributary::judge(static_cast<const MachineFacts&>(facts)),
                           tributary::judge(static_cast<const GpuFacts&>(facts), facts.interfaces)}) {
    checks.insert(checks.end(), more.begin(), more.end());
  }
  return checks;
}

// A machine that nothing is wrong with.
Facts healthy() {
  Facts facts;
  facts.cpu = "Test CPU";
  facts.instruction_set = "AVX2";
  facts.cores = facts.usable_cores = 16;
  facts.memory = 64 * kGiB;
  facts.memory_available = 60 * kGiB;
  facts.shared_memory = facts.shared_memory_free = 32 * kGiB;
  facts.open_files = facts.open_files_most = 65536;
  facts.huge_pages = "madvise";
  facts.interfaces = {{.name = "lo", .addresses = {"127.0.0.1"}, .loopback = true, .mbit_per_s = {}, .mtu = 65536},
                      {.name = "eth0", .addresses = {"10.0.0.1"}, .loopback = false, .mbit_per_s = 25000, .mtu = 9000}};
  facts.cuda.built = true;
  facts.cuda.runtime = facts.cuda.driver = "13.0";
  facts.cuda.driver_module = "580.65.06";
  facts.cuda.mps = "/tmp/nvidia-mps";
  for (int i = 0; i < 2; ++i) {
    CudaDevice device{.index = i, .name = "NVIDIA Test", .memory = 80 * kGiB, .major = 9};
    facts.cuda.devices.push_back(device);
    facts.ipc_problems.emplace_back();
  }
  facts.nccl = {.file = "/lib/libnccl.so.2", .version = "2.28.9", .problem = {}, .left_out = {}};
  facts.folder = "/opt/tributary/bin";
  facts.data_dir = "/data";
  facts.has_data = true;
  return facts;
}

Check check_of(const Facts& facts, const std::string& name) {
  const auto checks = judge(facts);
  const auto found = std::ranges::find(checks, name, &Check::name);
  REQUIRE_MESSAGE(found != checks.end(), "no line is called " << name);
  if (found->level != CheckLevel::kOk) CHECK_FALSE(found->advice.empty());
  return *found;
}

TEST_CASE("A healthy machine has no problem and no note") {
  const auto checks = judge(healthy());
  for (const Check& check : checks) {
    CAPTURE(check.name);
    CHECK(check.level == CheckLevel::kOk);
  }
  CHECK_FALSE(has_problem(checks));
  const std::string text = checks_text(checks) + counts_text(checks);
  CHECK(contains(text, "kernels in AVX2"));
  CHECK(contains(text, "25000 Mbit/s"));
  CHECK(contains(text, "2.28.9 in /lib/libnccl.so.2"));
  CHECK(contains(text, "0 problems, 0 notes"));
}

TEST_CASE("GPUs without MPS are a note, and a machine without GPUs needs none") {
  Facts facts = healthy();
  CHECK(contains(check_of(facts, "MPS").found, "/tmp/nvidia-mps"));
  facts.cuda.mps.clear();
  CHECK(check_of(facts, "MPS").level == CheckLevel::kNote);
  CHECK(contains(check_of(facts, "MPS").advice, "nvidia-cuda-mps-control -d"));
  facts.cuda.devices.clear();
  const auto checks = judge(facts);
  CHECK(std::ranges::find(checks, "MPS", &Check::name) == checks.end());
}

TEST_CASE("A machine without GPUs is healthy too") {
  Facts facts = healthy();
  facts.cuda = {};
  facts.cuda.built = true;
  facts.cuda.no_devices = "no NVIDIA driver is installed";
  facts.ipc_problems.clear();
  facts.nccl.problem = "not found";
  CHECK_FALSE(has_problem(judge(facts)));
  CHECK(check_of(facts, "devices").level == CheckLevel::kOk);
  facts.cuda.built = false;
  CHECK_FALSE(has_problem(judge(facts)));
}

TEST_CASE("What a run would fail on is a problem, what it would suffer from a note") {
  Facts facts = healthy();
  facts.shared_memory_free = 32 << 20;
  CHECK(contains(check_of(facts, "/dev/shm").advice, "--shm-size"));
  CHECK(check_of(facts, "/dev/shm").level == CheckLevel::kNote);
  facts.shared_memory = facts.shared_memory_free = 0;
  CHECK(check_of(facts, "/dev/shm").found == "not mounted");
  CHECK(check_of(facts, "/dev/shm").level == CheckLevel::kNote);
  facts.open_files = 64;
  CHECK(check_of(facts, "open files").level == CheckLevel::kProblem);
  facts.memory_available = 1 << 20;
  CHECK(check_of(facts, "memory").level == CheckLevel::kProblem);
  facts.huge_pages = "never";
  CHECK(check_of(facts, "huge pages").level == CheckLevel::kNote);
  facts.core_quota = 0.5;
  CHECK(contains(check_of(facts, "cores").found, "limited to the time of 0.50"));
  facts.interfaces[1].mbit_per_s = 100;
  CHECK(check_of(facts, "eth0").level == CheckLevel::kNote);
  facts.interfaces.pop_back();
  CHECK(check_of(facts, "interfaces").level == CheckLevel::kNote);
  facts.missing_programs = {"tributary-worker"};
  CHECK(check_of(facts, "programs").level == CheckLevel::kProblem);
  facts.has_data = false;
  CHECK(check_of(facts, "Fashion-MNIST").level == CheckLevel::kNote);
}

TEST_CASE("GPUs that cannot be used are a problem with the reason") {
  Facts facts = healthy();
  facts.cuda.devices[1].unusable = "its compute capability is 7.0";
  CHECK(check_of(facts, "cuda:1").level == CheckLevel::kProblem);
  CHECK(check_of(facts, "cuda:0").level == CheckLevel::kOk);
  facts.cuda.devices[0].exclusive = true;
  CHECK(check_of(facts, "cuda:0").level == CheckLevel::kNote);
  facts.ipc_problems[0] = "operation not supported";
  CHECK(check_of(facts, "cuda:0 IPC").level == CheckLevel::kNote);
  facts.no_peer_access = {{0, 1}, {1, 0}};
  CHECK(contains(check_of(facts, "peer access").found, "0 to 1, 1 to 0"));
  facts.cuda.devices.clear();
  facts.cuda.no_devices = "the NVIDIA driver shows no device";
  CHECK(check_of(facts, "devices").level == CheckLevel::kProblem);
  CHECK(check_of(facts, "devices").advice == "the NVIDIA driver shows no device");
  facts.cuda.built = false;
  CHECK(check_of(facts, "CUDA").level == CheckLevel::kProblem);
}

TEST_CASE("NCCL is needed for several GPUs") {
  Facts facts = healthy();
  facts.nccl.problem = "not found; install it";
  CHECK(check_of(facts, "NCCL").level == CheckLevel::kProblem);
  CHECK(check_of(facts, "NCCL").advice == "not found; install it");
  facts.cuda.devices.pop_back();
  CHECK(check_of(facts, "NCCL").level == CheckLevel::kNote);
}

TEST_CASE("A build that left NCCL out says so, with the cure, also where the library is installed") {
  Facts facts = healthy();
  facts.nccl.left_out = "this build is without NCCL; install its header";
  CHECK(check_of(facts, "NCCL").level == CheckLevel::kProblem);
  CHECK(check_of(facts, "NCCL").advice == facts.nccl.left_out);
  CHECK(contains(check_of(facts, "NCCL").found, "not in this build"));
  facts.cuda.devices.clear();
  CHECK(check_of(facts, "NCCL").level == CheckLevel::kNote);
}

TEST_CASE("NCCL's variables are shown, and an interface that is not there is a problem") {
  Facts facts = healthy();
  facts.nccl_environment = {{"NCCL_DEBUG", "INFO"}, {"NCCL_P2P_DISABLE", "1"}, {"NCCL_SOCKET_IFNAME", "ib"}};
  CHECK(check_of(facts, "NCCL_DEBUG").found == "INFO");
  CHECK(check_of(facts, "NCCL_P2P_DISABLE").level == CheckLevel::kNote);
  CHECK(check_of(facts, "NCCL_SOCKET_IFNAME").level == CheckLevel::kProblem);
  for (const std::string fits : {"eth", "eth0", "=eth0", "ib,eth", "^ib", "^=eth"}) {
    CAPTURE(fits);
    facts.nccl_environment[2].second = fits;
    CHECK(check_of(facts, "NCCL_SOCKET_IFNAME").level == CheckLevel::kOk);
  }
  for (const std::string fails : {"=eth", "eth1", "^eth,lo"}) {
    CAPTURE(fails);
    facts.nccl_environment[2].second = fails;
    CHECK(check_of(facts, "NCCL_SOCKET_IFNAME").level == CheckLevel::kProblem);
  }
  facts.nccl_files = {"/etc/nccl.conf"};
  CHECK(check_of(facts, "file").found == "/etc/nccl.conf");
}

TEST_CASE("The JSON object holds every line, and whether all is well") {
  Facts facts = healthy();
  facts.open_files = 64;
  facts.nccl_environment = {{"NCCL_DEBUG", "INFO"}};
  const auto checks = judge(facts);
  const auto json = checks_json(checks), gpus = gpus_json(facts), interfaces = interfaces_json(facts.interfaces);
  CHECK(count_of(checks, CheckLevel::kProblem) == 1);
  CHECK(count_of(checks, CheckLevel::kNote) == 0);
  CHECK(json.size() == checks.size());
  CHECK(gpus.at("cuda").at("devices").size() == 2);
  CHECK(gpus.at("cuda").at("devices").at(0).at("compute_capability") == "9.0");
  CHECK(gpus.at("nccl").at("version") == "2.28.9");
  CHECK(gpus.at("nccl_environment").at("NCCL_DEBUG") == "INFO");
  CHECK(interfaces.at(0).at("mbit_per_s").is_null());
}

TEST_CASE("This machine's facts can be gathered and make sense") {
  Facts facts;
  static_cast<MachineFacts&>(facts) = gather_machine_facts();
  static_cast<GpuFacts&>(facts) = gather_gpu_facts(GpuLook::kThorough);
  static_cast<InstallFacts&>(facts) = gather_install_facts();
  CHECK(facts.usable_cores >= 1);
  CHECK(facts.memory > 0);
  CHECK(facts.open_files > 0);
  CHECK(facts.cuda.devices.empty() == !facts.cuda.no_devices.empty());
  CHECK(facts.ipc_problems.size() == facts.cuda.devices.size());
  CHECK(judge(facts).size() > 10);
}

TEST_CASE("What is shown in a terminal is text alone") {
  const std::string shown = checks_text({{"memory", "n\nok", CheckLevel::kProblem, "\x1b[2Jall is well", "a\rb"}});
  CHECK(contains(shown, "n?ok"));
  CHECK(contains(shown, "?[2Jall is well"));
  CHECK(contains(shown, "-> a?b"));
}

TEST_CASE("Memory is what the control group leaves") {
  Facts facts = healthy();
  facts.memory_limit = 4 * kGiB;
  facts.memory_left = 100 << 20;
  CHECK(check_of(facts, "memory").level == CheckLevel::kProblem);
  CHECK(contains(check_of(facts, "memory").found, "100.0 MiB available, limited to 4.0 GiB by the control group"));
}

TEST_CASE("Of a list of choices the one in brackets is taken") {
  CHECK(chosen_of("always [madvise] never") == "madvise");
  CHECK(chosen_of("[always] madvise never") == "always");
  CHECK(chosen_of("always").empty());
  CHECK(chosen_of("").empty());
}

}  // namespace
}  // namespace tributary::cli::doctor_test
