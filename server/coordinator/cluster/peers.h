// Peers: the daemons that the coordinator knows: which are alive, and what each reports. Pure. Lives in the
// coordinator, which acts on arrivals, losses and reconnections.
//
// Invariants: a server's index belongs to one process at a time. A daemon is known by its incarnation, at its newest
// connection. No two live workers have one name. A daemon that waits for permission to stop is alive.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/peer_clock.h"
#include "common/base/result.h"
#include "common/wire/messages.h"
#include "server/coordinator/cluster/job_placement.h"

namespace tributary {

// "round 5".
std::string newest_in_words(const StoredJob& stored);

class Peers {
 public:
  static constexpr std::int64_t kMaxProcessesOfKey = 16;  // that are known at a time

  struct Server {
    PeerId peer;
    ServerHello hello;
    std::uint64_t heard_ms = 0;
    std::uint64_t since_ms = 0;  // its process was met
    bool alive = false;
    bool leaves = false;                        // it is stopping: no view begins with it
    std::uint64_t rival = 0;                    // incarnation of another process with this index; 0: none
    std::uint64_t rival_ms = 0;                 // since when
    std::uint64_t bytes_in = 0, bytes_out = 0;  // as its heartbeats have them
    PeerClock clock;
  };
  struct Worker {
    PeerId peer;
    WorkerHello hello;
    std::uint64_t heard_ms = 0;
    std::uint64_t since_ms = 0;  // its first hello
    std::string called;          // as it calls itself; hello.name distinguishes it from another of that name
    std::uint64_t bytes_in = 0, bytes_out = 0;  // as its heartbeats have them
    PeerClock clock;
  };

  // home: the server whose process has the coordinator, and whose store the registry.
  Peers(std::uint16_t servers, std::uint64_t timeout_ms, ShardIndex home)
      : count_(servers), timeout_ms_(timeout_ms), home_(home) {}

  ShardIndex home() const { return home_; }
  std::string home_in_words() const { return "server " + std::to_string(home_.value); }

  // ---- Who is there ----
  const std::map<std::uint16_t, Server>& servers() const { return servers_; }
  const std::map<std::uint64_t, Worker>& workers() const { return workers_; }  // by incarnation
  Server* server_at(PeerId peer);                                              // alive
  Worker* worker_at(PeerId peer);
  Server* server_with(std::uint64_t incarnation);  // alive
  const Server* server_with(std::uint64_t incarnation) const {
    return const_cast<Peers*>(this)->server_with(incarnation);
  }
  const Server* alive(std::uint16_t index) const;  // nullptr: it is not there
  Worker* worker_with(std::uint64_t incarnation);
  const Worker* worker(std::uint64_t incarnation) const;  // nullptr: it is not there
  std::string name_of(std::uint64_t worker) const;        // "unknown" if it is gone
  // Where a live worker or server is reached, by incarnation; none: it is not there.
  std::optional<PeerId> peer(std::uint64_t incarnation) const;
  std::string daemon_in_words(std::uint64_t incarnation) const;     // "worker n", "server 2", "a daemon that is gone"
  bool stays(std::uint16_t server) const;                           // it is alive and not stopping
  bool all_servers(const std::set<std::uint16_t>& but = {}) const;  // that there are to be
  bool all_have_stores() const;
  std::set<std::uint16_t> those_that_stay() const;
  // A server that is there. Where chunks can go on it; as the placement knows it.
  ShardSlots slots(std::uint16_t server) const;
  PlacedDaemon placed(std::uint16_t server) const;
  // When this server was met, or, if it is not there, was last heard; 0: never.
  std::uint64_t since_ms(std::uint16_t server) const;
  // More than half of all servers, but so many, are there: no other coordinator can have as many.
  bool majority(std::size_t given_up) const;
  // How other servers read this one's snapshots; without an endpoint: they cannot.
  ServerEntry entry(std::uint16_t server) const;
  // The server that others can read this one's part of a snapshot from: this server, or one that has a copy; without an
  // endpoint: none.
  // copy: rather than the part itself.
  ServerEntry reader_of_part(std::uint16_t server, JobId job, Round round, bool copy) const;
  ServerBook book() const;  // all that are there, and can be read
  // How long it takes to see which of two processes with one name or index is alive.
  std::uint64_t rivalry_ms() const { return timeout_ms_ / 4; }

