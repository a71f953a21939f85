#include "server/coordinator/show/placement_json.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace tributary {

namespace {

using Json = nlohmann::ordered_json;

}  // namespace

Json placement_json(const JobPlacement& placement) {
  const JobHosts& hosts = placement.hosts;
  const bool links = hosts.basis == PlacementBasis::kLinks;
  Json servers = Json::array();
  for (std::size_t s = 0; s < placement.servers.size(); ++s) {
    const JobPlacement::Server& server = placement.servers[s];
    servers.push_back({{"server", server.number},
                       {"host", hosts.of_server.empty() ? Json(nullptr) : Json(hosts.of_server[s])},
                       {"colocated", hosts.of_server.empty() ? Json(nullptr) : Json(placement.colocated(s))},
                       {"share", server.share},
                       {"bytes", server.bytes},
                       {"chunks", server.chunks}});
  }
  Json by_host = Json::array();
  for (std::size_t h = 0; h < hosts.hosts.size(); ++h) {
    const JobHosts::Host& host = hosts.hosts[h];
    Json entry = {{"identity", host.identity}, {"daemons", host.daemons}, {"bandwidth", host.link.bandwidth}};
    if (links) {
      entry["share"] = placement.predicted.shares[h];
      entry["out"] = placement.predicted.loads[h].out;
      entry["in"] = placement.predicted.loads[h].in;
    }
    by_host.push_back(std::move(entry));
  }
  Json json = {{"basis", name_of(hosts.basis)}, {"servers", std::move(servers)}, {"hosts", std::move(by_host)}};
  json["wire_ratio"] = {{"push", placement.ratio.push}, {"pull", placement.ratio.pull}};
  json["predicted"] = nullptr;
  if (links) {
    json["predicted"] = {
        {"factor", placement.predicted.time_factor},
        {"optimal_factor", placement.optimal_factor},
        {"ring_factor", placement.ring_factor},
        {"unit_bandwidth", hosts.unit_bandwidth},
        {"bottleneck_host", placement.predicted.bottleneck_host},
        {"bottleneck_direction", placement.predicted.bottleneck_direction == LinkDirection::kOut ? "out" : "in"},
        {"bottleneck", placement.bottleneck()}};
  }
  return json;
}

}  // namespace tributary
