#include "server/coordinator/orders/part_holders.h"

#include <algorithm>

#include "common/wire/part_fetch.h"

namespace tributary {

// ---- What is wanted ----

void PartHolders::forget(JobId job) {
  wanted_.erase(job);
  copies_.erase(job);
}

void PartHolders::copy_to(JobId job, bool wanted, std::optional<std::uint64_t> server, std::uint64_t now_ms) {
  if (!ports_.store) return;
  Copies& copies = copies_[job];
  copies.wanted = wanted;
  const std::uint64_t to = wanted ? server.value_or(0) : 0;
  if (to == copies.server) return;
  copies.server = to;
  copies.asked.clear();
  copies.moved_ms = copies.due_ms = now_ms;
}

void PartHolders::keep_known(const std::function<bool(JobId)>& known) const {
  for (const auto& [server, jobs] : held_) {
    const auto unknown = std::ranges::find_if(jobs, [&](const auto& entry) { return !known(entry.first); });
    if (unknown != jobs.end()) order(server, unknown->first, {}, 0);  // one at a time
  }
}

// ---- What servers say ----

void PartHolders::here(std::uint64_t server, const std::vector<HeldParts>& all) {
  held_[server].clear();
  for (const HeldParts& m : all) on(server, m);
}

void PartHolders::on(std::uint64_t server, const HeldParts& m) {
  std::map<JobId, Parts>& held = held_[server];
  if (held.size() >= kMaxJobs && !held.contains(m.job)) return;
  held[m.job] = {m.parts.begin(), m.parts.end()};
  if (m.parts.empty()) held.erase(m.job);
  const auto found = copies_.find(m.job);
  if (found == copies_.end() || found->second.server != server) return;
  Copies& copies = found->second;
  const bool answers = m.number != 0 && m.number == copies.number;
  if (answers && !m.coming && lacks_some(m.job, copies)) copies.moved_ms = 0;  // nobody waits for it
}

void PartHolders::requests(std::uint64_t server, JobId job, std::uint64_t now_ms) {
  const auto copies = copies_.find(job);
  if (copies != copies_.end() && copies->second.server == server) copies->second.moved_ms = now_ms;
}

// ---- Where a part is ----

const PartHolders::Parts& PartHolders::held(std::uint64_t server, JobId job) const {
  static const Parts none;
  const auto jobs = held_.find(server);
  if (jobs == held_.end()) return none;
  const auto parts = jobs->second.find(job);
  return parts == jobs->second.end() ? none : parts->second;
}

std::vector<std::uint64_t> PartHolders::sources(const Key& part) const {
  std::vector<std::uint64_t> servers;
  if (failed_.contains({part, 0})) return servers;
  for (const auto& [server, jobs] : held_) {
    if (held(server, part.first).contains(part.second) && !failed_.contains({part, server})) servers.push_back(server);
  }
  return servers;
}

std::optional<std::uint64_t> PartHolders::any_with(const Key& part) const {
  const auto has = [&](const auto& entry) { return held(entry.first, part.first).contains(part.second); };
  const auto found = std::ranges::find_if(held_, has);
  return found == held_.end() ? std::nullopt : std::optional(found->first);
}

void PartHolders::failed(const Key& part, std::optional<std::uint64_t> server, std::uint64_t now_ms) {
  failed_[{part, server.value_or(0)}] = now_ms + kFailedMs;
}

bool PartHolders::copies(std::uint64_t server) const {
  return std::ranges::any_of(copies_, [&](const auto& entry) {
    return entry.second.server == server && under_way(entry.first, entry.second);
  });
}

bool PartHolders::copies() const {
  return std::ranges::any_of(copies_, [&](const auto& entry) { return under_way(entry.first, entry.second); });
}

bool PartHolders::copies_of(JobId job, std::optional<std::uint64_t> keeper) const {
  if (!ports_.store) return false;
  const auto copies = copies_.find(job);
  const bool named = copies != copies_.end() && (!keeper || *keeper == copies->second.server);
  if (named) return under_way(job, copies->second);
  const auto wanted = wanted_.find(job);
  return wanted != wanted_.end() && !wanted->second.empty();  // it has yet to be ordered
}

bool PartHolders::under_way(JobId job, const Copies& copies) const {
  if (!ports_.there(copies.server) || !lacks_some(job, copies)) return false;
  const bool news = copies.asked != parts_for(copies.server, job, copies);  // that it has yet to hear
  return news || now_ms_ < copies.moved_ms + PartFetch::kPatienceMs;
}

// ---- Orders ----

PartHolders::Parts PartHolders::parts_for(std::uint64_t server, JobId job, const Copies& copies) const {
  const auto wanted = wanted_.find(job);
  if (wanted == wanted_.end()) return {};
  const Parts &its = held(server, job), &copied = held(copies.server, job);
  Parts parts;
  for (const LargePart& large : wanted->second) {
    const bool stored = ports_.stored(job, large), has = its.contains(large);
    const bool safe = stored && (!copies.wanted || copied.contains(large));
    const bool to_have = server == copies.server ? stored || has || copies.asked.contains(large) : has && !safe;
    if (to_have) parts.insert(large);
  }
  return parts;
}

bool PartHolders::lacks_some(JobId job, const Copies& copies) const {
  return !std::ranges::includes(held(copies.server, job), parts_for(copies.server, job, copies));
}

void PartHolders::order(std::uint64_t server, JobId job, const Parts& parts, std::uint32_t number) const {
  ports_.order(server, CopyParts{job, {parts.begin(), parts.end()}, number});
}

std::vector<PartHolders::Key> PartHolders::tick(std::uint64_t now_ms) {
  now_ms_ = now_ms;
  std::erase_if(failed_, [&](const auto& entry) { return now_ms >= entry.second; });
  std::vector<Key> missing;
  for (auto& [job, copies] : copies_) {
    const auto wanted = wanted_.find(job);
    // Which parts its record names is not known yet, or they are too many for a message.
    if (wanted == wanted_.end() || wanted->second.size() > kMaxParts) continue;
    const bool due = now_ms >= copies.due_ms;
    const Parts parts = parts_for(copies.server, job, copies);
    const bool news = copies.asked != parts;
    if (copies.server != 0 && (news || (due && held(copies.server, job) != parts))) {
      if (news) copies.moved_ms = now_ms;
      copies.asked = parts;
      order(copies.server, job, parts, ++copies.number);
    }
    if (!due) continue;
    copies.due_ms = now_ms + kEveryMs;
    for (const LargePart& large : wanted->second) {
      if (!ports_.stored(job, large) && !sources({job, large}).empty()) missing.emplace_back(job, large);
    }
    for (const auto& [server, jobs] : held_) {
      if (server == copies.server || !jobs.contains(job)) continue;
      const Parts stay = parts_for(server, job, copies);
      if (stay != jobs.at(job)) order(server, job, stay, 0);
    }
  }
  return missing;
}

}  // namespace tributary
