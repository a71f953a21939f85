#include "server/coordinator/job/job_servers.h"

#include <algorithm>

namespace tributary {

bool JobServers::away_long(std::uint16_t server, std::uint32_t wait_ms, std::uint64_t now_ms) const {
  return now_ms >= context_.since_ms(server) + wait_ms;
}

bool JobServers::needs(const MembershipConfig& config, const std::set<std::uint16_t>& shards,
                       std::uint16_t server) const {
  if (!shards.empty()) return shards.contains(server) || !context_.may_decide();
  if (context_.given_up.contains(server)) return false;
  return config.on_server_loss == OnLoss::kWait || !context_.may_decide();
}

bool JobServers::enough(const MembershipConfig& config, const std::set<std::uint16_t>& shards,
                        std::uint64_t now_ms) const {
  const Peers& peers = context_.peers;
  if (peers.those_that_stay().empty()) return false;
  for (std::uint16_t index = 0; index < context_.options.servers; ++index) {
    if (peers.stays(index)) continue;
    if (needs(config, shards, index)) return false;
    // A fresh job would be dealt without it.
    if (shards.empty() && !peers.alive(index) && !away_long(index, config.rejoin_ms, now_ms)) return false;
  }
  return true;
}

std::set<std::uint16_t> JobServers::takers() const {
  std::set<std::uint16_t> takers = context_.peers.those_that_stay();
  std::erase_if(takers, [&](std::uint16_t index) {
    const ServerHello& hello = context_.peers.alive(index)->hello;
    return !hello.store || hello.copy_endpoint.empty() || out_.contains(index);
  });
  return takers;
}

std::optional<JobServers::Change> JobServers::change(const MembershipConfig& config,
                                                     const std::set<std::uint16_t>& shards,
                                                     std::uint64_t now_ms) const {
  const Peers& peers = context_.peers;
  if (shards.empty() || now_ms < retry_ms_) return std::nullopt;
  Change change{takers(), {}, false};
  if (change.to.empty()) return std::nullopt;
  change.lacks = !std::ranges::all_of(shards, [&](std::uint16_t shard) { return peers.stays(shard); });
  if (ordered_) {
    change.why = "by order";
    return change;
  }
  for (const std::uint16_t shard : shards) {
    if (peers.stays(shard)) continue;
    const bool lost = !peers.alive(shard);
    if (lost && !(context_.may_decide() && away_long(shard, config.rejoin_ms, now_ms))) return std::nullopt;
    change.why = "server " + std::to_string(shard) + (lost ? " is lost" : " was told to stop");
  }
  if (change.lacks) return change;
  for (const std::uint16_t index : change.to) {
    if (shards.contains(index) || !away_long(index, config.rejoin_ms, now_ms)) continue;
    change.why = "server " + std::to_string(index) + " is there";
  }
  return change.why.empty() || change.to == settled_ ? std::nullopt : std::optional(change);
}

void JobServers::failed(const std::string& why, std::uint64_t now_ms) {
  retry_ms_ = now_ms + std::min(kAgainMs << std::min(failures_, 10u), kAgainMostMs);
  ++failures_;
  failure_ = why;
}

}  // namespace tributary
