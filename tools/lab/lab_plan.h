// The plan of a lab, a pure function of its file: namespaces, addresses, and the commands that make them.
//
//      namespace tributary-lab.NAME.w0         namespace tributary-lab.NAME.switch
//     ┌───────────────────────┐              ┌──────────────────────────────┐
//     │ eth0 10.77.0.1 ── tbf ┼── veth pair ─┼ tbf ── p0 ┐                  │
//     └───────────────────────┘   up →       │           ├─ bridge br0      │
//     ┌───────────────────────┐     ← down   │           │                  │
//     │ eth0 10.77.0.2 ── tbf ┼──────────────┼ tbf ── p1 ┘                  │
//     └───────────────────────┘              └──────────────────────────────┘
//
// tbf shapes the traffic that leaves an interface, so the limit up is at eth0 and the limit down at the bridge's port.
// The machine's own network is not touched.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/lab/lab_config.h"

namespace tributary::lab {

inline constexpr const char* kNamespacePrefix = "tributary-lab.";
inline constexpr const char* kHostInterface = "eth0";           // of every host
inline constexpr const char* kNamespaceFolder = "/run/netns/";  // iproute2's

struct PlannedHost {
  std::string name;
  std::string network_namespace;  // its name, as iproute2 takes it
  std::string address;            // IPv4
  std::string port;               // the bridge's interface towards it
};

// A kernel setting of one namespace: /proc/sys/PATH.
struct PlannedSetting {
  std::string network_namespace;
  std::string path;
  std::string value;
};

struct LabPlan {
  std::string switch_namespace;
  std::vector<PlannedHost> hosts;  // in the order of LabConfig::hosts
  std::vector<std::vector<std::string>> commands;
  std::vector<PlannedSetting> settings;  // after the commands
  // Namespaces that `commands` make, the switch last: deleting them takes everything else along.
  std::vector<std::string> namespaces;
  // Equal for two files that make the same network.
  std::string fingerprint;
};

LabPlan plan_lab(const LabConfig& config);

// "tributary-lab.NAME.": all namespaces of a lab begin with it.
std::string namespace_prefix(const std::string& lab_name);
std::string namespace_path(const std::string& network_namespace);

}  // namespace tributary::lab