  // ---- Who comes and goes ----
  // Checks whether the process may become a peer. kUnavailable: perhaps in a moment.
  Status check(const ServerHello& hello, std::uint64_t now_ms);
  Status check(const WorkerHello& hello) const;
  // Returns whether this process takes the place of a live one, which the caller must lose first.
  bool takes_over(const ServerHello& hello) const;
  std::optional<std::uint64_t> outlived_by(const WorkerHello& hello) const;
  struct Met {
    bool known = false;  // this process was
    bool moved = false;  // and has another connection now
  };
  // REQUIRES: no peer must be lost for it.
  Met meet(PeerId from, const ServerHello& hello, std::uint64_t now_ms);
  Met meet(PeerId from, const WorkerHello& hello, std::uint64_t now_ms);
  void hear(PeerId from, std::uint64_t now_ms);
  // Whether its connection is another one than before.
  static bool hear(auto& peer, PeerId from, const Heartbeat& beat, std::uint64_t now_ms) {
    peer.heard_ms = now_ms;
    peer.bytes_in = beat.bytes_in;
    peer.bytes_out = beat.bytes_out;
    return std::exchange(peer.peer, from) != from;
  }
  void lose_server(std::uint16_t index);
  void lose_worker(std::uint64_t incarnation);
  std::vector<std::uint16_t> silent_servers(std::uint64_t now_ms) const;
  std::vector<std::uint64_t> silent_workers(std::uint64_t now_ms) const;

  // ---- Who waits to be let go: by incarnation, and where it is told ----
  void await_drain(std::uint64_t incarnation, PeerId from);
  void drain_moved(std::uint64_t incarnation, PeerId to);
  // Takes the waiting peers that `busy` holds no longer.
  std::vector<PeerId> take_drained(const std::function<bool(std::uint64_t incarnation)>& busy);

  // ---- What servers' stores have of jobs: as they said in their hello, and what happened since ----
  // Rounds of this server's part, in its own store.
  std::set<Round> snapshots(std::uint16_t server, JobId job) const;
  // The same, or a copy of it, in the stores of servers that are there.
  std::set<Round> snapshots_or_copies(std::uint16_t server, JobId job) const;
  bool has_copy(std::uint16_t holder, ShardIndex shard, JobId job, Round round) const;
  // A server that is there, and has a copy of this server's part; kNoShard: none.
  ShardIndex holder_of_copy(std::uint16_t server, JobId job, Round round) const;
  bool stores(JobId job) const;  // does any?
  bool stores(JobId job, Round round) const;
  // The newest round that all servers have which have any of the job (or another has a copy); else the newest of any.
  std::optional<Round> newest_stored(JobId job) const;
  // kLimit: a server's store has as many jobs as a server can say that it has; another one would be one too many.
  Status room_for_another_job() const;
  std::set<JobId> stored_under(const std::string& job_name) const;  // with snapshots
  // copy_of: it is a copy of this one's part.
  void add_snapshot(std::uint16_t server, JobId job, const std::string& name, Round round,
                    ShardIndex copy_of = kNoShard);
  void forget_snapshots(JobId job, const std::function<bool(Round)>& gone);
  void forget_job(JobId job);

 private:
  static std::pair<JobId, ShardIndex> place_of(const StoredJob& stored);  // that lists are sorted by
  static std::vector<StoredJob>::const_iterator find(const Server& server, JobId job, ShardIndex copy_of);
  std::string name_apart(const std::string& name, std::uint64_t now_ms) const;
  bool silent(std::uint64_t heard_ms, std::uint64_t now_ms) const { return now_ms > heard_ms + timeout_ms_; }

  std::uint16_t count_;
  std::uint64_t timeout_ms_;
  ShardIndex home_;
  std::map<std::uint16_t, Server> servers_;
  std::map<std::uint64_t, Worker> workers_;
  std::map<std::uint64_t, PeerId> drains_;
};

}  // namespace tributary
