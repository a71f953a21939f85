// ShardCore's part in modes where every node has a clock of its own (ssp, async).
#include <algorithm>

#include "server/shard_core.h"

namespace tributary {
namespace {

// May the answer to clock `asked` go out? Written without c - s, which would wrap.
bool near_enough(std::uint64_t asked, std::uint64_t slowest, std::uint64_t staleness) {
  return asked <= slowest || asked - slowest <= staleness;
}

}  // namespace

void ShardCore::on_clock_push(PeerId from, Chunk& chunk, const Push& push, Payload frame) {
  NodeClock& clock = chunk.clocks[push.key.node.value];
  const std::uint64_t round = push.round.value;
  const bool early = round == clock.asked + 1 && clock.withheld;
  if (!chunk.initialised || round > clock.asked + 1 || early) {
    return reject(from, push.key, push.round, ErrorCode::kWrongRound,
                  "push for clock " + std::to_string(round) + " of chunk " + std::to_string(push.key.chunk.value) +
                      ", where node " + std::to_string(push.key.node.value) +
                      (!chunk.initialised ? " has not been given any parameters; pull first"
                       : early            ? " waits for the answer to the clock before; push after it"
                                          : " is at clock " + std::to_string(clock.asked) + "; push clock by clock"));
  }
  if (round <= clock.asked) {
    ++stats_.duplicates;
    if (round < clock.asked) return;  // its sender has long had that answer; a late copy from the network
    clock.from = from;
    return repeat_answer(chunk, push.key.node, push.round);
  }
  // Not before: of a second copy nothing is looked at. Its author may be writing the next frame there.
  if (!push_->valid(frame.bytes().data(), chunk.elements)) {
    return reject(from, push.key, push.round, ErrorCode::kMalformed,
                  "push of chunk " + std::to_string(push.key.chunk.value) + ": its " + push_->name() +
                      " frame contradicts itself; the sender has a bug or the frame was damaged");
  }
  const std::uint64_t slowest = chunk.slowest;
  if (round <= clock.applied) {
    ++stats_.duplicates;  // the state that was restored has it already
  } else if (!advance(chunk, clock, push, frame)) {
    return;  // no buffer: as if it had been lost, and its author asks before long
  }
  clock.sent.reset();
  clock.told = false;
  clock.asked = round;
  clock.from = from;
  clock.last = push.last;
  clock.withheld = true;
  ++stats_.withheld;
  if (job_.view->nodes > 1) output_.receipt(from, Receipt{push.key, push.round});
  release_answers(chunk);
  if (chunk.slowest == slowest) return;
  max_version_ = std::max(max_version_, Version(chunk.slowest));
  if (snapshot_round_ && !chunk.captured && chunk.slowest == snapshot_round_->value) capture(chunk, *snapshot_round_);
}

// The push becomes a part of the state. False, and nothing has changed, if the pool has no buffer for it.
bool ShardCore::advance(Chunk& chunk, NodeClock& clock, const Push& push, const Payload& frame) {
  if (push.weight != 0) {  // one without samples changes nothing but the clock
    const PushFrame pushed{frame.bytes().data(), push.weight};
    const Step step{{&pushed, 1}, push.weight, push.round.value};
    clock.sent.reset();  // its reader is done with it: the step may write there
    if (!apply(chunk, step)) return false;
  }
  chunk.version = chunk.version.next();
  clock.applied = push.round.value;
  chunk.slowest = std::ranges::min_element(chunk.clocks, {}, &NodeClock::applied)->applied;
  ++stats_.pushes;
  stats_.push_bytes += frame.bytes().size();
  return true;
}

// In the order of the nodes.
void ShardCore::release_answers(Chunk& chunk) {
  for (std::uint32_t node = 0; node < job_.view->nodes; ++node) {
    NodeClock& clock = chunk.clocks[node];
    if (!clock.withheld || !near_enough(clock.asked, chunk.slowest, clock.last ? 0 : job_.staleness())) continue;
    clock.withheld = false;
    --stats_.withheld;
    send_clock_answer(chunk, NodeRank(node));
  }
}

void ShardCore::send_clock_answer(Chunk& chunk, NodeRank node) {
  NodeClock& clock = chunk.clocks[node.value];
  if (!clock.sent) {
    if (clock.told) return;  // its reader has it: the next push came, and found no buffer
    clock.told = true;
    clock.sent = chunk.encoded ? chunk.encoded : chunk.params;
    clock.sent_slowest = progress(chunk).value;
  }
  Answer header{{job_.view->job, job_.view->view, node, chunk.index}, Version(clock.asked), pull_->id()};
  header.slowest = Round(clock.sent_slowest);
  ++stats_.answers;
  stats_.answer_bytes += clock.sent.size();
  output_.answer(clock.from, header, clock.sent);
}

void ShardCore::answer_clock_pull(PeerId to, Chunk& chunk, NodeRank node) {
  NodeClock& clock = chunk.clocks[node.value];
  if (clock.asked != job_.view->start.value) return;  // a late copy: its sender has the answer, and has pushed since
  clock.from = to;
  send_clock_answer(chunk, node);
}

// To somebody who asks again about the newest push.
void ShardCore::repeat_answer(Chunk& chunk, NodeRank node, Round round) {
  NodeClock& clock = chunk.clocks[node.value];
  if (!clock.withheld) return send_clock_answer(chunk, node);
  output_.receipt(clock.from, Receipt{{job_.view->job, job_.view->view, node, chunk.index}, round});
}

void ShardCore::on_clock_query(PeerId from, Chunk& chunk, const Query& query) {
  NodeClock& clock = chunk.clocks[query.key.node.value];
  if (query.round.value > clock.asked) return output_.resend(from, Resend{query.key, query.round});
  if (query.round.value < clock.asked) return;  // a late copy
  clock.from = from;
  repeat_answer(chunk, query.key.node, query.round);
}

Status ShardCore::restore_clocks(Chunk& chunk, std::span<const std::uint64_t> clocks) {
  if (clocks.size() != job_.view->nodes) return {};  // other nodes wrote it
  if (std::ranges::any_of(clocks, [&](std::uint64_t clock) { return clock < job_.view->start.value; })) {
    return fail(ErrorCode::kStore, "chunk " + std::to_string(chunk.index.value) +
                                       " in the store lacks pushes of rounds that it is said to have; check the disk, "
                                       "then restore the store from a copy or remove it");
  }
  for (std::uint32_t node = 0; node < job_.view->nodes; ++node) chunk.clocks[node].applied = clocks[node];
  chunk.slowest = *std::ranges::min_element(clocks);
  return {};
}

std::pair<Round, Round> ShardCore::clock_range(NodeRank node) const {
  if (chunks_.empty() || !job_.plan().has_clocks()) return {};
  std::uint64_t lowest = ~0ull, highest = 0;
  for (const Chunk& chunk : chunks_) {
    lowest = std::min(lowest, chunk.clocks[node.value].applied);
    highest = std::max(highest, chunk.clocks[node.value].applied);
  }
  return {Round(lowest), Round(highest)};
}

}  // namespace tributary
