// PartHolders: the servers that have copies of the large parts of what ranks keep, and that are to have them
// (docs/copies.md). Server 0's store has the parts themselves. Pure: reports and ticks in, orders out. LargeParts owns
// it.
//
// Invariant: a part that a job wants is dropped nowhere before both server 0's store and the server that keeps the
// job's copies have it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/wire/messages.h"

namespace tributary {

class PartHolders {
 public:
  static constexpr std::uint64_t kEveryMs = 10'000;   // orders for copies that are missing are repeated
  static constexpr std::uint64_t kFailedMs = 60'000;  // a copy that could not be fetched is fetched again

  using Parts = std::set<LargePart>;
  using Key = std::pair<JobId, LargePart>;
  // Servers are known by incarnation.
  struct Ports {
    bool store = false;                                   // server 0 has one; else nothing is copied
    std::function<bool(JobId, const LargePart&)> stored;  // in it
    std::function<bool(std::uint64_t server)> there;      // the server is alive
    std::function<void(std::uint64_t server, CopyParts)> order;
  };
  explicit PartHolders(Ports ports) : ports_(std::move(ports)) {}

  // ---- What is wanted ----
  // All the parts that the job wants; those that its saved record names, where that is not known yet.
  void want(JobId job, const Parts& parts) { wanted_[job] = parts; }
  void named(JobId job, const Parts& parts) { wanted_.try_emplace(job, parts); }
  void forget(JobId job);
  // Whether the job's parts are to have copies, and the server that keeps them; none: it is not there.
  void copy_to(JobId job, bool wanted, std::optional<std::uint64_t> server, std::uint64_t now_ms);
  // Servers drop their copies of parts of jobs that nobody knows.
  void keep_known(const std::function<bool(JobId)>& known) const;

  // ---- What servers say ----
  // It is there, and these are all its copies; and of one job's parts.
  void here(std::uint64_t server, const std::vector<HeldParts>& all);
  void on(std::uint64_t server, const HeldParts& m);
  void requests(std::uint64_t server, JobId job, std::uint64_t now_ms);  // a piece of the job's parts
  void lost(std::uint64_t server) { held_.erase(server); }

  // ---- Where a part is ----
  // Servers that the part can be fetched from; and any that has it, though that failed a moment ago.
  std::vector<std::uint64_t> sources(const Key& part) const;
  std::optional<std::uint64_t> any_with(const Key& part) const;
  // The part could not be fetched from this server; none: from nobody, as server 0's store does not take it.
  void failed(const Key& part, std::optional<std::uint64_t> server, std::uint64_t now_ms);
  // Copies are being made: by this server; by any.
  bool copies(std::uint64_t server) const;
  bool copies() const;
  // Some parts that the job wants have yet to get copies, on a server that is there. keeper: that is to have them.
  bool copies_of(JobId job, std::optional<std::uint64_t> keeper) const;

  // Sends orders. Returns the parts that server 0's store lacks, and a server has.
  std::vector<Key> tick(std::uint64_t now_ms);

 private:
  struct Copies {  // of a job's parts
    bool wanted = true;
    std::uint64_t server = 0;    // 0: it is not there
    std::uint64_t due_ms = 0;    // the order is repeated
    std::uint64_t moved_ms = 0;  // the server requested a piece, or was ordered something new
    Parts asked;                 // the last order to that server
    std::uint32_t number = 0;    // of the order
  };
  const Parts& held(std::uint64_t server, JobId job) const;
  // The parts of the job that this server is to have. The one that keeps copies: all that are stored, and those that it
  // has. Another one: those that it has, as long as they are not both stored and there.
  Parts parts_for(std::uint64_t server, JobId job, const Copies& copies) const;
  bool lacks_some(JobId job, const Copies& copies) const;
  bool under_way(JobId job, const Copies& copies) const;
  void order(std::uint64_t server, JobId job, const Parts& parts, std::uint32_t number) const;

  const Ports ports_;
  std::map<JobId, Parts> wanted_;                         // of jobs whose parts are known
  std::map<std::uint64_t, std::map<JobId, Parts>> held_;  // by server
  std::map<JobId, Copies> copies_;
  std::map<std::pair<Key, std::uint64_t>, std::uint64_t> failed_;  // by part and server (0: all): until when
  std::uint64_t now_ms_ = 0;                                       // of the last tick
};

}  // namespace tributary
