#include "tests/sim/judge/losses_judge.h"

#include <algorithm>
#include <cctype>
#include <set>

namespace tributary::sim {
namespace {

// The numbers that stand behind `word` in a message.
std::set<std::uint64_t> numbers_behind(const std::string& text, const std::string& word) {
  std::set<std::uint64_t> numbers;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at)) {
    at += word.size();
    if (at < text.size() && std::isdigit(static_cast<unsigned char>(text[at]))) numbers.insert(std::stoull(&text[at]));
  }
  return numbers;
}

}  // namespace

void LossesJudge::store_lost(std::uint16_t shard, bool matters) {
  ++stores_;
  if (matters) lost_.push_back(shard);
}

std::optional<std::uint16_t> LossesJudge::has_another(JobId job) const {
  if (stores_ > 1) return std::nullopt;
  for (const auto& [shard, all] : heard_) {
    const auto another = [&](const StoredJob& stored) { return stored.job != job && !stored.snapshots.empty(); };
    if (std::ranges::any_of(all, another)) return shard;
  }
  return std::nullopt;
}

bool LossesJudge::may_refuse(const Error& error, bool copied, const Has& has_part) const {
  if (error.code != ErrorCode::kStore) return false;
  const std::set<std::uint64_t> servers = numbers_behind(error.message, "server "),
                                rounds = numbers_behind(error.message, "round ");
  const auto hurt = [&](const Hurt& at) {
    return servers.contains(at.shard) && rounds.contains(at.round.value) && !has_part(at.shard, at.round);
  };
  if (std::ranges::any_of(hurts_, hurt)) return true;
  // The coordinator may have recorded a newer snapshot than it had time to tell of. Where two stores were lost the newest
  // record may be lost, too.
  const bool newest = !rounds.empty() && (*rounds.rbegin() >= committed_.value || stores_ > 1);
  const auto lost = [&](std::uint16_t shard) {
    return servers.contains(shard) && newest && !has_part(shard, Round(*rounds.rbegin()));
  };
  if (std::ranges::any_of(lost_, lost)) return true;
  // Large parts of what ranks keep are in server 0's store alone.
  const bool of_ranks = error.message.find("membership.on_state_lost") != std::string::npos;
  if (of_ranks && std::ranges::find(lost_, 0) != lost_.end()) return true;
  // Without the registry, and any copy of it, or where two stores were lost, which may have cut a deal short: a server that
  // has something of the job.
  const auto has = [&](const auto& entry) {
    return servers.contains(entry.first) && std::ranges::any_of(entry.second, [&](const StoredJob& stored) {
             return std::ranges::any_of(stored.snapshots, [&](Round round) { return rounds.contains(round.value); });
           });
  };
  const bool unknown = !copied && std::ranges::find(lost_, 0) != lost_.end();
  return (unknown || stores_ > 1) && std::ranges::any_of(heard_, has);
}

}  // namespace tributary::sim
