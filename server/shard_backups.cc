// ShardCore's part in rounds with backup workers: complete with the first pushes, without the last nodes.
#include <algorithm>

#include "server/shard_core.h"

namespace tributary {

// How many pushes make a round. (A view may have fewer nodes than the job file's author thought of.)
std::uint32_t ShardCore::quorum() const {
  return job_.nodes - std::min(job_.clocks->backups, job_.nodes - 1);
}

// A push that is its author's next, and fits. It counts if it was computed from the parameters as they are.
void ShardCore::take_backup_push(Chunk& chunk, const Push& push, Payload frame) {
  const std::uint32_t node = push.key.node.value;
  NodeClock& clock = chunk.clocks[node];
  chunk.over = chunk.over || push.beyond;
  clock.dropped = clock.sent_version != chunk.version || chunk.over;
  clock.sent.reset();  // its author is done with it
  clock.told = false;
  clock.asked = push.round.value;
  clock.last = push.last;
  clock.withheld = true;
  ++stats_.withheld;
  ++stats_.pushes;
  stats_.push_bytes += frame.bytes().size();
  if (job_.nodes > 1) output_.receipt(clock.from, Receipt{push.key, push.round});
  if (clock.dropped) {
    ++stats_.dropped;
    return answer_push(chunk, node);
  }
  Contribution& mine = chunk.contributions[node];
  mine.present = true;
  mine.weight = push.weight;
  mine.frame = std::move(frame);
  ++stats_.held_frames;
  stats_.held_bytes += mine.frame.bytes().size();
  stats_.max_held_bytes = std::max(stats_.max_held_bytes, stats_.held_bytes);
  if (++chunk.arrived >= quorum()) complete_without_last(chunk);
}

// False, and the round is as it was, if the pool has no buffer for the new state. (It then takes who comes meanwhile.)
bool ShardCore::complete_without_last(Chunk& chunk) {
  std::size_t pushes = 0;
  std::uint64_t weight = 0;
  bool last = false;
  for (std::uint32_t node = 0; node < job_.nodes; ++node) {
    const Contribution& contribution = chunk.contributions[node];
    if (!contribution.present) continue;
    frames_[pushes++] = frame_of(contribution);
    weight += contribution.weight;
    last = last || chunk.clocks[node].last;
  }
  if (weight != 0 && !apply(chunk, {{frames_.data(), pushes}, weight, chunk.step + 1})) return false;
  chunk.version = chunk.version.next();
  chunk.over = last;
  max_version_ = std::max(max_version_, chunk.version);
  chunk.arrived = 0;
  for (std::uint32_t node = 0; node < job_.nodes; ++node) {
    Contribution& contribution = chunk.contributions[node];
    if (!contribution.present) continue;
    stats_.held_bytes -= contribution.frame.bytes().size();
    --stats_.held_frames;
    contribution.frame.reset();
    contribution.present = false;
    answer_push(chunk, node);
  }
  if (snapshot_round_ && !chunk.captured && chunk.version.value == snapshot_round_->value) {
    capture(chunk, *snapshot_round_);
  }
  return true;
}

void ShardCore::answer_push(Chunk& chunk, std::uint32_t node) {
  NodeClock& clock = chunk.clocks[node];
  clock.applied = clock.asked;
  clock.withheld = false;
  --stats_.withheld;
  chunk.slowest = std::ranges::min_element(chunk.clocks, {}, &NodeClock::applied)->applied;
  send_clock_answer(chunk, NodeRank(node));
}

}  // namespace tributary
