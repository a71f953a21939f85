#include "tools/cli/doctor_checks.h"

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

#include "common/base/printed.h"

namespace tributary::cli {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20, kGiB = std::uint64_t{1} << 30;
// Below these a small model already does not fit, or many ranks on a node do not.
constexpr std::uint64_t kGoodSharedMemory = kGiB;
constexpr std::uint64_t kLeastMemory = 256 * kMiB, kGoodMemory = 2 * kGiB;
// A server holds RocksDB's files and a connection per worker and lane.
constexpr std::uint64_t kLeastFiles = 256, kGoodFiles = 1024;
constexpr std::uint32_t kGoodMbitPerS = 1000;

std::string number(double value, const char* format = "%.1f") {
  return printed(format, value);
}

std::string bytes(std::uint64_t value) {
  const bool gib = value >= kGiB;
  return number(static_cast<double>(value) / static_cast<double>(gib ? kGiB : kMiB)) + (gib ? " GiB" : " MiB");
}

class Judge {
 public:
  explicit Judge(const MachineFacts& facts) : f_(facts) {}

  std::vector<Check> run() {
    tributary();
    processor();
    memory();
    network();
    gpus();
    libraries();
    nccl_settings();
    return std::move(checks_);
  }

 private:
  void section(std::string name) { section_ = std::move(name); }
  void ok(std::string name, std::string found) { add(std::move(name), CheckLevel::kOk, std::move(found), {}); }
  void note(std::string name, std::string found, std::string advice) {
    add(std::move(name), CheckLevel::kNote, std::move(found), std::move(advice));
  }
  void problem(std::string name, std::string found, std::string advice) {
    add(std::move(name), CheckLevel::kProblem, std::move(found), std::move(advice));
  }
  void add(std::string name, CheckLevel level, std::string found, std::string advice) {
    checks_.push_back({section_, std::move(name), level, std::move(found), std::move(advice)});
  }
  // By the amount: a problem below `least`, a note below `good`.
  void amount(const char* name, std::uint64_t value, std::uint64_t least, std::uint64_t good, std::string found,
              std::string advice) {
    const CheckLevel level = value < least ? CheckLevel::kProblem : value < good ? CheckLevel::kNote : CheckLevel::kOk;
    add(name, level, std::move(found), level == CheckLevel::kOk ? std::string() : std::move(advice));
  }

  void tributary() {
    section("Tributary");
    if (f_.missing_programs.empty()) {
      ok("programs", "tributary-server, tributary-worker and tributary-train are in " + f_.folder);
    } else {
      std::string names;
      for (const std::string& name : f_.missing_programs) names += (names.empty() ? "" : ", ") + name;
      problem("programs", "not in " + f_.folder + ": " + names,
              "build or install all of Tributary; `tributary up` starts them from there");
    }
    if (f_.has_data) {
      ok("Fashion-MNIST", "in " + f_.data_dir);
    } else {
      note("Fashion-MNIST", "not in " + f_.data_dir,
           "for the example: apt-get install dataset-fashion-mnist, or set train.data_dir");
    }
  }

  void processor() {
    section("processor");
    const std::string model = f_.cpu.empty() ? "unknown model" : f_.cpu;
    if (f_.instruction_set == "baseline") {
      note("processor", model + ", kernels in baseline code",
           "sums and optimizer steps are faster with AVX2 or AVX-512");
    } else {
      ok("processor", model + ", kernels in " + f_.instruction_set);
    }
    if (f_.core_quota && *f_.core_quota < f_.usable_cores) {
      note("cores", std::to_string(f_.usable_cores) + ", limited to the time of " + number(*f_.core_quota, "%.2f"),
           "the control group's cpu.max slows down lanes that believe they have a core each; raise it, or set lanes");
    } else if (f_.usable_cores < f_.cores) {
      note("cores", std::to_string(f_.usable_cores) + " of the machine's " + std::to_string(f_.cores),
           "this process is bound to them (taskset, cpuset); daemons started from here are, too");
    } else {
      ok("cores", std::to_string(f_.usable_cores));
    }
  }

