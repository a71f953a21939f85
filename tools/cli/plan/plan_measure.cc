#include "tools/cli/plan/plan_measure.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "common/base/quantity.h"
#include "common/config/json_text.h"
#include "common/daemon/http_client.h"
#include "tools/cli/parts/table.h"

namespace tributary::cli {
namespace {

using SortedJson = nlohmann::json;

constexpr std::chrono::milliseconds kMeasureTimeout{3000};
// Rates that differ by less are taken for those of equal links.
constexpr double kSameBandwidth = 0.9;
constexpr double kLeastLatency = 10e-6;  // where the payload's time hides it

double number(const SortedJson& object, const char* key) {
  return object.is_object() && object.contains(key) && object.at(key).is_number() ? object.at(key).get<double>() : 0.0;
}

std::string text(const SortedJson& object, const char* key) {
  return object.is_object() && object.contains(key) && object.at(key).is_string() ? object.at(key).get<std::string>()
                                                                                  : std::string();
}

const SortedJson& member(const SortedJson& object, const char* key) {
  static const SortedJson kNone;
  return object.is_object() && object.contains(key) ? object.at(key) : kNone;
}

// The job on a worker, if it runs there and says what its link does.
const SortedJson* running_job(const SortedJson& status, const std::string& name) {
  if (text(status, "kind") != "worker") return nullptr;
  for (const SortedJson& job : member(status, "jobs")) {
    if (text(job, "name") == name && member(job, "link").is_object()) return &job;
  }
  return nullptr;
}

Result<std::string> choose_job(const std::vector<SortedJson>& statuses, const std::string& wanted) {
  std::set<std::string> names;
  for (const SortedJson& status : statuses) {
    if (text(status, "kind") != "worker") continue;
    for (const SortedJson& job : member(status, "jobs")) {
      if (member(job, "link").is_object()) names.insert(text(job, "name"));
    }
  }
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  if (names.empty()) {
    return fail(ErrorCode::kNotFound,
                "no job is running on these workers, so their links carry nothing to measure; "
                "start one, and ask again after some rounds");
  }
  if (!wanted.empty() && !names.contains(wanted)) {
    return fail(ErrorCode::kNotFound, "--job " + wanted + " does not run on these workers; they run " + list);
  }
  if (wanted.empty() && names.size() > 1) {
    return fail(ErrorCode::kInvalidArgument, "several jobs share the links (" + list + "); name one with --job");
  }
  return wanted.empty() ? *names.begin() : wanted;
}

void read_job(const SortedJson& job, Measured& m) {
  m.payload_bytes = std::max(m.payload_bytes, 4.0 * number(job, "parameters"));
  const double chunks = number(job, "chunks");
  if (chunks > 0.0) m.chunk_bytes = 4.0 * number(job, "parameters") / chunks;
  m.ranks_per_node = std::max(m.ranks_per_node, static_cast<std::uint32_t>(number(job, "local_world_size")));
}

// Reads the job's placement from the coordinator's status, if it is there.
void read_placement(const SortedJson& status, Measured& m) {
  for (const SortedJson& job : member(member(status, "coordinator"), "jobs")) {
    const SortedJson& placement = member(job, "placement");
    if (text(job, "name") != m.job || !placement.is_object()) continue;
    const SortedJson& ratio = member(placement, "wire_ratio");
    if (number(ratio, "push") > 0.0 && number(ratio, "pull") > 0.0) {
      m.wire = {.push = number(ratio, "push"), .pull = number(ratio, "pull")};
    }
    std::set<std::string> own;
    bool known = false;
    for (const SortedJson& server : member(placement, "servers")) {
      if (!member(server, "colocated").is_boolean()) continue;
      known = true;
      if (!server.at("colocated").get<bool>()) own.insert(member(server, "host").dump());
    }
    if (known) {
      m.servers = static_cast<std::uint32_t>(own.size());
      m.servers_placed = true;
    }
  }
}

}  // namespace

void read_coordinators_job(const SortedJson& status, Measured& m) {
  for (const SortedJson& job : member(member(status, "coordinator"), "jobs")) {
    if (text(job, "name") != m.job) continue;
    m.chunk_bytes = 4.0 * number(job, "chunk_elements");
    m.payload_bytes = number(job, "chunks") * m.chunk_bytes;
  }
  read_placement(status, m);
}

Result<Measured> measured_links(const std::vector<SortedJson>& statuses, const std::string& wanted) {
  const auto job_name = choose_job(statuses, wanted);
  if (!job_name) return tl::unexpected<Error>(job_name.error());
  Measured m;
  m.job = *job_name;
  for (const SortedJson& status : statuses) {
    if (text(status, "kind") == "server") ++m.daemons;
    const SortedJson* job = running_job(status, m.job);
    if (job == nullptr) continue;
    read_job(*job, m);
    const SortedJson& link = job->at("link");
    m.links.push_back({.worker = text(status, "name"),
                       .out = number(link, "out_bytes_per_s"),
                       .in = number(link, "in_bytes_per_s"),
                       .round_trip_s = number(link, "round_trip_s")});
  }
  m.servers = m.daemons;
  for (const SortedJson& status : statuses) read_placement(status, m);
  for (const MeasuredLink& link : m.links) {
    if (link.best() > 0.0) continue;
    return fail(ErrorCode::kNotFound, "worker " + link.worker + " has not seen enough of an exchange of job " + m.job +
                                          " to say how fast its link is; ask again after some rounds, or give "
                                          "--bandwidth by hand");
  }
  return m;
}

Result<Measured> measure(const std::vector<std::string>& admin_addresses, const std::string& job) {
  std::vector<SortedJson> statuses;
  for (const std::string& address : admin_addresses) {
    const auto body = http_get(address, "/status", kMeasureTimeout);
    if (!body) return tl::unexpected<Error>(body.error());
    statuses.push_back(json_in(*body));
    if (!statuses.back().is_object()) {
      return fail(ErrorCode::kUnavailable,
                  "http://" + address + "/status did not answer with JSON; is that a daemon of Tributary?");
    }
  }
  return measured_links(statuses, job);
}

void use_measured(const Measured& m, Scenario& s) {
  s.nodes = static_cast<std::uint32_t>(m.links.size());
  s.ranks_per_node = m.ranks_per_node;
  s.servers = m.servers;
  s.payload_bytes = m.payload_bytes;
  s.wire = m.wire;
  s.goodput = 1.0;  // payload is what was counted
  s.transfer_overhead_bytes = 0.0;
  s.transfer_bytes = m.chunk_bytes;
  std::vector<double> rates;
  double round_trip = 0.0;
  for (const MeasuredLink& link : m.links) {
    rates.push_back(link.best());
    if (link.round_trip_s > 0.0)
      round_trip = round_trip > 0.0 ? std::min(round_trip, link.round_trip_s) : link.round_trip_s;
  }
  std::vector<double> sorted = rates;
  std::ranges::sort(sorted);
  s.network.bandwidth = sorted[sorted.size() / 2];
  s.node_bandwidths.clear();
  if (sorted.front() < kSameBandwidth * sorted.back()) s.node_bandwidths = rates;
  // The shortest round trip was at the beginning of a round, when the first transfers to all servers left together: the
  // time of their payload, the way there, and that of an acknowledgement back.
  const double payload = m.daemons * m.chunk_bytes * m.wire.push / s.network.bandwidth;
  s.network.latency_s = std::max(kLeastLatency, 0.5 * (round_trip - payload));
}

std::string measured_text(const Measured& m) {
  std::string out =
      "Links as job " + m.job + " has them (highest payload rates of the last seconds, shortest round trip)\n\n";
  Table table({"WORKER", "OUT", "IN", "ROUND TRIP"});
  for (const MeasuredLink& link : m.links) {
    table.add(
        {link.worker, bandwidth_in_words(link.out), bandwidth_in_words(link.in), seconds_in_words(link.round_trip_s)});
  }
  out += table.text() + "\nA link is faster than that if anything else binds the exchange.";
  if (!m.servers_placed) out += " Every server daemon is taken for a host of its own.";
  return out + "\n\n";
}

nlohmann::ordered_json measured_json(const Measured& m) {
  auto links = nlohmann::ordered_json::array();
  for (const MeasuredLink& link : m.links) {
    links.push_back({{"worker", link.worker},
                     {"out_bytes_per_s", link.out},
                     {"in_bytes_per_s", link.in},
                     {"round_trip_s", link.round_trip_s}});
  }
  return {{"job", m.job},
          {"links", std::move(links)},
          {"server_hosts", m.servers},
          {"server_hosts_known", m.servers_placed}};
}

}  // namespace tributary::cli
