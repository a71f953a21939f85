#include "tools/lab/lab_plan.h"

#include <cmath>
#include <cstdio>

#include "common/base/assert.h"

namespace tributary::lab {
namespace {

using Words = std::vector<std::string>;

std::string bits_per_second(double mbit) {
  return std::to_string(std::llround(mbit * 1e6)) + "bit";
}

Words limit(const std::string& network_namespace, const std::string& interface, double mbit, std::uint32_t burst,
            std::uint32_t queue) {
  return {"tc",
          "-n",
          network_namespace,
          "qdisc",
          "add",
          "dev",
          interface,
          "root",
          "tbf",
          "rate",
          bits_per_second(mbit),
          "burst",
          std::to_string(burst),
          "limit",
          std::to_string(queue)};
}

}  // namespace

std::string namespace_prefix(const std::string& lab_name) {
  return std::string(kNamespacePrefix) + lab_name + ".";
}

std::string namespace_path(const std::string& network_namespace) {
  return kNamespaceFolder + network_namespace;
}

LabPlan plan_lab(const LabConfig& config) {
  LabPlan plan;
  const std::string prefix = namespace_prefix(config.name);
  const std::string& bridge = plan.switch_namespace = prefix + "switch";
  auto& commands = plan.commands;
  commands.push_back({"ip", "netns", "add", bridge});
  // No spanning tree and no snooping of multicast: they would only send packets of their own and delay the first ones.
  commands.push_back({"ip", "-n", bridge, "link", "add", "br0", "type", "bridge", "stp_state", "0", "forward_delay",
                      "0", "mcast_snooping", "0"});
  commands.push_back({"ip", "-n", bridge, "link", "set", "br0", "up"});
  plan.settings.push_back({bridge, "net/ipv6/conf/all/disable_ipv6", "1"});
  const std::uint32_t queue = queue_bytes(config);
  for (std::size_t i = 0; i < config.hosts.size(); ++i) {
    const LabHost& host = config.hosts[i];
    TRIB_ASSERT(i < 254 && "one octet of the address");
    const PlannedHost planned{.name = host.name,
                              .network_namespace = prefix + host.name,
                              .address = "10.77.0." + std::to_string(i + 1),
                              .port = "p" + std::to_string(i)};
    const std::string& ns = planned.network_namespace;
    commands.push_back({"ip", "netns", "add", ns});
    commands.push_back(
        {"ip", "-n", bridge, "link", "add", planned.port, "type", "veth", "peer", "name", kHostInterface, "netns", ns});
    commands.push_back({"ip", "-n", bridge, "link", "set", planned.port, "master", "br0", "up"});
    commands.push_back({"ip", "-n", ns, "link", "set", "lo", "up"});
    commands.push_back({"ip", "-n", ns, "addr", "add", planned.address + "/24", "dev", kHostInterface});
    commands.push_back({"ip", "-n", ns, "link", "set", kHostInterface, "up"});
    const auto burst = [&](double mbit) {
      return config.burst_kb == 0 ? default_burst_bytes(mbit) : config.burst_kb << 10;
    };
    commands.push_back(limit(ns, kHostInterface, host.up_mbit, burst(host.up_mbit), queue));
    commands.push_back(limit(bridge, planned.port, host.down_mbit, burst(host.down_mbit), queue));
    // A connection that was idle between two rounds must not begin slowly again, and runs must not learn from earlier
    // ones: they are compared.
    plan.settings.push_back({ns, "net/ipv4/tcp_slow_start_after_idle", "0"});
    plan.settings.push_back({ns, "net/ipv4/tcp_no_metrics_save", "1"});
    plan.settings.push_back({ns, "net/ipv6/conf/all/disable_ipv6", "1"});
    if (!config.congestion.empty()) {
      plan.settings.push_back({ns, "net/ipv4/tcp_congestion_control", config.congestion});
    }
    plan.namespaces.push_back(ns);
    plan.hosts.push_back(planned);
  }
  plan.namespaces.push_back(bridge);
  for (const Words& command : commands) {
    for (const std::string& word : command) plan.fingerprint += word + " ";
    plan.fingerprint += "\n";
  }
  for (const PlannedSetting& s : plan.settings) {
    plan.fingerprint += s.network_namespace + " " + s.path + " = " + s.value + "\n";
  }
  return plan;
}

}  // namespace tributary::lab
