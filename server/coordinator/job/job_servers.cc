#include "server/coordinator/job/job_servers.h"

#include <algorithm>

namespace tributary {

bool JobServers::away_long(std::uint16_t server, std::uint32_t wait_ms, std::uint64_t now_ms) const {
  const std::uint64_t since = std::max(context_.peers.since_ms(server), context_.began_ms);
  return now_ms >= since + wait_ms;
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

std::optional<JobServers::Change> JobServers::change(const MembershipConfig& config,
                                                     const std::set<std::uint16_t>& shards,
                                                     std::uint64_t now_ms) const {
  const Peers& peers = context_.peers;
  const bool continues = config.on_server_loss == OnLoss::kContinue;
  if (shards.empty() || now_ms < retry_ms_ || (!continues && !without_)) return std::nullopt;
  Change change{peers.those_that_stay(), {}, false};
  std::erase_if(change.to, [&](std::uint16_t index) {
    const ServerHello& hello = peers.alive(index)->hello;
    return !hello.store || hello.copy_endpoint.empty() || (!without_ && out_.contains(index));
  });
  if (without_) {
    std::erase_if(change.to, [&](std::uint16_t index) { return without_->contains(index); });
    change.why = "by order";
  }
  if (change.to.empty()) return std::nullopt;
  for (const std::uint16_t shard : shards) {
    if (peers.stays(shard)) continue;
    const std::string server = "server " + std::to_string(shard);
    if (!peers.alive(shard) && !without_) {
      if (!context_.may_decide() || !away_long(shard, config.rejoin_ms, now_ms)) return std::nullopt;
      change.why = server + " is lost";
    } else if (!without_) {
      change.why = server + " was told to stop";
    }
    change.lacks = true;
  }
  if (change.lacks || without_) return change;
  for (const std::uint16_t index : change.to) {
    if (shards.contains(index) || !away_long(index, config.rejoin_ms, now_ms)) continue;
    change.why = "server " + std::to_string(index) + " is there";
  }
  return change.why.empty() || change.to == settled_ ? std::nullopt : std::optional(change);
}

void JobServers::failed(const std::string& why, std::uint64_t now_ms) {
  ++failures_;
  failure_ = why;
  pause_ms_ = pause_ms_ == 0 ? kAgainMs : std::min(2 * pause_ms_, kAgainMostMs);
  retry_ms_ = now_ms + pause_ms_;
}

}  // namespace tributary