  void memory() {
    section("memory");
    const bool limited = f_.memory_limit && *f_.memory_limit < f_.memory;
    amount("memory", f_.memory_available, kLeastMemory, kGoodMemory,
           bytes(f_.memory) + ", " + bytes(f_.memory_available) + " available" +
               (limited ? ", limited to " + bytes(*f_.memory_limit) + " by the control group" : ""),
           "free some: parameters, gradients and the optimizer's state stay in memory");
    // Tributary's own shared memory has no file there (memfd); NCCL's has.
    if (f_.shared_memory == 0) {
      note("/dev/shm", "not mounted", "mount a tmpfs there if GPUs of this machine work together: NCCL uses it");
    } else if (f_.shared_memory_free < kGoodSharedMemory) {
      note("/dev/shm", bytes(f_.shared_memory_free) + " free of " + bytes(f_.shared_memory),
           "too little for NCCL between many GPUs: enlarge it (mount -o remount,size=, containers: --shm-size)");
    } else {
      ok("/dev/shm", bytes(f_.shared_memory_free) + " free of " + bytes(f_.shared_memory));
    }
    amount("open files", f_.open_files, kLeastFiles, kGoodFiles,
           "at most " + std::to_string(f_.open_files) + " (could be " + std::to_string(f_.open_files_most) + ")",
           "raise the limit: ulimit -n 65536, or LimitNOFILE= of the service");
    if (f_.huge_pages == "never") {
      note("huge pages", "never",
           "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; large buffers ask for them");
    } else {
      ok("huge pages", f_.huge_pages.empty() ? "unknown to this kernel" : f_.huge_pages);
    }
  }

  void network() {
    section("network");
    bool reachable = false;
    for (const NetworkInterface& interface : f_.interfaces) {
      std::string found;
      for (const std::string& address : interface.addresses) found += (found.empty() ? "" : ", ") + address;
      if (!interface.loopback) {
        found += interface.mbit_per_s ? "; " + std::to_string(*interface.mbit_per_s) + " Mbit/s" : "; speed unknown";
      }
      found += "; MTU " + std::to_string(interface.mtu);
      reachable |= !interface.loopback;
      if (interface.mbit_per_s.value_or(kGoodMbitPerS) < kGoodMbitPerS) {
        note(interface.name, found,
             "a slow link: use encodings with fewer bytes in the job file, or another interface");
      } else {
        ok(interface.name, found);
      }
    }
    if (!reachable) {
      note("interfaces", "none but loopback has an address", "other machines cannot reach daemons on this one");
    }
  }

  void gpus() {
    section("GPUs");
    const CudaSystem& cuda = f_.cuda;
    if (!cuda.built) {
      // With a driver, somebody wanted the GPUs to be used.
      if (cuda.driver_module.empty()) {
        ok("CUDA", "not in this build, and no NVIDIA driver here: trainers compute on the CPU");
      } else {
        problem("CUDA", "not in this build, but NVIDIA's driver " + cuda.driver_module + " is there", cuda.no_devices);
      }
    } else {
      ok("CUDA", "runtime " + cuda.runtime + " in this build");
    }
    for (const auto& [name, value] : f_.cuda_environment) ok(name, value.empty() ? "set, but empty" : value);
    if (!cuda.built) return;
    if (cuda.devices.empty()) {
      // Without a driver it is a machine without GPUs, for servers say; with one something is wrong.
      if (cuda.driver_module.empty() && cuda.driver.empty()) {
        ok("devices", "none, no NVIDIA driver: trainers compute on the CPU");
      } else {
        problem("devices", "none can be used", cuda.no_devices);
      }
      return;
    }
    ok("driver", (cuda.driver_module.empty() ? std::string("release unknown") : cuda.driver_module) +
                     ", serves CUDA up to " + cuda.driver);
    for (const CudaDevice& device : cuda.devices) one_device(device);
    if (cuda.mps.empty()) {
      note("MPS", "does not run: a worker and its trainers take turns on each device",
           "start nvidia-cuda-mps-control -d before them, as the same user; it matters most with several ranks a "
           "device, and where collectives go on while trainers compute");
    } else {
      ok("MPS", "in " + cuda.mps + ": processes share a device at the same time");
    }
    if (f_.no_peer_access.empty()) {
      if (cuda.devices.size() > 1) ok("peer access", "between all devices");
    } else {
      std::string pairs;
      for (const auto& [from, to] : f_.no_peer_access) {
        pairs += (pairs.empty() ? "" : ", ") + std::to_string(from) + " to " + std::to_string(to);
      }
      note("peer access", "not from device " + pairs, "NCCL goes through host memory there, which is slower");
    }
  }

