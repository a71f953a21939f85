#include "server/shard/shard_rounds.h"

#include <algorithm>
#include <array>
#include <new>
#include <string>
#include <utility>

#include "kernels/tree_sum.h"

namespace tributary {
namespace {

std::string in_words(const Push& push) {
  return "push of chunk " + std::to_string(push.key.chunk.value) + " for round " + std::to_string(push.round.value);
}

std::string in_words(SaidSettings said) {
  std::string words;
  for (const StepSettings& settings : said) words += (words.empty() ? "" : "; ") + settings.in_words();
  return words.empty() ? StepSettings{}.in_words() : words;
}

}  // namespace

ShardRounds::ShardRounds(ShardChunks& chunks) : chunks_(chunks), digests_(chunks), pulls_(chunks.all().size()) {
  if (chunks_.push().keeps_residual()) residuals_.emplace(chunks_);
  begin_view();
}

void ShardRounds::begin_view() {
  const ShardJob& job = chunks_.job();
  if (job.plan().has_gate() && !gate_) gate_.emplace(chunks_);
  if (!job.plan().has_gate()) gate_.reset();
  if (residuals_) residuals_->begin_view();
  digests_.begin_view();
  for (ShardChunk& chunk : chunks_.all()) chunk.round.pushes.resize(job.view->nodes);
  for (auto& waiting : pulls_) waiting.resize(job.view->nodes);
}

void ShardRounds::end_view() {
  for (ShardChunk& chunk : chunks_.all()) {
    for (Contribution& push : chunk.round.pushes) {
      push.frame.reset();
      push.present = false;
      push.summed = 0;
    }
    chunk.round.arrived = 0;
  }
  for (auto& waiting : pulls_) std::ranges::fill(waiting, WaitingPull{});
  if (gate_) gate_->end_view();
}

void ShardRounds::push(PeerId from, ShardChunk& chunk, const Push& push, Payload&& frame) {
  const Version version = chunk.state.version;
  if (push.residual == ResidualUse::kAlone) return take_residual(from, chunk, push, std::move(frame));
  if (refuse(from, chunk, push)) return;
  if (push.round.value <= version.value) {
    ++chunks_.stats().duplicates;
    if (push.redo) return chunks_.output().send(from, Ack{push.key, push.round, false, true}, {});
    // Older than the last round: its sender has long had that answer; a late copy from the network.
    if (push.round.value == version.value) send_answer(from, chunk, push.key.node);
    return;
  }
  OpenRound& round = chunk.round;
  Contribution& mine = round.pushes[push.key.node.value];
  mine.from = from;  // a resend after a reconnection comes from another connection: answer to the newest
  if (mine.present) {
    ++chunks_.stats().duplicates;
    return push_held(from, chunk, push.key, push.round);
  }
  if (!chunks_.sound(from, chunk, push, frame)) return;
  const std::size_t bytes = frame.bytes().size();
  mine.settings = push.settings;  // which may throw
  mine.present = true;
  mine.summed = 1;
  mine.redo = push.redo;
  mine.gate = push.gate;
  mine.weight = push.weight;
  mine.frame = std::move(frame);
  ++chunks_.stats().pushes;
  chunks_.stats().push_bytes += bytes;
  chunks_.hold(bytes);
  ++round.arrived;
  if (!all_there(chunk)) add_siblings(chunk, push.key.node);
  push_held(from, chunk, push.key, push.round);
}

// So many frames that are a subtree of the sum become one, in the place of the first, before the round is complete:
// nodes that wait for a late one do not each cost a frame. Only values in memory that nobody else reads can be added so.
void ShardRounds::add_siblings(ShardChunk& chunk, NodeRank newest) {
  OpenRound& round = chunk.round;
  const auto at = static_cast<std::size_t>(std::ranges::lower_bound(chunk.nodes, newest) - chunk.nodes.begin());
  for (std::size_t each = 1;; each *= kSiblings) {  // nodes in each of them
    const std::size_t together = each * kSiblings, first = at / together * together;
    if (first + together > chunk.nodes.size()) return;
    std::array<Contribution*, kSiblings> siblings;
    std::array<const float*, kSiblings> values;
    for (std::size_t k = 0; k < kSiblings; ++k) {
      siblings[k] = &round.pushes[chunk.nodes[first + k * each].value];
      if (siblings[k]->summed != each) return;
      values[k] = chunks_.push().as_fp32(siblings[k]->frame.bytes().data());
      if (!values[k]) return;
    }
    const std::span<std::byte> place = siblings[0]->frame.own_bytes();
    if (place.empty()) return;
    kernels::tree_sum(values, chunk.elements, reinterpret_cast<float*>(place.data()));
    siblings[0]->summed = static_cast<std::uint32_t>(together);
    for (std::size_t k = 1; k < kSiblings; ++k) {
      chunks_.let_go(siblings[k]->frame.bytes().size());
      siblings[k]->frame.reset();
      siblings[k]->summed = 0;
    }
  }
}

// A push that contradicts what its author was told; false: it does not.
bool ShardRounds::refuse(PeerId from, const ShardChunk& chunk, const Push& push) {
  const std::vector<Contribution>& pushes = chunk.round.pushes;
  const auto no = [&](ErrorCode code, const std::string& why) {
    chunks_.reject(from, push.key, push.round, code, in_words(push) + why);
    return true;
  };
  if (residuals_ && push.residual == ResidualUse::kNone && chunks_.snapshot() == push.round) {
    return no(ErrorCode::kMalformed,
              " lacks the residual that the last answer asked for; worker and server must be of the same release");
  }
  if (!chunk.initialised || push.round.value > chunk.state.version.value + 1) {
    const std::string state =
        chunk.initialised ? "at version " + std::to_string(chunk.state.version.value) : "not initialised";
    return no(ErrorCode::kWrongRound, ", which is " + state + "; pull first");
  }
  if (push.redo && gate_ && push.round.value > chunk.state.version.value && !push.gate.known()) {
    return no(ErrorCode::kMalformed,
              " once more, without what was decided about it; worker and server must be of the same release");
  }
  if (push.round.value != chunk.state.version.value + 1) return false;
  for (const NodeRank node : chunk.nodes) {
    const Contribution& other = pushes[node.value];
    if (!other.present || node == push.key.node || std::ranges::equal(other.settings, push.settings)) continue;
    return no(ErrorCode::kConfigMismatch, ": node " + std::to_string(push.key.node.value) + "'s " +
                                              in_words(push.settings) + " differs from node " +
                                              std::to_string(node.value) + "'s " + in_words(other.settings) +
                                              "; all ranks must set the same values in a round, by figures that they " +
                                              "have alike (tributary_gather(), in PyTorch trib.all_reduce())");
  }
  const bool last = !pushes[push.key.node.value].present && chunk.round.arrived + 1 == chunk.nodes.size();
  if (!last || chunk.copies == 1) return false;
  if (const std::uint64_t samples = weight(chunk) + push.weight; samples % chunk.copies != 0) {
    return no(ErrorCode::kConfigMismatch,
              ": the ranks that hold tensor '" + chunks_.job().view->tensor_in(chunk.index).name + "' count " +
                  std::to_string(samples) + " samples, but " + std::to_string(chunk.copies) +
                  " of them share each replica and must count the same; all ranks of a replica must say one weight");
  }
  return false;
}

std::uint64_t ShardRounds::weight(const ShardChunk& chunk) const {
  std::uint64_t sum = 0;
  for (const Contribution& push : chunk.round.pushes) sum += push.present ? push.weight : 0;
  return sum;
}

// A node has left after this round. Its residual belongs to the state that a stop keeps.
void ShardRounds::take_residual(PeerId from, ShardChunk& chunk, const Push& push, Payload values) {
  if (!chunk.initialised || push.round.value != chunk.state.version.value) {
    return chunks_.reject(from, push.key, push.round, ErrorCode::kWrongRound,
                          "residual of chunk " + std::to_string(push.key.chunk.value) + " after round " +
                              std::to_string(push.round.value) + ", but the chunk is at version " +
                              std::to_string(chunk.state.version.value));
  }
  residuals_->hold(chunk, push.key.node, std::move(values));
  chunks_.output().send(from, Ack{push.key, push.round, true}, {});
}

// After a push that is held. The sender of the last one missing gets an ack like all others, although its answer
// follows at once: an answer is large and queues behind the other nodes', so that acknowledgements by answers alone
// would slow down just the node that is last, and it would stay last (docs/data-path.md).
void ShardRounds::push_held(PeerId from, ShardChunk& chunk, const ChunkKey& key, Round round) {
  const bool alone = chunk.nodes.size() == 1;
  if (!alone) chunks_.output().send(from, Ack{key, round}, {});
  const bool done = all_there(chunk) && complete_round(chunk);
  if (alone && !done) chunks_.output().send(from, Ack{key, round}, {});
}

// False, and the round is as it was, if the pool has no buffer for the new state, or if the gate has not opened.
bool ShardRounds::complete_round(ShardChunk& chunk) {
  OpenRound& round = chunk.round;
  frames_.clear();
  for (const NodeRank node : chunk.nodes) {
    const Contribution& push = round.pushes[node.value];
    if (push.summed == 0) continue;
    frames_.push_back({push.frame.bytes().data(), push.weight, push.summed});
  }
  ShardStep step{frames_, weight(chunk) / chunk.copies, chunk.state.step + 1};
  step.settings = round.pushes[chunk.nodes.front().value].settings;
  std::optional<GateDecision> decision;
  if (gate_ && !(decision = gate_->pass(chunk, step))) return false;
  // Without samples it changes nothing but the version.
  if (!(step.weight == 0 ? chunks_.leave(chunk) : chunks_.step(chunk, step))) return false;
  if (gate_) gate_->applied(chunk, *decision);
  finish(chunk);
  return true;
}

// The open round has been applied, or changes nothing.
void ShardRounds::finish(ShardChunk& chunk) {
  OpenRound& round = chunk.round;
  chunk.state.version = chunk.state.version.next();
  chunks_.reach(chunk.state.version);
  round.arrived = 0;
  if (residuals_) residuals_->drop(chunk);  // of an older version
  const bool captures = residuals_ && chunks_.captures(chunk, chunk.state.version);
  for (const NodeRank node : chunk.nodes) {
    Contribution& push = round.pushes[node.value];
    chunks_.let_go(push.frame.bytes().size());
    if (captures) {
      push.frame.keep_last(chunk.array_bytes());
      residuals_->hold(chunk, node, std::move(push.frame));
    }
    push.frame.reset();
    push.present = false;
    push.summed = 0;
    if (push.redo) {
      const Round done(chunk.state.version.value);
      chunks_.output().send(push.from, Ack{chunks_.key(chunk, node), done, false, true}, {});
    } else {
      send_answer(push.from, chunk, node);
    }
  }
  answer_pulls(chunk);
}

void ShardRounds::answer_pulls(ShardChunk& chunk) {
  auto& waiting = pulls_[chunk.position];
  for (std::uint32_t node = 0; node < waiting.size(); ++node) {
    if (waiting[node].from == PeerId{} || waiting[node].pull.version > chunk.state.version) continue;
    const WaitingPull answered = std::exchange(waiting[node], {});
    send_answer(answered.from, chunk, NodeRank(node), &answered.pull);
  }
}

void ShardRounds::send_answer(PeerId to, const ShardChunk& chunk, NodeRank node, const Pull* whole) {
  Answer header{chunks_.key(chunk, node), chunk.state.version, chunks_.pull().id()};
  const BufferRef* payload = &chunk.answer();
  if (whole && chunk.state.estimate) {
    header.encoding = EncodingId::kFp32;
    payload = &chunk.state.estimate;
  }
  header.slowest = Round(chunk.state.version.value);
  header.gate = chunk.state.gate;
  if (residuals_ && chunks_.snapshot()) header.snapshot_round = *chunks_.snapshot();
  if (!whole) return chunks_.answer(to, header, *payload);
  if (residuals_) header.residual_sent = residuals_->give_back(to, chunk, node);
  digests_.answer(to, chunk, *whole, header, *payload);
}

void ShardRounds::pull(PeerId from, ShardChunk& chunk, const Pull& pull) {
  if (!chunk.initialised || pull.version > chunk.state.version) {
    pulls_[chunk.position][pull.key.node.value] = {from, pull};
  } else if (pull.version < chunk.state.version && chunk.previous) {
    answer_previous(chunk, from, pull);
  } else {
    // At a later version only if the answer was lost and others went on: what it is now is as good for who asks.
    send_answer(from, chunk, pull.key.node, &pull);
  }
}

// A node lost what it had, or is a round behind the others.
void ShardRounds::answer_previous(ShardChunk& chunk, PeerId to, const Pull& pull) {
  const Encoding& encoding = chunks_.pull();
  // To a node that lost what it had a change says nothing.
  const EncodingId id = encoding.is_delta() ? EncodingId::kFp32 : encoding.id();
  Answer header{chunks_.key(chunk, pull.key.node), Version(chunk.state.version.value - 1), id};
  if (gate_) header.gate = gate_->before(chunk);
  if (id != EncodingId::kFp32 && !chunk.previous_encoded) {  // one for all nodes: their readers may keep it for long
    chunk.previous_encoded = chunks_.acquire(encoding.bytes(chunk.elements));
    if (!chunk.previous_encoded) return;  // who asks asks again
    encoding.encode_update(chunk.previous.floats().data(), chunk.elements, 0, chunk.elements, nullptr,
                           chunk.previous_encoded.data());
  }
  digests_.answer(to, chunk, pull, header, id == EncodingId::kFp32 ? chunk.previous : chunk.previous_encoded);
}

void ShardRounds::query(PeerId from, ShardChunk& chunk, const Query& query) {
  if (chunk.initialised && query.round.value <= chunk.state.version.value) {
    if (query.redo) return chunks_.output().send(from, Ack{query.key, query.round, false, true}, {});
    return send_answer(from, chunk, query.key.node);
  }
  Contribution& mine = chunk.round.pushes[query.key.node.value];
  if (mine.present && query.round.value == chunk.state.version.value + 1) {
    mine.from = from;
    push_held(from, chunk, query.key, query.round);
  } else {
    chunks_.output().send(from, Resend{query.key, query.round}, {});
  }
}

void ShardRounds::decide(const RoundDecision& m) {
  if (!gate_ || !gate_->decide(m)) return;
  for (ShardChunk& chunk : chunks_.all()) {
    const bool open = chunk.state.version.value + 1 == m.round.value;
    if (!open || !all_there(chunk)) continue;
    try {
      complete_round(chunk);
    } catch (const std::bad_alloc&) {
      ++chunks_.stats().starved;  // the pushes' authors ask again
    }
  }
}

std::optional<RoundFacts> ShardRounds::decided() const {
  return gate_ ? gate_->decided() : std::nullopt;
}

Status ShardRounds::restore(ShardChunk& chunk, const ChunkState& saved) {
  chunk.state.clocks.clear();
  if (gate_) {
    gate_->restored(chunk);
  } else {
    chunk.state.gate = {};
  }
  if (residuals_ && !residuals_->restore(chunk, saved)) return tl::unexpected(chunks_.no_buffer(chunk));
  chunks_.reach(chunk.state.version);
  return {};
}

Round ShardRounds::next_snapshot() const {
  // The answers before that round's pushes must name it.
  return Round(chunks_.furthest().value + (residuals_ ? 2 : 0));
}

void ShardRounds::captured(ShardChunk& chunk) {
  if (residuals_) residuals_->drop(chunk);
}

}  // namespace tributary
