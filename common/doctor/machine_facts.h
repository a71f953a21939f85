// Facts of a machine, except its GPUs (common/doctor/gpu_facts.h). machine_checks.h judges them. Facts of a process
// (limits, cores) are the calling process's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tributary {

struct NetworkInterface {
  std::string name;
  std::vector<std::string> addresses;
  bool has(const std::string& address) const { return std::ranges::find(addresses, address) != addresses.end(); }
  bool loopback = false;
  std::optional<std::uint32_t> mbit_per_s;  // where the driver knows it
  bool physical = false;                    // a card, whose rate means something
  std::uint32_t mtu = 0;
};

struct MachineFacts {
  std::string cpu;              // "Intel(R) Xeon(R) ..."
  std::string instruction_set;  // that our kernels use: "AVX-512", "AVX2" or "baseline"
  std::uint32_t cores = 0;      // of the machine
  std::uint32_t usable_cores = 0;
  std::optional<double> core_quota;  // of the control group
  std::uint64_t memory = 0, memory_available = 0;
  // Limit of the process's control group, or of one above it, and the rest of it.
  std::optional<std::uint64_t> memory_limit, memory_left;
  std::uint64_t shared_memory = 0, shared_memory_free = 0;  // /dev/shm; 0: not mounted
  std::uint64_t open_files = 0, open_files_most = 0;        // soft and hard limit
  std::uint64_t locked_memory = 0;                          // soft limit, bytes
  std::string huge_pages;                                   // "always", "madvise", "never"; empty: unknown
  std::vector<NetworkInterface> interfaces;                 // that are up and have an address
};

MachineFacts gather_machine_facts();
std::vector<NetworkInterface> network_interfaces();
// Returns the rate that the driver reports for the card with this address, bytes per second; none: it reports none, or
// there is no card (the loopback, a container's interface).
std::optional<double> stated_bytes_per_s(const std::vector<NetworkInterface>& interfaces, const std::string& address);

// The chosen one of "always [madvise] never"; empty if nothing is chosen.
std::string chosen_of(const std::string& choices);

}  // namespace tributary
