// Link figures of running daemons, for the plan of the job that they run: the links in the workers' /status
// (worker/node/link_meter.h).
//
// A measured rate is the link's payload rate if the link binds the exchange. If another resource binds it (compute,
// another host, encodings), the link is faster. So these are lower bounds, and the text says so.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/math/cost_model.h"

namespace tributary::cli {

struct MeasuredLink {
  std::string worker;
  double out = 0.0, in = 0.0;  // payload bytes per second
  double round_trip_s = 0.0;   // shortest, from a push to its acknowledgement
  double best() const { return out > in ? out : in; }
};

struct Measured {
  std::string job;
  std::vector<MeasuredLink> links;   // by worker
  std::uint32_t ranks_per_node = 1;  // the most
  std::uint32_t daemons = 0;         // servers
  std::uint32_t servers = 0;         // server hosts without a worker
  bool servers_placed = false;       // `servers` is from the coordinator; else every server daemon counts as such
  double payload_bytes = 0.0;        // fp32
  double chunk_bytes = 0.0;
  WireRatio wire;
};

// Reads the links from the /status of all daemons. `job`: its name; empty: the only one that runs. kNotFound: no such
// job, or no exchange yet; kInvalidArgument: several jobs, and none is named.
Result<Measured> measured_links(const std::vector<nlohmann::json>& statuses, const std::string& job);

// Reads the job m.job from the status of server 0: its payload (as if all chunks were full), encodings, and the number
// of server hosts without a worker.
void read_coordinators_job(const nlohmann::json& status, Measured& m);

// Asks the daemons. kUnavailable, naming the daemon that does not answer.
Result<Measured> measure(const std::vector<std::string>& admin_addresses, const std::string& job);

// Puts `measured` into a scenario: nodes, servers, ranks, payload, encodings, bandwidths (payload rates: goodput 1) and
// latency.
void use_measured(const Measured& measured, Scenario& scenario);

std::string measured_text(const Measured& measured);
nlohmann::ordered_json measured_json(const Measured& measured);

}  // namespace tributary::cli
