// Checks that every sample was dealt once, whichever ranks took part: compares the samples that ranks report with those
// that the sampler deals to a single rank. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "tools/cluster/progress_socket.h"
#include "train/sampler.h"

namespace tributary::bench {

// For jobs in which every rank computes its whole share. Reports can be lost on the way, so some rounds may be
// undecided.
class ElasticCoverage {
 public:
  // whole: the job's sampler for a world of one rank.
  explicit ElasticCoverage(train::Sampler whole) : whole_(std::move(whole)) {}

  void take(const ProgressReport& report);
  // rounds_whole: all ranks of a view reported the round, and computed just its samples; rounds_wrong: all ranks of a
  // view reported it, and computed others; rounds_dealt_twice: it was open when nodes came or went. A round of two
  // views may be both whole and wrong.
  nlohmann::ordered_json counts();
  // Counts the samples in the rounds after `after`, up to `to`.
  std::uint64_t samples(std::uint64_t after, std::uint64_t to) const;

 private:
  // Two views with the same number of ranks that begin after the same round deal the same.
  struct View {
    std::uint32_t world_size = 1;
    std::uint64_t resumed = 0;
    auto operator<=>(const View&) const = default;
  };
  std::uint64_t whole_sum(std::uint64_t round);

  train::Sampler whole_;
  std::map<std::uint64_t, std::map<View, std::map<std::uint32_t, std::uint64_t>>> sums_;  // by round, view and rank
};

}  // namespace tributary::bench
