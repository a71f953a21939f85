#include "common/doctor/machine_checks.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "common/base/printed.h"
#include "common/base/quantity.h"
#include "common/doctor/check_list.h"

namespace tributary {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20, kGiB = std::uint64_t{1} << 30;
// Below these a small model already does not fit, or many ranks on a node do not.
constexpr std::uint64_t kGoodSharedMemory = kGiB;
constexpr std::uint64_t kLeastMemory = 256 * kMiB, kGoodMemory = 2 * kGiB;
// A server holds RocksDB's files and a connection per worker and lane.
constexpr std::uint64_t kLeastFiles = 256, kGoodFiles = 1024;
constexpr std::uint32_t kGoodMbitPerS = 1000;
constexpr std::size_t kMostInterfaces = 32;  // that have a line: containers bring hundreds

class Judge {
 public:
  explicit Judge(const MachineFacts& facts) : f_(facts) {}

  std::vector<Check> run() {
    processor();
    memory();
    network();
    return out_.take();
  }

 private:
  void processor() {
    out_.section("processor");
    const std::string model = f_.cpu.empty() ? "unknown model" : f_.cpu;
    if (f_.instruction_set == "baseline") {
      out_.note("processor", model + ", kernels in baseline code",
                "sums and optimizer steps are faster with AVX2 or AVX-512");
    } else {
      out_.ok("processor", model + ", kernels in " + f_.instruction_set);
    }
    if (f_.core_quota && *f_.core_quota < f_.usable_cores) {
      out_.note(
          "cores", std::to_string(f_.usable_cores) + ", limited to the time of " + printed("%.2f", *f_.core_quota),
          "the control group's cpu.max slows down lanes that believe they have a core each; raise it, or set lanes");
    } else if (f_.usable_cores < f_.cores) {
      out_.note("cores", std::to_string(f_.usable_cores) + " of the machine's " + std::to_string(f_.cores),
                "this process is bound to them (taskset, cpuset); daemons started from here are, too");
    } else {
      out_.ok("cores", std::to_string(f_.usable_cores));
    }
  }

  void memory() {
    out_.section("memory");
    const std::uint64_t available = std::min(f_.memory_available, f_.memory_left.value_or(f_.memory_available));
    out_.amount(
        "memory", available, kLeastMemory, kGoodMemory,
        memory_in_words(f_.memory) + ", " + memory_in_words(available) + " available" +
            (f_.memory_limit ? ", limited to " + memory_in_words(*f_.memory_limit) + " by the control group" : ""),
        "free some: parameters, gradients and the optimizer's state stay in memory");
    // Tributary's own shared memory has no file there (memfd); NCCL's has.
    if (f_.shared_memory == 0) {
      out_.note("/dev/shm", "not mounted", "mount a tmpfs there if GPUs of this machine work together: NCCL uses it");
    } else if (f_.shared_memory_free < kGoodSharedMemory) {
      out_.note("/dev/shm", memory_in_words(f_.shared_memory_free) + " free of " + memory_in_words(f_.shared_memory),
                "too little for NCCL between many GPUs: enlarge it (mount -o remount,size=, containers: --shm-size)");
    } else {
      out_.ok("/dev/shm", memory_in_words(f_.shared_memory_free) + " free of " + memory_in_words(f_.shared_memory));
    }
    out_.amount("open files", f_.open_files, kLeastFiles, kGoodFiles,
                "at most " + std::to_string(f_.open_files) + " (could be " + std::to_string(f_.open_files_most) + ")",
                "raise the limit: ulimit -n 65536, or LimitNOFILE= of the service");
    // Only what talks to network cards and GPUs directly locks much of it.
    out_.ok("locked memory",
            f_.locked_memory == RLIM_INFINITY ? "not limited" : "at most " + memory_in_words(f_.locked_memory));
    if (f_.huge_pages == "never") {
      out_.note("huge pages", "never",
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; large buffers ask for them");
    } else {
      out_.ok("huge pages", f_.huge_pages.empty() ? "unknown to this kernel" : f_.huge_pages);
    }
  }

  void network() {
    out_.section("network");
    bool reachable = false;
    std::size_t shown = 0;
    for (const NetworkInterface& interface : f_.interfaces) {
      reachable |= !interface.loopback;
      if (++shown > kMostInterfaces) continue;
      std::string found;
      for (const std::string& address : interface.addresses) found += (found.empty() ? "" : ", ") + address;
      if (!interface.loopback) {
        found += interface.mbit_per_s ? "; " + std::to_string(*interface.mbit_per_s) + " Mbit/s" : "; speed unknown";
      }
      found += "; MTU " + std::to_string(interface.mtu);
      if (interface.mbit_per_s.value_or(kGoodMbitPerS) < kGoodMbitPerS) {
        out_.note(interface.name, found,
                  "a slow link: use encodings with fewer bytes in the job file, or another interface");
      } else {
        out_.ok(interface.name, found);
      }
    }
    if (!reachable) {
      out_.note("interfaces", "none but loopback has an address", "other machines cannot reach daemons on this one");
    }
  }

  const MachineFacts& f_;
  CheckList out_;
};

}  // namespace

std::vector<Check> judge(const MachineFacts& facts) {
  return Judge(facts).run();
}

nlohmann::ordered_json interfaces_json(const std::vector<NetworkInterface>& interfaces) {
  using Json = nlohmann::ordered_json;
  auto all = Json::array();
  for (const NetworkInterface& interface : interfaces) {
    all.push_back({{"name", interface.name},
                   {"addresses", interface.addresses},
                   {"mbit_per_s", interface.mbit_per_s ? Json(*interface.mbit_per_s) : Json(nullptr)},
                   {"mtu", interface.mtu}});
  }
  return all;
}

}  // namespace tributary
