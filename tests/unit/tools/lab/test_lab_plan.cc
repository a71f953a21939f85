#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "tools/lab/lab_plan.h"

namespace tributary::lab::lab_plan_test {
namespace {

LabConfig two_hosts() {
  LabConfig c;
  c.name = "duo";
  c.hosts = {{.name = "w", .worker = true, .up_mbit = 100.0, .down_mbit = 200.0},
             {.name = "s", .server = true, .up_mbit = 2000.0, .down_mbit = 300.0}};
  return c;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& w : words) text += (text.empty() ? "" : " ") + w;
  return text;
}

bool has(const LabPlan& plan, const std::string& command) {
  return std::ranges::any_of(plan.commands, [&](const auto& words) { return joined(words) == command; });
}

TEST_CASE("every host gets a namespace, an address, and a limit at both ends of its link") {
  const LabPlan plan = plan_lab(two_hosts());
  REQUIRE(plan.hosts.size() == 2);
  CHECK(plan.switch_namespace == "tributary-lab.duo.switch");
  CHECK(plan.hosts[0].network_namespace == "tributary-lab.duo.w");
  CHECK(plan.hosts[0].address == "10.77.0.1");
  CHECK(plan.hosts[1].address == "10.77.0.2");
  CHECK(has(plan, "ip netns add tributary-lab.duo.w"));
  CHECK(has(plan, "ip -n tributary-lab.duo.w addr add 10.77.0.1/24 dev eth0"));
  // Up at the host's end, down at the bridge's.
  CHECK(has(plan, "tc -n tributary-lab.duo.w qdisc add dev eth0 root tbf rate 100000000bit burst 73728 limit 4194304"));
  CHECK(has(plan,
            "tc -n tributary-lab.duo.switch qdisc add dev p0 root tbf rate 200000000bit burst 73728 limit 4194304"));
  CHECK(
      has(plan, "tc -n tributary-lab.duo.s qdisc add dev eth0 root tbf rate 2000000000bit burst 250000 limit 4194304"));
  CHECK(has(plan,
            "tc -n tributary-lab.duo.switch qdisc add dev p1 root tbf rate 300000000bit burst 73728 limit 4194304"));
}

TEST_CASE("a plan touches only namespaces that it made before") {
  const LabPlan plan = plan_lab(two_hosts());
  std::set<std::string> made;
  for (const auto& words : plan.commands) {
    if (words[1] == "netns") {
      CHECK(words[2] == "add");
      made.insert(words[3]);
      continue;
    }
    CHECK(words[1] == "-n");
    CHECK(made.contains(words[2]));
  }
  for (const PlannedSetting& s : plan.settings) CHECK(made.contains(s.network_namespace));
  CHECK(made == std::set<std::string>(plan.namespaces.begin(), plan.namespaces.end()));
  CHECK(plan.namespaces.back() == plan.switch_namespace);
  for (const std::string& name : plan.namespaces) CHECK(name.starts_with(namespace_prefix("duo")));
}

TEST_CASE("an idle connection does not begin slowly again, and the congestion control is the lab's") {
  LabConfig c = two_hosts();
  const auto setting = [](const LabPlan& plan, const std::string& path) {
    std::size_t found = 0;
    for (const PlannedSetting& s : plan.settings) found += s.path == path;
    return found;
  };
  CHECK(setting(plan_lab(c), "net/ipv4/tcp_slow_start_after_idle") == 2);
  CHECK(setting(plan_lab(c), "net/ipv4/tcp_congestion_control") == 2);
  c.congestion.clear();
  CHECK(setting(plan_lab(c), "net/ipv4/tcp_congestion_control") == 0);
}

TEST_CASE("labs with the same network have the same fingerprint, others do not") {
  LabConfig c = two_hosts();
  const std::string first = plan_lab(c).fingerprint;
  c.exchange.rounds = 99;
  CHECK(plan_lab(c).fingerprint == first);
  c.hosts[1].down_mbit = 301.0;
  CHECK(plan_lab(c).fingerprint != first);
}

TEST_CASE("no lab's prefix is the beginning of another's") {
  CHECK_FALSE(std::string("tributary-lab.a-b.w").starts_with(namespace_prefix("a")));
  CHECK(std::string("tributary-lab.a.w").starts_with(namespace_prefix("a")));
}

}  // namespace
}  // namespace tributary::lab::lab_plan_test
