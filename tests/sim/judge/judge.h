// Judge: the base of judges of a simulated view's rounds, event by event. cluster_judge.h reports the events; a judge
// knows the right states: rounds_judge.h for synchronous rounds, members_judge.h for those whose nodes change,
// clocks_judge.h for nodes with clocks of their own.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/layout.h"
#include "common/config/config.h"
#include "common/math/encoding.h"
#include "kernels/step/optimizer.h"
#include "server/shard/shard_core.h"
#include "tests/sim/judge/reference.h"

namespace tributary::sim {

// Options that the servers' cores get, too.
struct JudgeSetup : ReferenceOptions {
  std::uint64_t staleness = ShardJob::kUnbounded;  // modes with clocks
  Round start;                                     // clocks: every node's first one, if nothing better is known
  bool deadline = false;                           // weights are the samples that ranks report
};

struct ClusterScenario;
JudgeSetup setup_of(const ClusterScenario& scenario, const JobConfig& config, std::shared_ptr<const Layout> layout);

// State of a chunk in a snapshot that a second view begins with.
struct SavedChunk {
  std::vector<float> params;
  std::vector<std::vector<float>> slots;
  Version version;
  std::uint64_t step = 0;
  std::vector<std::uint64_t> clocks;
};
using SavedState = std::vector<SavedChunk>;  // by chunk
SavedChunk saved_of(const ChunkState& state);
// A chunk of a job that begins.
SavedChunk fresh_chunk(const JudgeSetup& setup, ChunkIndex chunk);
// One step of the optimizer, with a gradient of `round` that has been scaled; position: in the schedule.
void take_step(const JudgeSetup& setup, SavedChunk& state, ChunkIndex chunk, std::span<const float> gradient,
               std::uint64_t round, std::uint64_t position);

class Judge {
 public:
  using Broken = std::function<void(const std::string&)>;
  explicit Judge(Broken broken) : broken_(std::move(broken)) {}
  virtual ~Judge() = default;

  // A server is about to handle this push as its author sent it, and has handled it.
  virtual void push_arrives(const ShardCore& /*core*/, const Push& /*push*/, std::span<const std::byte> /*frame*/) {}
  virtual void push_handled() {}
  // It sends this, at any time.
  virtual void answers(const Answer& /*answer*/, std::span<const std::byte> /*payload*/) {}
  // A node has these parameters now.
  virtual void delivered(std::uint32_t node, ChunkIndex chunk, Version version, std::span<const float> params) = 0;
  // A server captured a chunk. The same again, at any time later; params: where its parameters were.
  virtual void captured(const ChunkSnapshot& /*snapshot*/) {}
  virtual void snapshot_read(const ChunkSnapshot& snapshot, std::span<const float> params) = 0;
  // Every node has the last round's parameters.
  virtual void ended() {}

 protected:
  void broken(const std::string& what) const { broken_(what); }

 private:
  const Broken broken_;
};

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

inline std::span<const float> part(const std::vector<float>& flat, const Layout& layout, ChunkIndex chunk) {
  const ChunkRange range = layout.chunk(chunk);
  return std::span<const float>(flat).subspan(range.begin, range.elements);
}

}  // namespace tributary::sim