  void one_device(const CudaDevice& device) {
    const std::string name = "cuda:" + std::to_string(device.index);
    std::string found =
        device.name + ", " + bytes(device.memory) + ", compute capability " + std::to_string(device.major) + "." +
        std::to_string(device.minor) + ", PCI " + device.pci_bus_id +
        (device.numa_node < 0 ? "" : ", NUMA node " + std::to_string(device.numa_node)) + ", " + device.uuid;
    if (!device.unusable.empty()) {
      problem(name, std::move(found), device.unusable);
    } else if (device.exclusive) {
      note(name, std::move(found) + ", exclusive to one process",
           "the worker and several trainers share a device: nvidia-smi -c DEFAULT");
    } else {
      ok(name, std::move(found));
    }
    const auto index = static_cast<std::size_t>(device.index);
    if (!device.unusable.empty() || index >= f_.ipc_problems.size()) return;
    if (f_.ipc_problems[index].empty()) {
      ok(name + " IPC", "its memory can be lent to other processes");
    } else {
      note(name + " IPC", f_.ipc_problems[index],
           "gradients then go through host memory; in containers, run worker and trainers in one, or share the IPC and "
           "PID namespaces");
    }
  }

  void libraries() {
    section("libraries for GPUs");
    const bool used = f_.cuda.built && !f_.cuda.devices.empty();
    library("cuBLAS", f_.cublas, used, false, "trainers use a slower matrix kernel of their own");
    library("NCCL", f_.nccl, used, used && f_.cuda.devices.size() > 1,
            "needed to sum over several GPUs, of a node or of an all-reduce job");
  }
  void library(const char* name, const LibraryFact& fact, bool used, bool needed, const std::string& without) {
    if (!fact.left_out.empty()) {
      add(name, needed ? CheckLevel::kProblem : CheckLevel::kNote, "not in this build: " + without, fact.left_out);
    } else if (fact.problem.empty()) {
      ok(name, fact.version + " in " + fact.file);
    } else if (!used) {
      ok(name, "not there, and not needed without GPUs");
    } else {
      add(name, needed ? CheckLevel::kProblem : CheckLevel::kNote, "not there: " + without, fact.problem);
    }
  }

  void nccl_settings() {
    section("NCCL's settings");
    for (const std::string& file : f_.nccl_files) note("file", file, "NCCL reads its settings, too");
    for (const auto& [name, value] : f_.nccl_environment) {
      if (name == "NCCL_SOCKET_IFNAME" && !names_an_interface(value)) {
        problem(name, value, "no interface of this machine with an address matches; NCCL will not start with it");
      } else if ((name == "NCCL_P2P_DISABLE" || name == "NCCL_SHM_DISABLE") && !value.empty() && value != "0") {
        note(name, value, "switches off what makes sums inside a node fast; unset it unless it works around a fault");
      } else {
        ok(name, value.empty() ? "set, but empty" : value);
      }
    }
    if (f_.nccl_environment.empty()) ok("environment", "no variable NCCL_* is set");
    if (f_.cuda.devices.empty() ||
        std::ranges::any_of(f_.nccl_environment, [](const auto& variable) { return variable.first == "NCCL_DEBUG"; })) {
      return;
    }
    ok("NCCL_DEBUG", "not set; NCCL_DEBUG=INFO shows what NCCL chose, should something be slow");
  }

  // NCCL's words: a list of prefixes; "=" before it: of whole names; "^": all but these.
  bool names_an_interface(std::string_view value) const {
    const bool inverted = value.starts_with('^');
    if (inverted) value.remove_prefix(1);
    const bool whole = value.starts_with('=');
    if (whole) value.remove_prefix(1);
    const auto listed = [&](const std::string& name) {
      std::string_view rest = value;
      while (!rest.empty()) {
        const auto comma = rest.find(',');
        const std::string_view item = rest.substr(0, comma);
        if (!item.empty() && (whole ? name == item : std::string_view(name).starts_with(item))) return true;
        rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
      }
      return false;
    };
    return value.empty() || std::ranges::any_of(f_.interfaces, [&](const NetworkInterface& interface) {
             return listed(interface.name) != inverted;
           });
  }

