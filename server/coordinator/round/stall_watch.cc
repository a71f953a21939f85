#include "server/coordinator/round/stall_watch.h"

#include <utility>

#include "common/base/printed.h"

namespace tributary {
namespace {

std::string seconds(std::uint64_t ms) {
  return std::to_string(ms / 1000) + " s";
}

const char* have(std::size_t count) {
  return count == 1 ? " has" : " have";
}

}  // namespace

// The first one of a view takes longer: members come together, and programs are compiled.
void StallWatch::reached(Round round, std::uint64_t now_ms) {
  if (round <= reached_) return;
  if (std::exchange(any_, true)) {
    last_ms_[next_] = now_ms - since_ms_;
    next_ = (next_ + 1) % last_ms_.size();
    known_ = std::min(known_ + 1, last_ms_.size());
  }
  reached_ = round;
  since_ms_ = now_ms;
}

std::optional<StallWatch::Stall> StallWatch::look(const Facts& facts, std::uint64_t now_ms) const {
  if (!quiet(now_ms)) return std::nullopt;
  Stall stall{now_ms - since_ms_, {}};
  const Round open = reached_.next();
  const std::string of_round = " of round " + std::to_string(open.value);

  std::vector<std::string> unheard;
  for (const Peer& peer : facts.peers) {
    if (now_ms > peer.heard_ms + facts.unheard_ms)
      unheard.push_back(peer.name + " (" + seconds(now_ms - peer.heard_ms) + ")");
  }
  if (!unheard.empty()) {
    stall.why = listed(unheard) + have(unheard.size()) + " not been heard: stopped, cut off, or its machine is busy";
    return stall;
  }

  if (!facts.values.empty()) {
    stall.why = facts.values;
    return stall;
  }

  std::vector<std::string> late;
  for (const Rank& rank : facts.ranks) {
    if (rank.said < open) late.push_back("rank " + std::to_string(rank.rank) + " (" + rank.node + ")");
  }
  if (!late.empty()) {
    const std::string gradients = " not given all gradients" + of_round;
    stall.why = late.size() == facts.ranks.size()
                    ? "no rank has given all gradients" + of_round + ": they compute, or wait for their data"
                    : listed(late) + have(late.size()) + gradients + ", the other " +
                          std::to_string(facts.ranks.size() - late.size()) +
                          " have: look at these processes (stopped, or waiting for data?)";
    return stall;
  }

  if (facts.kept_most != 0 && open.value > facts.durable.value + facts.kept_most) {
    stall.why = "nodes keep no more pushes than " + std::to_string(facts.kept_most) +
                " rounds (recovery.redo_mb) behind what is durable, round " + std::to_string(facts.durable.value);
    std::vector<std::string> writing;
    for (const std::uint16_t server : facts.snapshot_waits) writing.push_back("server " + std::to_string(server));
    if (facts.snapshot && !writing.empty()) {
      stall.why += "; " + listed(writing) + have(writing.size()) + " still to write the snapshot of round " +
                   std::to_string(facts.snapshot->value) + ": a slow or full disk?";
    }
    return stall;
  }

  std::vector<std::string> behind;
  for (const Server& server : facts.servers) {
    if (server.version.value < open.value) behind.push_back("server " + std::to_string(server.index));
  }
  stall.why = "all ranks have given their gradients" + of_round;
  if (!behind.empty() && behind.size() < facts.servers.size()) {
    stall.why += ", and " + listed(behind) + have(behind.size()) + " not done it: its link, or its machine";
  } else {
    stall.why += ", which have not all arrived: a link that is cut or slow";
  }
  return stall;
}

}  // namespace tributary
