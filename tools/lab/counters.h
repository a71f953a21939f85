// Traffic of the hosts' links, from the kernel's own counters.
//
// An interface counts an offloaded packet of 64 KiB once, with one header. The limit's queue counts what it would be on
// a wire, a header for every segment: that is the figure for bytes on the wire, and the one that the rate limits.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "tools/lab/lab_plan.h"

namespace tributary::lab {

// Traffic through one limit.
struct QueueCounters {
  std::uint64_t bytes = 0, packets = 0, drops = 0, overlimits = 0;
};

struct InterfaceCounters {
  std::uint64_t received_bytes = 0, sent_bytes = 0, received_drops = 0, sent_drops = 0;
};

struct TcpCounters {
  std::uint64_t segments_sent = 0, retransmitted = 0, timeouts = 0;
};

struct HostCounters {
  QueueCounters up, down;
  InterfaceCounters interface;
  TcpCounters tcp;
};

// The limit of each interface in the output of `tc -s -j qdisc show`: root queues of kind tbf or htb. kMalformed if it
// is not that.
Result<std::map<std::string, QueueCounters>> parse_queues(std::string_view tc_json);
// Reads one interface of /proc/net/dev. kNotFound if it is not in there.
Result<InterfaceCounters> parse_interface(std::string_view proc_net_dev, std::string_view interface);
// /proc/net/snmp and /proc/net/netstat, one after the other.
TcpCounters parse_tcp(std::string_view snmp_and_netstat);

// The traffic from `before` to `after`; a counter that went down (the interface is a new one) counts as 0.
HostCounters difference(const HostCounters& after, const HostCounters& before);

// Reads the counters of all hosts, in the plan's order.
Result<std::vector<HostCounters>> read_counters(const LabPlan& plan);

}  // namespace tributary::lab
