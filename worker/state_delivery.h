// StateDelivery: what ranks of this node get of what was kept, once a view has begun: their own states' large parts
// (HeldState), and what the view's first rank keeps (RankState). The large parts that no rank of the node holds come
// from the coordinator, one after the other. A part of AttachedJob; lives for a view. Pure, but for the memory that
// what is fetched is written into.
//
// A trainer that gets a message without the memory that its state speaks of is to do without: nobody has it any more.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/wire/part_fetch.h"
#include "worker/node_jobs_context.h"

namespace tributary {

class StateDelivery {
 public:
  enum class Whose { kOwn, kFirst };

  StateDelivery(NodeJobsContext& context, JobId job) : context_(context), job_(job) {}

  // Now, if its large part is here or there is none.
  void deliver(TrainerId to, Whose whose, RankState state, std::uint64_t now_ms);
  void on(const StatePart& m, std::uint64_t now_ms);
  void tick(std::uint64_t now_ms);

 private:
  struct Waiting {
    TrainerId to;
    Whose whose = Whose::kOwn;
    RankState state;
    LargePart large;
  };
  struct Coming {
    PartFetch fetch;
    SealedWriter memory;
  };
  void send(const Waiting& one, const std::shared_ptr<const SealedBytes>& large);
  void fetch_next(std::uint64_t now_ms);
  void ask(std::uint64_t now_ms);
  // To all who wait for it; null: it is not to be had, and the log says why.
  void arrived(const LargePart& large, const std::shared_ptr<const SealedBytes>& memory, const std::string& why_not);

  NodeJobsContext& context_;
  JobId job_;
  std::vector<Waiting> waiting_;
  std::optional<Coming> coming_;
};

}  // namespace tributary
