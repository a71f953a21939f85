// `tributary bench staleness-rank`: one rank of a job of mode "ssp" or "async" that can tell from its parameters alone
// which pushes they hold, and so counts itself what the servers promise.
//
// Plain SGD with learning rate 1. A node's gradient is -1 where the position in the chunk is the node's rank modulo the
// number of nodes, and 0 elsewhere. So a parameter at a position of node j is the number of j's pushes that were
// applied to its chunk. A tensor is a chunk, each with its own clock.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "common/config.h"
#include "common/result.h"
#include "worker/session.h"

namespace tributary::bench {

inline constexpr std::uint64_t kStalenessChunk = 1024;  // elements, the smallest there are

struct StalenessRankOptions {
  JobConfig job;
  std::string socket;  // the worker's
  Topology topology;
  std::uint32_t chunks = 32;
  std::uint64_t clocks = 100;
  // Of every `period` clocks of its own a node is the slow one for a share of 1 / nodes, which periods is drawn from
  // the seed; then it sleeps up to so long before each chunk's push.
  std::uint64_t period = 20;
  std::uint32_t slow_us = 400;
  std::uint64_t seed = 1;
};

// After each clock c of each chunk, with value[j] the parameter at positions of node j, s the staleness of the job:
//   own    value[own node] != c           a push of its own is missing, or was applied twice
//   stale  value[j] < c - s               the bound is broken
//   ahead  value[j] > c + s + 1           j was let go too early
//   torn   values of one node differ within the chunk, or are no whole numbers
// A job that goes on from a snapshot begins with values first[j], some of which are ahead of the clock that all nodes
// begin at; until the clock has passed it, first[own node] stands for c in the first and the third line, and first[j]
// bounds the third, too: those pushes are applied, whether their authors have repeated them yet or not.
//   lost   first[j] is below that clock: the snapshot lacks pushes that it is said to have
// A rank that is asked to stop does; one whose view ends attaches again, at most kMaxAttaches times in all.
//
// {rank, node, clock (reached), stopped, attaches, resumed_from (at the first attach), pulls, violations {own, stale,
// ahead, torn, lost, end}, max_staleness, staleness_sum, told_sum, told_max, histogram (by staleness: c minus the
// smallest value; the last entry is for all beyond), first_violation, digest} told_*: what the answers themselves said.
// end: chunks that do not hold exactly all pushes after the last clock.
inline constexpr std::uint32_t kMaxAttaches = 50;
Result<nlohmann::ordered_json> run_staleness_rank(const StalenessRankOptions& options);

}  // namespace tributary::bench
