#include "tools/cli/machine_facts.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "common/config/config.h"
#include "common/devices/cuda_libraries.h"
#include "tools/cluster/process.h"

extern char** environ;

namespace tributary::cli {
namespace {

namespace fs = std::filesystem;

// First line of a small file; empty if it cannot be read.
std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

template <class T>
std::optional<T> number_in(const std::string& path) {
  std::istringstream in(first_line(path));
  T value{};
  if (in >> value) return value;
  return std::nullopt;
}

// The value of "key : value" lines, as /proc writes them.
std::string field(const std::string& path, std::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const auto begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return {};
}

std::uint64_t meminfo(std::string_view key) {
  return std::strtoull(field("/proc/meminfo", key).c_str(), nullptr, 10) * 1024;
}

// As kernels/dispatch.h chooses.
std::string instruction_set() {
#if defined(__x86_64__) && !defined(TRIBUTARY_SANITIZED)
  if (__builtin_cpu_supports("x86-64-v4")) return "AVX-512";
  if (__builtin_cpu_supports("x86-64-v3")) return "AVX2";
#endif
  return "baseline";
}

void gather_processor(MachineFacts& facts) {
  facts.cpu = field("/proc/cpuinfo", "model name");
  facts.instruction_set = instruction_set();
  facts.cores = static_cast<std::uint32_t>(std::max(::sysconf(_SC_NPROCESSORS_ONLN), 1L));
  cpu_set_t set;
  facts.usable_cores =
      ::sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<std::uint32_t>(CPU_COUNT(&set)) : facts.cores;
  std::istringstream quota(first_line("/sys/fs/cgroup/cpu.max"));
  double time = 0.0, period = 0.0;
  if (quota >> time >> period && period > 0.0) facts.core_quota = time / period;  // "max 100000": no quota
}

void gather_memory(MachineFacts& facts) {
  facts.memory = meminfo("MemTotal");
  facts.memory_available = meminfo("MemAvailable");
  facts.memory_limit = number_in<std::uint64_t>("/sys/fs/cgroup/memory.max");
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0) {
    facts.shared_memory = shm.f_blocks * shm.f_frsize;
    facts.shared_memory_free = shm.f_bavail * shm.f_frsize;
  }
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    facts.open_files = files.rlim_cur;
    facts.open_files_most = files.rlim_max;
  }
  facts.huge_pages = chosen_of(first_line("/sys/kernel/mm/transparent_hugepage/enabled"));
}

void gather_network(MachineFacts& facts) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char text[INET6_ADDRSTRLEN] = {};
    const void* address =
        family == AF_INET
            ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr)
            : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr);
    if (::inet_ntop(family, address, text, sizeof text) == nullptr) continue;
    auto at = std::ranges::find(facts.interfaces, entry->ifa_name, &NetworkInterface::name);
    if (at == facts.interfaces.end()) {
      NetworkInterface made;
      made.name = entry->ifa_name;
      made.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
      const std::string folder = "/sys/class/net/" + made.name;
      // -1 where the driver does not know, and an error while the link is down.
      const auto speed = number_in<long>(folder + "/speed");
      if (speed && *speed > 0) made.mbit_per_s = static_cast<std::uint32_t>(*speed);
      made.mtu = number_in<std::uint32_t>(folder + "/mtu").value_or(0);
      at = facts.interfaces.insert(facts.interfaces.end(), std::move(made));
    }
    at->addresses.emplace_back(text);
  }
  ::freeifaddrs(list);
}

LibraryFact library_fact(const Result<DynamicLibrary>& library, std::string (*version)(const DynamicLibrary&),
                         std::string left_out) {
  if (!library) {
    return {.file = {}, .version = {}, .problem = library.error().message, .left_out = std::move(left_out)};
  }
  return {.file = library->path(), .version = version(*library), .problem = {}, .left_out = std::move(left_out)};
}

void gather_gpus(MachineFacts& facts) {
  facts.cuda = inspect_cuda();
  const int count = static_cast<int>(facts.cuda.devices.size());
  for (int from = 0; from < count; ++from) {
    for (int to = 0; to < count; ++to) {
      if (from != to && !cuda_peer_access(from, to)) facts.no_peer_access.emplace_back(from, to);
    }
    facts.ipc_problems.push_back(
        facts.cuda.devices[static_cast<std::size_t>(from)].unusable.empty() ? cuda_ipc_problem(from) : std::string());
  }
  facts.cublas = library_fact(open_cublas(), cublas_version, cublas_left_out());
  facts.nccl = library_fact(open_nccl(), nccl_version, nccl_left_out());
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const auto equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    auto* list = text.starts_with("NCCL_")   ? &facts.nccl_environment
                 : text.starts_with("CUDA_") ? &facts.cuda_environment
                                             : nullptr;
    if (list != nullptr) list->emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  std::ranges::sort(facts.nccl_environment);
  std::ranges::sort(facts.cuda_environment);
  const char* home = std::getenv("HOME");
  for (const std::string& file :
       {std::string("/etc/nccl.conf"), home == nullptr ? std::string() : std::string(home) + "/.nccl.conf"}) {
    std::error_code ignored;
    if (!file.empty() && fs::exists(file, ignored)) facts.nccl_files.push_back(file);
  }
}

void gather_tributary(MachineFacts& facts) {
  facts.folder = executable_dir();
  for (const char* program : {"tributary-server", "tributary-worker", "tributary-train"}) {
    if (::access((facts.folder + "/" + program).c_str(), X_OK) != 0) facts.missing_programs.emplace_back(program);
  }
  facts.data_dir = TrainConfig{}.data_dir;
  std::error_code ignored;
  facts.has_data = fs::is_directory(facts.data_dir, ignored);
}

}  // namespace

std::string chosen_of(const std::string& choices) {
  const auto open = choices.find('['), close = choices.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  return choices.substr(open + 1, close - open - 1);
}

MachineFacts gather_facts() {
  MachineFacts facts;
  gather_processor(facts);
  gather_memory(facts);
  gather_network(facts);
  gather_gpus(facts);
  gather_tributary(facts);
  return facts;
}

}  // namespace tributary::cli
