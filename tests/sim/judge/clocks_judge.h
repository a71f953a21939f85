// Nodes with clocks of their own (modes ssp and async): a push is applied as it arrives, alone. There is one right
// result for each order of arrival: the judge replays the pushes in that order, plainly, and compares bit for bit after
// every push. It also compares each answer, as sent and as received, and a snapshot's chunk when captured and when
// written. It knows each node's clock on each chunk. So it sees a push that is applied twice or out of turn, and an
// answer that lacks a part: the reader's own pushes, and all nodes' pushes up to the reader's clock minus the bound.
#pragma once

#include <map>
#include <tuple>

#include "tests/sim/judge/judge.h"

namespace tributary::sim {

class ClocksJudge final : public Judge {
 public:
  // saved: the state that the view begins with; null: a fresh job.
  ClocksJudge(const JudgeSetup& setup, const SavedState* saved, Broken broken);
  void push_arrives(const ShardCore& core, const Push& push, std::span<const std::byte> frame) override;
  void push_handled() override;
  void answers(const Answer& answer, std::span<const std::byte> payload) override;
  void delivered(std::uint32_t node, ChunkIndex chunk, Version version, std::span<const float> params) override;
  void captured(const ChunkSnapshot& snapshot) override;
  void snapshot_read(const ChunkSnapshot& snapshot, std::span<const float> params) override;
  void ended() override;

 private:
  struct Told {  // the last answer to a node
    bool any = false;
    std::uint64_t clock = 0, slowest = 0;
    std::vector<std::byte> bytes;
    std::vector<float> values;  // as the node has them
  };
  struct Chunk {
    SavedChunk state;
    std::vector<Told> told;  // by node
  };
  // The server has moved on by a version, with this push.
  void apply(Chunk& chunk, const Push& push, std::span<const std::byte> frame);
  // Whether this answer may go out, as it is.
  void check_answer(const Chunk& chunk, const Answer& answer);
  void check_captured(const Chunk& chunk, const ChunkSnapshot& snapshot);
  static std::uint64_t slowest(const Chunk& chunk);
  bool bound_kept(std::uint64_t clock, std::uint64_t slowest) const;
  void follow();
  static std::string at(const ChunkKey& key);

  const JudgeSetup setup_;
  const std::shared_ptr<const Encoding> push_, pull_;
  std::vector<Chunk> chunks_;
  std::vector<std::vector<std::vector<float>>> delivered_;  // by node, chunk: the newest
  // By chunk, round and version: a round may be captured again, when the state has moved on.
  std::map<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>, SavedChunk> captured_;
  // The push that is being handled.
  const ShardCore* core_ = nullptr;
  Push handled_;
  std::span<const std::byte> frame_;
};

}  // namespace tributary::sim
