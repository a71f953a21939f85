#include "server/shard/shard_clocks.h"

#include <algorithm>
#include <string>

namespace tributary {
namespace {

// May the answer to clock `asked` go out? Written without c - s, which would wrap.
bool near_enough(std::uint64_t asked, std::uint64_t slowest, std::uint64_t staleness) {
  return asked <= slowest || asked - slowest <= staleness;
}

}  // namespace

ShardClocks::ShardClocks(ShardChunks& chunks) : chunks_(chunks), clocks_(chunks.all().size()) {
  const std::uint64_t start = chunks_.job().view->start.value;
  for (ShardChunk& chunk : chunks_.all()) {
    chunk.state.clocks.assign(chunks_.job().view->nodes, start);
    ChunkClocks& clocks = clocks_[chunk.position];
    clocks.nodes.resize(chunks_.job().view->nodes);
    clocks.slowest = start;
    for (NodeClock& clock : clocks.nodes) clock.asked = start;
  }
}

void ShardClocks::end_view() {
  for (ChunkClocks& clocks : clocks_) {
    for (NodeClock& clock : clocks.nodes) {
      clock.withheld = false;
      clock.pulls = {};
    }
  }
}

void ShardClocks::push(PeerId from, ShardChunk& chunk, const Push& push, Payload&& frame) {
  NodeClock& clock = clock_of(chunk, push.key.node);
  ChunkClocks& clocks = clocks_[chunk.position];
  const std::uint64_t round = push.round.value;
  const bool early = round == clock.asked + 1 && clock.withheld;
  if (!chunk.initialised || round > clock.asked + 1 || early) {
    return chunks_.reject(from, push.key, push.round, ErrorCode::kWrongRound,
                          "push for clock " + std::to_string(round) + " of chunk " +
                              std::to_string(push.key.chunk.value) + ", where node " +
                              std::to_string(push.key.node.value) +
                              (!chunk.initialised ? " has not been given any parameters; pull first"
                               : early            ? " waits for the answer to the clock before; push after it"
                                       : " is at clock " + std::to_string(clock.asked) + "; push clock by clock"));
  }
  if (round <= clock.asked) {
    ++chunks_.stats().duplicates;
    if (round < clock.asked) return;  // its sender has long had that answer; a late copy from the network
    clock.from = from;
    return repeat_answer(chunk, push.key.node, push.round);
  }
  if (!chunks_.sound(from, chunk, push, frame)) return;
  if (round <= chunk.state.clocks[push.key.node.value]) {
    ++chunks_.stats().duplicates;  // the state that was restored has it already
  } else if (!apply(chunk, push, frame)) {
    return;  // no buffer: as if it had been lost, and its author asks before long
  }
  clock.sent.reset();
  clock.told = false;
  clock.asked = round;
  clock.from = from;
  clock.last = push.last;
  clock.withheld = true;
  ++chunks_.stats().withheld;
  if (chunks_.job().view->nodes > 1) chunks_.output().send(from, Ack{push.key, push.round}, {});
  release_answers(chunk);
  chunks_.reach(Version(clocks.slowest));
}

// The push becomes a part of the state. False, and nothing has changed, if the pool has no buffer for it.
bool ShardClocks::apply(ShardChunk& chunk, const Push& push, const Payload& frame) {
  if (push.weight != 0) {  // one without samples changes nothing but the clock
    const PushFrame pushed{frame.bytes().data(), push.weight};
    clock_of(chunk, push.key.node).sent.reset();  // its reader is done with it: the step may write there
    if (!chunks_.step(chunk, ShardStep{{&pushed, 1}, push.weight, push.round.value, push.settings})) return false;
  }
  chunk.state.version = chunk.state.version.next();
  chunk.state.clocks[push.key.node.value] = push.round.value;
  clocks_[chunk.position].slowest = std::ranges::min(chunk.state.clocks);
  ++chunks_.stats().pushes;
  chunks_.stats().push_bytes += frame.bytes().size();
  return true;
}

// In the order of the nodes.
void ShardClocks::release_answers(ShardChunk& chunk) {
  ChunkClocks& clocks = clocks_[chunk.position];
  const std::uint64_t staleness = chunks_.job().staleness();
  for (std::uint32_t node = 0; node < clocks.nodes.size(); ++node) {
    NodeClock& clock = clocks.nodes[node];
    if (!clock.withheld || !near_enough(clock.asked, clocks.slowest, clock.last ? 0 : staleness)) continue;
    clock.withheld = false;
    --chunks_.stats().withheld;
    send_answer(chunk, NodeRank(node));
  }
}

void ShardClocks::send_answer(ShardChunk& chunk, NodeRank node) {
  NodeClock& clock = clock_of(chunk, node);
  if (!clock.sent) {
    if (clock.told) return;  // its reader has it: the next push came, and found no buffer
    clock.told = true;
    clock.sent = chunk.answer();
    clock.sent_slowest = clocks_[chunk.position].slowest;
  }
  Answer header{chunks_.key(chunk, node), Version(clock.asked), chunks_.pull().id()};
  header.slowest = Round(clock.sent_slowest);
  chunks_.answer(clock.from, header, clock.sent);
}

void ShardClocks::pull(PeerId from, ShardChunk& chunk, const Pull& pull) {
  NodeClock& clock = clock_of(chunk, pull.key.node);
  if (!chunk.initialised) {
    clock.pulls = from;
  } else if (clock.asked == chunks_.job().view->start.value) {  // else a late copy: its sender has pushed since
    clock.from = from;
    send_answer(chunk, pull.key.node);
  }
}

void ShardClocks::initialised(ShardChunk& chunk) {
  std::vector<NodeClock>& nodes = clocks_[chunk.position].nodes;
  for (std::uint32_t node = 0; node < nodes.size(); ++node) {
    if (nodes[node].pulls == PeerId{}) continue;
    nodes[node].from = std::exchange(nodes[node].pulls, {});
    send_answer(chunk, NodeRank(node));
  }
}

// Answers a repeated question about the newest push.
void ShardClocks::repeat_answer(ShardChunk& chunk, NodeRank node, Round round) {
  const NodeClock& clock = clock_of(chunk, node);
  if (!clock.withheld) return send_answer(chunk, node);
  chunks_.output().send(clock.from, Ack{chunks_.key(chunk, node), round}, {});
}

void ShardClocks::query(PeerId from, ShardChunk& chunk, const Query& query) {
  NodeClock& clock = clock_of(chunk, query.key.node);
  if (!chunk.initialised || query.round.value > clock.asked) {
    return chunks_.output().send(from, Resend{query.key, query.round}, {});
  }
  if (query.round.value < clock.asked) return;  // a late copy
  clock.from = from;
  repeat_answer(chunk, query.key.node, query.round);
}

Status ShardClocks::restore(ShardChunk& chunk, const ChunkState& saved) {
  const std::uint64_t start = chunks_.job().view->start.value;
  chunk.state.gate = {};
  if (saved.clocks.size() != chunks_.job().view->nodes) {  // other nodes wrote it
    chunk.state.clocks.assign(chunks_.job().view->nodes, start);
  } else if (std::ranges::min(saved.clocks) < start) {
    return fail(ErrorCode::kStore, "chunk " + std::to_string(chunk.index.value) +
                                       " in the store lacks pushes of rounds that it is said to have; check the disk, "
                                       "then restore the store from a copy or remove it");
  }
  clocks_[chunk.position].slowest = std::ranges::min(chunk.state.clocks);
  chunks_.reach(progress(chunk));
  return {};
}

std::pair<Round, Round> ShardClocks::clock_range(NodeRank node) const {
  const auto chunks = std::as_const(chunks_).all();
  if (chunks.empty()) return {};
  std::uint64_t lowest = ~0ull, highest = 0;
  for (const ShardChunk& chunk : chunks) {
    lowest = std::min(lowest, chunk.state.clocks[node.value]);
    highest = std::max(highest, chunk.state.clocks[node.value]);
  }
  return {Round(lowest), Round(highest)};
}

}  // namespace tributary
