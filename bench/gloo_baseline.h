// The baseline of bench/allreduce_bench.cc: the Gloo library in its plain use. Every node is a thread with a buffer of
// the whole model; a round is one call of gloo::allreduce with the ring algorithm over all of it, and then, if wanted,
// the optimizer's step over all parameters.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace tributary::bench {

// Seconds of `rounds` rounds, the first of which follow `warm_up` others. nodes >= 2. optimizer: empty for no step.
struct GlooBaselineOptions {
  std::uint32_t nodes = 2;
  std::uint64_t elements = 0;
  std::string optimizer;
  std::uint32_t warm_up = 1, rounds = 5;
};

class GlooBaseline {
 public:
  static Result<std::unique_ptr<GlooBaseline>> create(GlooBaselineOptions options);
  ~GlooBaseline();
  GlooBaseline(const GlooBaseline&) = delete;
  GlooBaseline& operator=(const GlooBaseline&) = delete;

  // One after another, each begun when the last node has finished the one before.
  Result<std::vector<double>> measure();

 private:
  struct Impl;
  explicit GlooBaseline(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tributary::bench
