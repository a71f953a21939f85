// A rank of Gloo in its plain use: all connected with all, one call of its ring all-reduce over a whole buffer. The
// baseline for our all-reduce, in one process (gloo_baseline.h) and over the lab's hosts (gloo_ring_rank.h). Throws
// Gloo's exceptions.
#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace tributary::bench {

class GlooRank {
 public:
  // Blocks until all ranks are there. timeout 0: Gloo's own.
  GlooRank(const std::string& address, std::uint32_t rank, std::uint32_t size, gloo::rendezvous::Store& store,
           std::chrono::milliseconds timeout = {});
  // out becomes the sum of all ranks' `in`; null: of their `out`.
  void sum(const float* in, float* out, std::size_t count);

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
};

}  // namespace tributary::bench
