#include "tools/lab/counters.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/config/json_text.h"
#include "tools/cluster/command.h"
#include "tools/lab/network_namespace.h"

namespace tributary::lab {
namespace {

std::uint64_t since(std::uint64_t after, std::uint64_t before) {
  return after > before ? after - before : 0;
}

QueueCounters since(const QueueCounters& after, const QueueCounters& before) {
  return {.bytes = since(after.bytes, before.bytes),
          .packets = since(after.packets, before.packets),
          .drops = since(after.drops, before.drops),
          .overlimits = since(after.overlimits, before.overlimits)};
}

Result<std::string> text_of(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return fail(ErrorCode::kIo, "cannot read " + path);
  return text.str();
}

Result<std::map<std::string, QueueCounters>> queues_of(const std::string& network_namespace) {
  const auto text = run_command({.argv = {"tc", "-n", network_namespace, "-s", "-j", "qdisc", "show"}});
  if (!text) return tl::unexpected(text.error());
  return parse_queues(*text);
}

}  // namespace

Result<std::map<std::string, QueueCounters>> parse_queues(std::string_view tc_json) {
  std::map<std::string, QueueCounters> found;
  const auto json = json_in(tc_json);
  try {
    if (!json.is_array()) return fail(ErrorCode::kMalformed, "tc printed no JSON array of queues");
    for (const auto& queue : json) {
      const auto kind = queue.at("kind").get<std::string>();
      if ((kind != "tbf" && kind != "htb") || !queue.value("root", false)) continue;
      found[queue.at("dev").get<std::string>()] = {.bytes = queue.at("bytes").get<std::uint64_t>(),
                                                   .packets = queue.at("packets").get<std::uint64_t>(),
                                                   .drops = queue.at("drops").get<std::uint64_t>(),
                                                   .overlimits = queue.value("overlimits", std::uint64_t{0})};
    }
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kMalformed, std::string("tc printed queues in an unknown form: ") + e.what());
  }
  return found;
}

Result<InterfaceCounters> parse_interface(std::string_view proc_net_dev, std::string_view interface) {
  std::istringstream lines{std::string(proc_net_dev)};
  std::string line;
  while (std::getline(lines, line)) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t first = line.find_first_not_of(' ');
    if (std::string_view(line).substr(first, colon - first) != interface) continue;
    // Eight received columns, then eight sent ones: bytes packets errs drop ...
    std::istringstream fields(line.substr(colon + 1));
    std::uint64_t values[12] = {};
    for (auto& value : values) {
      if (!(fields >> value)) return fail(ErrorCode::kMalformed, "/proc/net/dev has too few columns: " + line);
    }
    return InterfaceCounters{
        .received_bytes = values[0], .sent_bytes = values[8], .received_drops = values[3], .sent_drops = values[11]};
  }
  return fail(ErrorCode::kNotFound, "no interface " + std::string(interface) + " in /proc/net/dev");
}

TcpCounters parse_tcp(std::string_view snmp_and_netstat) {
  TcpCounters tcp;
  std::istringstream lines{std::string(snmp_and_netstat)};
  std::string names, values;
  // Pairs of lines: "Tcp: InSegs OutSegs ..." and "Tcp: 12 34 ...".
  while (std::getline(lines, names) && std::getline(lines, values)) {
    std::istringstream name_words(names), value_words(values);
    std::string group, same, name;
    name_words >> group;
    value_words >> same;
    if (group != same) break;
    std::int64_t value = 0;  // some may be negative: "no limit"
    while (name_words >> name && value_words >> value) {
      const auto count = static_cast<std::uint64_t>(std::max<std::int64_t>(value, 0));
      if (group == "Tcp:" && name == "OutSegs") tcp.segments_sent = count;
      if (group == "Tcp:" && name == "RetransSegs") tcp.retransmitted = count;
      if (group == "TcpExt:" && name == "TCPTimeouts") tcp.timeouts = count;
    }
  }
  return tcp;
}

HostCounters difference(const HostCounters& after, const HostCounters& before) {
  HostCounters d;
  d.up = since(after.up, before.up);
  d.down = since(after.down, before.down);
  d.interface = {.received_bytes = since(after.interface.received_bytes, before.interface.received_bytes),
                 .sent_bytes = since(after.interface.sent_bytes, before.interface.sent_bytes),
                 .received_drops = since(after.interface.received_drops, before.interface.received_drops),
                 .sent_drops = since(after.interface.sent_drops, before.interface.sent_drops)};
  d.tcp = {.segments_sent = since(after.tcp.segments_sent, before.tcp.segments_sent),
           .retransmitted = since(after.tcp.retransmitted, before.tcp.retransmitted),
           .timeouts = since(after.tcp.timeouts, before.tcp.timeouts)};
  return d;
}

Result<std::vector<HostCounters>> read_counters(const LabPlan& plan) {
  std::vector<HostCounters> all;
  const auto ports = queues_of(plan.switch_namespace);
  if (!ports) return tl::unexpected(ports.error());
  for (const PlannedHost& host : plan.hosts) {
    HostCounters counters;
    const auto own = queues_of(host.network_namespace);
    if (!own) return tl::unexpected(own.error());
    if (!own->contains(kHostInterface) || !ports->contains(host.port)) {
      return fail(ErrorCode::kNotFound, "host " + host.name + " has lost a limit of its link; take the lab down");
    }
    counters.up = own->at(kHostInterface);
    counters.down = ports->at(host.port);
    const auto read = [&]() -> Status {
      const auto dev = text_of("/proc/thread-self/net/dev");
      if (!dev) return tl::unexpected(dev.error());
      const auto link = parse_interface(*dev, kHostInterface);
      if (!link) return tl::unexpected(link.error());
      counters.interface = *link;
      const auto snmp = text_of("/proc/thread-self/net/snmp");
      if (!snmp) return tl::unexpected(snmp.error());
      const auto netstat = text_of("/proc/thread-self/net/netstat");
      if (!netstat) return tl::unexpected(netstat.error());
      counters.tcp = parse_tcp(*snmp + *netstat);
      return {};
    };
    if (auto ok = in_network_namespace(namespace_path(host.network_namespace), read); !ok)
      return tl::unexpected(ok.error());
    all.push_back(counters);
  }
  return all;
}

}  // namespace tributary::lab
