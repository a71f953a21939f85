// JobServers: the servers that a view of a job can begin with, and when the job's chunks go to other servers
// (docs/failover.md, "Servers that come and go"). Pure. A part of JobLedger.
//
// A server that is away may be under another coordinator, with other chunks of the job. So a coordinator decides without
// it only where it has more than half of the servers, or where nobody else may have the coordinator.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "common/config/config.h"
#include "server/coordinator/orders/coordinator_context.h"

namespace tributary {

class JobServers {
 public:
  // After an attempt that failed; twice as long after each one in a row.
  static constexpr std::uint64_t kAgainMs = 5'000, kAgainMostMs = 600'000;
  // In a row: a server that is told to stop waits no longer until its chunks are elsewhere.
  static constexpr std::uint32_t kMostFailures = 3;

  explicit JobServers(const CoordinatorContext& context) : context_(context) {}

  // Can a view begin with the servers that are there? shards: that have chunks of its state; empty: it has no state.
  bool enough(const MembershipConfig& config, const std::set<std::uint16_t>& shards, std::uint64_t now_ms) const;
  // Is it needed for that?
  bool needs(const MembershipConfig& config, const std::set<std::uint16_t>& shards, std::uint16_t server) const;

  // A person's order: the chunks go to the servers that are there, but for these. They stay out until they come as new
  // processes, or another order comes.
  void order(std::set<std::uint16_t> without) {
    leave_out(std::move(without));
    ordered_ = true;
    retry_ms_ = 0;
  }
  bool ordered() const { return ordered_; }  // and not carried out
  const std::set<std::uint16_t>& out() const { return out_; }
  void leave_out(std::set<std::uint16_t> servers) { out_ = std::move(servers); }
  void comes(std::uint16_t server) {
    if (!ordered_) out_.erase(server);
  }

  struct Change {
    std::set<std::uint16_t> to;  // these servers
    std::string why;
    bool lacks = false;  // a server that has chunks is away, or is to stop: no view can begin as it is
  };
  // Does anybody want that they ever go elsewhere?
  bool may_change(const MembershipConfig& config) const {
    return ordered_ || config.on_server_loss == OnLoss::kContinue;
  }
  // REQUIRES: may_change(). Where the chunks are to go now; none: they stay. shards: that have them.
  std::optional<Change> change(const MembershipConfig& config, const std::set<std::uint16_t>& shards,
                               std::uint64_t now_ms) const;
  // Can the chunks go to others? No: nobody can take them, or attempts have failed again and again.
  bool can_change() const { return failures_ < kMostFailures && !takers().empty(); }
  // It would change nothing.
  void settled(const Change& change) {
    settled_ = change.to;
    ordered_ = false;
  }
  void failed(const std::string& why, std::uint64_t now_ms);
  std::uint32_t failures() const { return failures_; }          // in a row
  const std::string& last_failure() const { return failure_; }  // empty: the last attempt did not fail

 private:
  std::set<std::uint16_t> takers() const;  // the servers that could have chunks
  bool away_long(std::uint16_t server, std::uint32_t wait_ms, std::uint64_t now_ms) const;

  const CoordinatorContext& context_;
  bool ordered_ = false;
  std::set<std::uint16_t> settled_, out_;
  std::uint64_t retry_ms_ = 0;
  std::uint32_t failures_ = 0;
  std::string failure_;
};

}  // namespace tributary
