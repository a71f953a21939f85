#include "server/coordinator/cluster/peers.h"

#include <algorithm>
#include <utility>

#include "common/base/printed.h"
#include "common/config/config.h"

namespace tributary {
namespace {

Status check_bandwidth(const std::string& who, const char* section, double bandwidth) {
  if (is_bandwidth(bandwidth)) return {};
  return fail(ErrorCode::kInvalidArgument, who + " has bandwidth " + printed("%g", bandwidth) + "; [" + section +
                                               "] bandwidth must be a number from 0.001 to 1e15");
}

}  // namespace

std::string newest_in_words(const StoredJob& stored) {
  return "round " + std::to_string(std::ranges::max(stored.snapshots).value);
}

Peers::Server* Peers::server_at(PeerId peer) {
  const auto it =
      std::ranges::find_if(servers_, [&](const auto& s) { return s.second.peer == peer && s.second.alive; });
  return it == servers_.end() ? nullptr : &it->second;
}

Peers::Worker* Peers::worker_at(PeerId peer) {
  const auto it = std::ranges::find_if(workers_, [&](const auto& w) { return w.second.peer == peer; });
  return it == workers_.end() ? nullptr : &it->second;
}

Peers::Server* Peers::server_with(std::uint64_t incarnation) {
  const auto it = std::ranges::find_if(
      servers_, [&](const auto& s) { return s.second.alive && s.second.hello.incarnation == incarnation; });
  return it == servers_.end() ? nullptr : &it->second;
}

Peers::Worker* Peers::worker_with(std::uint64_t incarnation) {
  const auto it = workers_.find(incarnation);
  return it == workers_.end() ? nullptr : &it->second;
}

const Peers::Server* Peers::alive(std::uint16_t index) const {
  const auto it = servers_.find(index);
  return it == servers_.end() || !it->second.alive ? nullptr : &it->second;
}

const Peers::Worker* Peers::worker(std::uint64_t incarnation) const {
  return const_cast<Peers*>(this)->worker_with(incarnation);
}

std::string Peers::name_of(std::uint64_t incarnation) const {
  const Worker* known = worker(incarnation);
  return known ? known->hello.name : "unknown";
}

std::optional<PeerId> Peers::peer(std::uint64_t incarnation) const {
  if (const Worker* known = worker(incarnation)) return known->peer;
  const Server* server = server_with(incarnation);
  return server ? std::optional(server->peer) : std::nullopt;
}

std::string Peers::daemon_in_words(std::uint64_t incarnation) const {
  if (const Worker* known = worker(incarnation)) return "worker " + known->hello.name;
  const Server* server = server_with(incarnation);
  return server ? "server " + std::to_string(server->hello.shard.value) : "a daemon that is gone";
}

bool Peers::stays(std::uint16_t server) const {
  const Server* there = alive(server);
  return there && !there->leaves;
}

bool Peers::all_servers(const std::set<std::uint16_t>& but) const {
  for (std::uint16_t index = 0; index < count_; ++index) {
    if (!stays(index) && !but.contains(index)) return false;
  }
  return true;
}

bool Peers::all_have_stores() const {
  return std::ranges::all_of(servers_, [](const auto& s) { return s.second.hello.store; });
}

std::set<std::uint16_t> Peers::those_that_stay() const {
  std::set<std::uint16_t> there;
  for (const auto& [index, server] : servers_) {
    if (stays(index)) there.insert(index);
  }
  return there;
}

bool Peers::majority(std::size_t given_up) const {
  const auto there = std::ranges::count_if(servers_, [](const auto& entry) { return entry.second.alive; });
  return 2 * static_cast<std::size_t>(there) + given_up > count_;
}

ShardSlots Peers::slots(std::uint16_t server) const {
  return {static_cast<std::uint16_t>(servers_.at(server).hello.lane_endpoints.size())};
}

PlacedDaemon Peers::placed(std::uint16_t server) const {
  const ServerHello& hello = servers_.at(server).hello;
  return {"server " + std::to_string(server), hello.host, hello.bandwidth};
}

std::uint64_t Peers::since_ms(std::uint16_t index) const {
  const auto server = servers_.find(index);
  if (server == servers_.end()) return 0;
  return server->second.alive ? server->second.since_ms : server->second.heard_ms;
}

ServerEntry Peers::reader_of_part(std::uint16_t index, JobId job, Round round, bool copy) const {
  const Server* owner = alive(index);
  const bool has = owner && !owner->hello.copy_endpoint.empty() && snapshots(index, job).contains(round);
  const ShardIndex holder = holder_of_copy(index, job, round);
  const bool copied = holder != kNoShard && !entry(holder.value).copy_endpoint.empty();
  if (has && !(copy && copied)) return entry(index);
  return copied ? entry(holder.value) : ServerEntry{};
}

Status Peers::check(const ServerHello& hello, std::uint64_t now_ms) {
  const std::string who = "server " + std::to_string(hello.shard.value);
  if (hello.servers != count_ || hello.shard.value >= count_) {
    return fail(ErrorCode::kTopology, who + " is configured for a cluster of " + std::to_string(hello.servers) +
                                          " servers, the coordinator for " + std::to_string(count_) +
                                          "; make [server] index and servers agree in all configuration files");
  }
  if (hello.lane_endpoints.empty()) return fail(ErrorCode::kInvalidArgument, who + " names no lane");
  if (Status status = check_bandwidth(who, "server", hello.bandwidth); !status) return status;
  if (!takes_over(hello)) return {};
  // Two processes with one index, or a quick restart. A live one sends again and keeps its place; a dead one stays
  // silent, and the newcomer, which repeats its hello, takes over. One that holds what the other held has outlived it.
  Server& server = servers_.at(hello.shard.value);
  const bool outlived =
      !hello.exclusive.empty() && hello.exclusive == server.hello.exclusive && hello.key == server.hello.key;
  if (outlived || now_ms >= server.heard_ms + rivalry_ms()) return {};
  if (std::exchange(server.rival, hello.incarnation) != hello.incarnation) server.rival_ms = now_ms;
  if (server.heard_ms >= server.rival_ms + rivalry_ms()) {
    return fail(ErrorCode::kTopology, who +
                                          " is there already as another process, which is alive: it has been heard "
                                          "since this one came; give each server its own [server] index");
  }
  return fail(ErrorCode::kUnavailable,
              who + " is there already as another process, heard " + std::to_string(now_ms - server.heard_ms) +
                  " ms ago; if that one is gone, this one takes its place in a moment, else give each server its own "
                  "[server] index");
}

Status Peers::check(const WorkerHello& hello) const {
  const auto of_key = [&](const auto& entry) { return !hello.key.empty() && entry.second.hello.key == hello.key; };
  if (!workers_.contains(hello.incarnation) && std::ranges::count_if(workers_, of_key) >= kMaxProcessesOfKey) {
    return fail(ErrorCode::kLimit, "worker " + hello.name + " has " + std::to_string(kMaxProcessesOfKey) +
                                       " processes with one key already; give each worker a key of its own");
  }
  return check_bandwidth("worker " + hello.name, "worker", hello.bandwidth);
}

bool Peers::takes_over(const ServerHello& hello) const {
  const Server* there = alive(hello.shard.value);
  return there && there->hello.incarnation != hello.incarnation;
}

std::optional<std::uint64_t> Peers::outlived_by(const WorkerHello& hello) const {
  const auto outlived = std::ranges::find_if(workers_, [&](const auto& entry) {
    return entry.first != hello.incarnation && !hello.exclusive.empty() &&
           entry.second.hello.exclusive == hello.exclusive && entry.second.hello.key == hello.key;
  });
  return outlived == workers_.end() ? std::nullopt : std::optional(outlived->first);
}

Peers::Met Peers::meet(PeerId from, const ServerHello& hello, std::uint64_t now_ms) {
  Server& server = servers_[hello.shard.value];
  const bool known = server.hello.incarnation == hello.incarnation;
  const bool moved = known && server.peer != from;
  const std::uint64_t since = known && server.alive ? server.since_ms : now_ms;
  server = Server{from, hello, now_ms, since, true, known && server.leaves};
  std::ranges::sort(server.hello.stored, {}, place_of);
  return {known, moved};
}

Peers::Met Peers::meet(PeerId from, const WorkerHello& hello, std::uint64_t now_ms) {
  Worker worker{from, hello, now_ms, now_ms, hello.name};
  const auto known = workers_.find(hello.incarnation);
  if (known != workers_.end()) {
    worker.hello.name = known->second.hello.name;
    worker.since_ms = known->second.since_ms;
    known->second = std::move(worker);
    return {true, false};
  }
  worker.hello.name = name_apart(hello.name, now_ms);
  workers_[hello.incarnation] = std::move(worker);
  return {};
}

// Two workers may have one name, as two of one host have by default. (A worker that has been silent for a while may be
// the newcomer's earlier process.)
std::string Peers::name_apart(const std::string& called, std::uint64_t now_ms) const {
  const auto taken = [&](const std::string& name) {
    return std::ranges::any_of(workers_, [&](const auto& entry) {
      return entry.second.hello.name == name && now_ms < entry.second.heard_ms + rivalry_ms();
    });
  };
  std::string name = called;
  for (std::size_t number = 2; taken(name); ++number) name = called + " (" + std::to_string(number) + ")";
  return name;
}

void Peers::hear(PeerId from, std::uint64_t now_ms) {
  if (Worker* worker = worker_at(from)) worker->heard_ms = now_ms;
  if (Server* server = server_at(from)) server->heard_ms = now_ms;
}

ServerEntry Peers::entry(std::uint16_t index) const {
  const Server* server = alive(index);
  return server ? ServerEntry{ShardIndex(index), server->hello.copy_endpoint, server->hello.key} : ServerEntry{};
}

ServerBook Peers::book() const {
  ServerBook book;
  for (const auto& [index, server] : servers_) {
    if (server.alive && !server.hello.copy_endpoint.empty()) book.servers.push_back(entry(index));
  }
  return book;
}

void Peers::lose_server(std::uint16_t index) {
  Server& server = servers_.at(index);
  server.alive = false;
  drains_.erase(server.hello.incarnation);
}

void Peers::lose_worker(std::uint64_t incarnation) {
  workers_.erase(incarnation);
  drains_.erase(incarnation);
}

std::vector<std::uint16_t> Peers::silent_servers(std::uint64_t now_ms) const {
  std::vector<std::uint16_t> found;
  for (const auto& [index, server] : servers_) {
    if (server.alive && silent(server.heard_ms, now_ms)) found.push_back(index);
  }
  return found;
}

std::vector<std::uint64_t> Peers::silent_workers(std::uint64_t now_ms) const {
  std::vector<std::uint64_t> found;
  for (const auto& [incarnation, worker] : workers_) {
    if (silent(worker.heard_ms, now_ms)) found.push_back(incarnation);
  }
  return found;
}

void Peers::drain_moved(std::uint64_t incarnation, PeerId to) {
  if (const auto drain = drains_.find(incarnation); drain != drains_.end()) drain->second = to;
}

void Peers::await_drain(std::uint64_t incarnation, PeerId from) {
  drains_[incarnation] = from;
  if (Server* server = server_with(incarnation)) server->leaves = true;
}

std::vector<PeerId> Peers::take_drained(const std::function<bool(std::uint64_t incarnation)>& busy) {
  std::vector<PeerId> drained;
  std::erase_if(drains_, [&](const auto& drain) {
    if (busy(drain.first)) return false;
    drained.push_back(drain.second);
    return true;
  });
  return drained;
}

// A server's entry; end(): it has none. The list is sorted: there may be as many jobs as a server can have.
std::vector<StoredJob>::const_iterator Peers::find(const Server& server, JobId job, ShardIndex copy_of) {
  const std::vector<StoredJob>& all = server.hello.stored;
  const auto at = std::ranges::lower_bound(all, std::pair(job, copy_of), {}, place_of);
  return at != all.end() && place_of(*at) == std::pair(job, copy_of) ? at : all.end();
}

std::set<Round> Peers::snapshots(std::uint16_t index, JobId job) const {
  const auto server = servers_.find(index);
  if (server == servers_.end()) return {};
  const auto stored = find(server->second, job, kNoShard);
  if (stored == server->second.hello.stored.end()) return {};
  return {stored->snapshots.begin(), stored->snapshots.end()};
}

std::set<Round> Peers::snapshots_or_copies(std::uint16_t index, JobId job) const {
  std::set<Round> rounds = alive(index) ? snapshots(index, job) : std::set<Round>();
  for (const auto& [holder, server] : servers_) {
    const auto stored = find(server, job, ShardIndex(index));
    if (server.alive && stored != server.hello.stored.end())
      rounds.insert(stored->snapshots.begin(), stored->snapshots.end());
  }
  return rounds;
}

bool Peers::has_copy(std::uint16_t holder, ShardIndex shard, JobId job, Round round) const {
  const Server* server = alive(holder);
  if (!server) return false;
  const auto stored = find(*server, job, shard);
  return stored != server->hello.stored.end() && std::ranges::find(stored->snapshots, round) != stored->snapshots.end();
}

ShardIndex Peers::holder_of_copy(std::uint16_t index, JobId job, Round round) const {
  const auto holder = std::ranges::find_if(
      servers_, [&](const auto& entry) { return has_copy(entry.first, ShardIndex(index), job, round); });
  return holder == servers_.end() ? kNoShard : ShardIndex(holder->first);
}

std::pair<JobId, ShardIndex> Peers::place_of(const StoredJob& stored) {
  return {stored.job, stored.copy_of};
}

bool Peers::stores(JobId job) const {
  return std::ranges::any_of(servers_, [&](const auto& entry) {
    const std::vector<StoredJob>& stored = entry.second.hello.stored;
    return std::ranges::find(stored, job, &StoredJob::job) != stored.end();
  });
}

bool Peers::stores(JobId job, Round round) const {
  return std::ranges::any_of(servers_,
                             [&](const auto& entry) { return snapshots_or_copies(entry.first, job).contains(round); });
}

std::optional<Round> Peers::newest_stored(JobId job) const {
  std::map<Round, std::size_t> rounds;  // on how many servers
  std::size_t holders = 0;              // that have any
  for (const auto& [index, server] : servers_) {
    const std::set<Round> stored = snapshots_or_copies(index, job);
    if (!stored.empty()) ++holders;
    for (const Round round : stored) ++rounds[round];
  }
  std::optional<Round> newest, common;
  for (const auto& [round, on] : rounds) {  // ascending
    newest = round;
    if (on == holders) common = round;
  }
  return common ? common : newest;
}

Status Peers::room_for_another_job() const {
  for (const auto& [index, server] : servers_) {
    const auto jobs = static_cast<std::size_t>(std::ranges::count_if(server.hello.stored, &StoredJob::own));
    if (jobs < kMaxJobs) continue;
    return fail(ErrorCode::kLimit, "server " + std::to_string(index) + "'s store has snapshots of " +
                                       std::to_string(jobs) + " jobs, and at most " + std::to_string(kMaxJobs) +
                                       " may be there; remove some that are over (tributary job remove)");
  }
  return {};
}

std::set<JobId> Peers::stored_under(const std::string& job_name) const {
  std::set<JobId> ids;
  for (const auto& [index, server] : servers_) {
    for (const StoredJob& stored : server.hello.stored) {
      if (stored.name == job_name && !stored.snapshots.empty()) ids.insert(stored.job);
    }
  }
  return ids;
}

void Peers::add_snapshot(std::uint16_t index, JobId job, const std::string& name, Round round, ShardIndex copy_of) {
  std::vector<StoredJob>& all = servers_.at(index).hello.stored;
  auto entry = std::ranges::lower_bound(all, std::pair(job, copy_of), {}, place_of);
  if (entry == all.end() || place_of(*entry) != std::pair(job, copy_of)) {
    entry = all.insert(entry, StoredJob{job, name, 0, {}, copy_of});
  }
  if (std::ranges::find(entry->snapshots, round) == entry->snapshots.end()) entry->snapshots.push_back(round);
}

void Peers::forget_snapshots(JobId job, const std::function<bool(Round)>& gone) {
  for (auto& [index, server] : servers_) {
    for (StoredJob& stored : server.hello.stored) {
      if (stored.job == job) std::erase_if(stored.snapshots, gone);
    }
  }
}

void Peers::forget_job(JobId job) {
  for (auto& [index, server] : servers_) {
    std::erase_if(server.hello.stored, [&](const StoredJob& stored) { return stored.job == job; });
  }
}

}  // namespace tributary
