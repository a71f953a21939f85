// StateDelivery: delivers kept states to this node's ranks once a view has begun: the large parts of their own states
// (HeldState), and the state of the view's first rank (RankState). Large parts that no rank of the node holds come from
// the coordinator, one after the other. A part of AttachedJob; lives for a view. Pure, but for the memory of fetched
// parts.
//
// A trainer whose message lacks the large part that its state names continues without it: the part is lost.
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
  // Delivers a part to all ranks that wait for it; null: it is lost, and the log has the reason.
  void arrived(const LargePart& large, const std::shared_ptr<const SealedBytes>& memory, const std::string& why_not);

  NodeJobsContext& context_;
  JobId job_;
  std::vector<Waiting> waiting_;
  std::optional<Coming> coming_;
};

}  // namespace tributary