  const MachineFacts& f_;
  std::string section_;
  std::vector<Check> checks_;
};

const char* level_name(CheckLevel level) {
  switch (level) {
    case CheckLevel::kOk:
      return "ok";
    case CheckLevel::kNote:
      return "note";
    case CheckLevel::kProblem:
      return "problem";
  }
  return "problem";
}

std::size_t count(const std::vector<Check>& checks, CheckLevel level) {
  return static_cast<std::size_t>(std::ranges::count(checks, level, &Check::level));
}

}  // namespace

std::vector<Check> judge(const MachineFacts& facts) {
  return Judge(facts).run();
}

bool has_problem(const std::vector<Check>& checks) {
  return count(checks, CheckLevel::kProblem) > 0;
}

std::string doctor_text(const std::vector<Check>& checks) {
  std::string text, section;
  for (const Check& check : checks) {
    if (check.section != section) text += (text.empty() ? "" : "\n") + check.section + "\n";
    section = check.section;
    text += printed("  %-8s %-20s ", level_name(check.level), check.name.c_str()) + check.found + "\n";
    if (!check.advice.empty()) text += std::string(11, ' ') + "-> " + check.advice + "\n";
  }
  const std::size_t problems = count(checks, CheckLevel::kProblem), notes = count(checks, CheckLevel::kNote);
  text += "\n" + std::to_string(problems) + (problems == 1 ? " problem, " : " problems, ") + std::to_string(notes) +
          (notes == 1 ? " note\n" : " notes\n");
  return text;
}

nlohmann::ordered_json doctor_json(const MachineFacts& facts, const std::vector<Check>& checks) {
  using Json = nlohmann::ordered_json;
  auto lines = Json::array();
  for (const Check& check : checks) {
    lines.push_back({{"section", check.section},
                     {"name", check.name},
                     {"level", level_name(check.level)},
                     {"found", check.found},
                     {"advice", check.advice}});
  }
  auto devices = Json::array();
  for (const CudaDevice& device : facts.cuda.devices) {
    devices.push_back({{"index", device.index},
                       {"name", device.name},
                       {"uuid", device.uuid},
                       {"pci_bus_id", device.pci_bus_id},
                       {"numa_node", device.numa_node},
                       {"memory_bytes", device.memory},
                       {"compute_capability", std::to_string(device.major) + "." + std::to_string(device.minor)},
                       {"multiprocessors", device.multiprocessors},
                       {"unusable", device.unusable}});
  }
  auto interfaces = Json::array();
  for (const NetworkInterface& interface : facts.interfaces) {
    interfaces.push_back({{"name", interface.name},
                          {"addresses", interface.addresses},
                          {"mbit_per_s", interface.mbit_per_s ? Json(*interface.mbit_per_s) : Json(nullptr)},
                          {"mtu", interface.mtu}});
  }
  auto environment = Json::object();
  for (const auto& [name, value] : facts.nccl_environment) environment[name] = value;
  const auto library = [](const LibraryFact& fact) {
    return Json{{"file", fact.file}, {"version", fact.version}, {"problem", fact.problem}, {"left_out", fact.left_out}};
  };
  return {{"ok", !has_problem(checks)},
          {"problems", count(checks, CheckLevel::kProblem)},
          {"notes", count(checks, CheckLevel::kNote)},
          {"checks", std::move(lines)},
          {"cuda",
           {{"built", facts.cuda.built},
            {"runtime", facts.cuda.runtime},
            {"driver", facts.cuda.driver},
            {"driver_module", facts.cuda.driver_module},
            {"mps", facts.cuda.mps},
            {"no_devices", facts.cuda.no_devices},
            {"devices", std::move(devices)}}},
          {"cublas", library(facts.cublas)},
          {"nccl", library(facts.nccl)},
          {"nccl_environment", std::move(environment)},
          {"interfaces", std::move(interfaces)}};
}

}  // namespace tributary::cli
