#include "common/doctor/machine_facts.h"

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
#include <fstream>
#include <sstream>
#include <string_view>

namespace tributary {
namespace {

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

// Returns the value of a name in "name value" lines; 0: it is not there.
std::uint64_t statistic(const std::string& path, std::string_view name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(name)) return std::strtoull(line.c_str() + name.size(), nullptr, 10);
  }
  return 0;
}

// Folders of this process's control group and of those above it (version 2).
std::vector<std::string> control_groups() {
  constexpr std::string_view kRoot = "/sys/fs/cgroup";
  std::string path = field("/proc/self/cgroup", "0:");  // "0::/system.slice/a.service"
  path = path.starts_with(":/") ? path.substr(1) : "/";
  std::vector<std::string> groups;
  for (; path.size() > 1; path.resize(std::max<std::size_t>(path.rfind('/'), 0)))
    groups.push_back(std::string(kRoot) + path);
  groups.emplace_back(kRoot);
  return groups;
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
  for (const std::string& group : control_groups()) {
    std::istringstream quota(first_line(group + "/cpu.max"));
    double time = 0.0, period = 0.0;
    if (!(quota >> time >> period) || period <= 0.0) continue;  // "max 100000": no quota
    facts.core_quota = std::min(facts.core_quota.value_or(time / period), time / period);
  }
}

void gather_memory(MachineFacts& facts) {
  facts.memory = meminfo("MemTotal");
  facts.memory_available = meminfo("MemAvailable");
  for (const std::string& group : control_groups()) {
    const auto limit = number_in<std::uint64_t>(group + "/memory.max");
    if (!limit || *limit >= facts.memory) continue;
    // The kernel frees cached files that were not used lately when memory is needed.
    const std::uint64_t all = number_in<std::uint64_t>(group + "/memory.current").value_or(0);
    const std::uint64_t used = all - std::min(all, statistic(group + "/memory.stat", "inactive_file "));
    facts.memory_limit = std::min(facts.memory_limit.value_or(*limit), *limit);
    const std::uint64_t left = *limit - std::min(used, *limit);
    facts.memory_left = std::min(facts.memory_left.value_or(left), left);
  }
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
  rlimit locked{};
  if (::getrlimit(RLIMIT_MEMLOCK, &locked) == 0) facts.locked_memory = locked.rlim_cur;
  facts.huge_pages = chosen_of(first_line("/sys/kernel/mm/transparent_hugepage/enabled"));
}

}  // namespace

std::string chosen_of(const std::string& choices) {
  const auto open = choices.find('['), close = choices.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  return choices.substr(open + 1, close - open - 1);
}

std::vector<NetworkInterface> network_interfaces() {
  std::vector<NetworkInterface> interfaces;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return interfaces;
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
    auto at = std::ranges::find(interfaces, entry->ifa_name, &NetworkInterface::name);
    if (at == interfaces.end()) {
      NetworkInterface made;
      made.name = entry->ifa_name;
      made.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
      const std::string folder = "/sys/class/net/" + made.name;
      // -1 where the driver does not know, and an error while the link is down.
      const auto speed = number_in<long>(folder + "/speed");
      if (speed && *speed > 0) made.mbit_per_s = static_cast<std::uint32_t>(*speed);
      made.physical = ::access((folder + "/device").c_str(), F_OK) == 0;
      made.mtu = number_in<std::uint32_t>(folder + "/mtu").value_or(0);
      at = interfaces.insert(interfaces.end(), std::move(made));
    }
    at->addresses.emplace_back(text);
  }
  ::freeifaddrs(list);
  return interfaces;
}

std::optional<double> stated_bytes_per_s(const std::vector<NetworkInterface>& interfaces, const std::string& address) {
  constexpr double kBytesOfMbit = 125e3;
  for (const NetworkInterface& interface : interfaces) {
    if (interface.has(address) && interface.mbit_per_s && interface.physical)
      return *interface.mbit_per_s * kBytesOfMbit;
  }
  return std::nullopt;
}

MachineFacts gather_machine_facts() {
  MachineFacts facts;
  gather_processor(facts);
  gather_memory(facts);
  facts.interfaces = network_interfaces();
  return facts;
}

}  // namespace tributary
