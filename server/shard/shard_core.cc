#include "server/shard/shard_core.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "common/base/assert.h"
#include "common/base/weight.h"
#include "server/shard/chunk_arrays.h"
#include "server/shard/shard_clocks.h"
#include "server/shard/shard_rounds.h"

namespace tributary {
namespace {

std::unique_ptr<RoundRule> rule_for(ShardChunks& chunks) {
  const ShardJob& job = chunks.job();
  TRIB_ASSERT(!job.plan().has_clocks() || (!job.recovers && !job.plan().has_gate() && !chunks.push().keeps_residual()));
  if (job.plan().has_clocks()) return std::make_unique<ShardClocks>(chunks);
  return std::make_unique<ShardRounds>(chunks);
}

}  // namespace

ShardCore::ShardCore(ShardJob job, BufferPool& pool, ShardOutput& output)
    : output_(output), chunks_(std::move(job), pool, output, stats_), rule_(rule_for(chunks_)) {}

// ---- Messages ----

void ShardCore::on_push(PeerId from, const Push& push, Payload frame) {
  ShardChunk* chunk = chunks_.find(from, push.key, push.round);
  if (!chunk) return;
  const Encoding& encoding = chunks_.push();
  const auto refuse = [&](ErrorCode code, std::string message) {
    chunks_.reject(from, push.key, push.round, code, std::move(message));
  };
  if (push.residual != ResidualUse::kNone && !encoding.keeps_residual()) {
    return refuse(ErrorCode::kConfigMismatch,
                  "push with a residual, but the job's push encoding " + encoding.name() + " keeps none");
  }
  const std::size_t frame_bytes = encoding.bytes(chunk->elements);
  const std::size_t residual_bytes = chunk->array_bytes();
  const std::size_t expected = push.residual == ResidualUse::kNone     ? frame_bytes
                               : push.residual == ResidualUse::kBehind ? residual_offset(frame_bytes) + residual_bytes
                                                                       : residual_bytes;
  if (push.encoding != job().plan().config.push.id) {
    return refuse(ErrorCode::kConfigMismatch, "push encoded as " + std::string(encoding_name(push.encoding)) +
                                                  ", but the job's push encoding is " + encoding.name());
  }
  if (frame.bytes().size() != expected) {
    return refuse(ErrorCode::kWrongLength, "push of chunk " + std::to_string(push.key.chunk.value) + " has " +
                                               std::to_string(frame.bytes().size()) + " bytes, but " +
                                               std::to_string(chunk->elements) + " " + encoding.name() + " values " +
                                               (push.residual == ResidualUse::kNone ? "" : "and their residual ") +
                                               "take " + std::to_string(expected));
  }
  if (push.weight > kMaxWeight) {
    return refuse(ErrorCode::kInvalidArgument,
                  "weight " + std::to_string(push.weight) + " exceeds the bound of " + std::to_string(kMaxWeight));
  }
  // All groups have one formula.
  const auto taken = [&](const StepSettings& settings) { return takes(*job().plan().optimizer, settings); };
  if (!push.settings.empty() && (push.settings.size() != chunk->groups || !std::ranges::all_of(push.settings, taken))) {
    return refuse(ErrorCode::kMalformed, "push of chunk " + std::to_string(push.key.chunk.value) +
                                             " says settings of " + std::to_string(push.settings.size()) +
                                             " steps, for " + std::to_string(chunk->groups) +
                                             " groups of tensors; the job's optimizer must have what is said, and take "
                                             "these values");
  }
  rule_->push(from, *chunk, push, std::move(frame));
  look_at(*chunk);
}

void ShardCore::on_init(PeerId from, const Init& init, std::span<const std::byte> values) {
  ShardChunk* chunk = chunks_.find(from, init.key, Round(0));
  if (!chunk) return;
  const auto refuse = [&](ErrorCode code, std::string message) {
    chunks_.reject(from, init.key, Round(0), code, std::move(message));
  };
  const std::string values_of = "initial values of chunk " + std::to_string(init.key.chunk.value);
  if (init.key.node != chunk->nodes.front()) {
    return refuse(ErrorCode::kTopology, values_of + " from node " + std::to_string(init.key.node.value) +
                                            "; only node " + std::to_string(chunk->nodes.front().value) +
                                            ", the first that holds it, sends them");
  }
  if (job().view->resumes) {
    return refuse(ErrorCode::kWrongRound, values_of + ", but the view resumes at round " +
                                              std::to_string(job().view->start.value) +
                                              " and has the values of that round; pull them");
  }
  const std::size_t bytes = chunk->array_bytes();
  if (values.size() != bytes) {
    return refuse(ErrorCode::kWrongLength,
                  values_of + " have " + std::to_string(values.size()) + " bytes instead of " + std::to_string(bytes));
  }
  if (chunk->initialised) {
    ++stats_.duplicates;
    return;
  }
  if (!chunks_.allocate(*chunk)) return;  // its sender gets no reply and sends it again
  ChunkState& state = chunk->state;
  std::memcpy(state.params.data(), values.data(), bytes);
  if (state.estimate) std::memcpy(state.estimate.data(), state.params.data(), bytes);
  for (int s = 0; s < job().plan().optimizer->slots(); ++s) {
    std::ranges::fill(state.slots[s].floats(), job().plan().optimizer->initial_state(s));
  }
  chunks_.initialise(*chunk);
  rule_->initialised(*chunk);
}

void ShardCore::on_pull(PeerId from, const Pull& pull) {
  if (ShardChunk* chunk = chunks_.find(from, pull.key, Round(0))) rule_->pull(from, *chunk, pull);
}

void ShardCore::on_query(PeerId from, const Query& query) {
  ShardChunk* chunk = chunks_.find(from, query.key, query.round);
  if (!chunk) return;
  rule_->query(from, *chunk, query);
  look_at(*chunk);  // it may have found a buffer for a round that had waited for one
}

void ShardCore::decide(const RoundDecision& decision) {
  rule_->decide(decision);
  for (ShardChunk& chunk : chunks_.all()) look_at(chunk);
}

// ---- State that comes from elsewhere ----

Status ShardCore::restore(ChunkIndex index, const ChunkState& saved) {
  ShardChunk* chunk = chunks_.find(index);
  if (!chunk || chunk->initialised) {
    return fail(ErrorCode::kStore, "chunk " + std::to_string(index.value) + " cannot be restored on server " +
                                       std::to_string(job().shard.value) + " lane " + std::to_string(job().lane.value) +
                                       (chunk ? ": it has its values already" : ": it does not belong there"));
  }
  const auto expected_slots = static_cast<std::size_t>(job().plan().optimizer->slots());
  const auto slots = static_cast<std::size_t>(std::ranges::count_if(saved.slots, &BufferRef::operator bool));
  const std::size_t bytes = chunk->array_bytes();
  const bool fits =
      saved.params && slots == expected_slots &&
      std::ranges::all_of(saved.arrays(), [&](const BufferRef* array) { return !*array || array->size() == bytes; }) &&
      std::ranges::all_of(saved.residuals, [&](const NodeResidual& r) { return r.bytes().size() == bytes; });
  if (!fits) {
    return fail(ErrorCode::kWrongLength, "chunk " + std::to_string(index.value) + " in the store has " +
                                             std::to_string(saved.params.size() / sizeof(float)) + " parameters and " +
                                             std::to_string(slots) + " state arrays, but the job needs " +
                                             std::to_string(chunk->elements) + " and " +
                                             std::to_string(expected_slots));
  }
  if (!chunks_.allocate(*chunk)) return tl::unexpected(chunks_.no_buffer(*chunk));
  const auto from = saved.arrays();
  for (std::size_t i = 0; BufferRef* const to : chunk->state.arrays()) {
    const BufferRef& values = *from[i] ? *from[i] : saved.params;  // an estimate that was not kept
    if (*to) std::memcpy(to->data(), values.data(), bytes);
    ++i;
  }
  static_cast<ChunkProgress&>(chunk->state) = saved;
  chunk->state.nodes = job().view->nodes;
  if (Status restored = rule_->restore(*chunk, saved); !restored) return restored;
  chunks_.initialise(*chunk);
  rule_->initialised(*chunk);
  return {};
}

Status ShardCore::reopen(ShardJob next) {
  const ShardJob& job = chunks_.job();
  TRIB_ASSERT(next.view->job == job.view->job && stats_.held_frames == 0);
  const auto no = [&](const std::string& why) -> Status {
    return fail(ErrorCode::kTopology, "the state that server " + std::to_string(job.shard.value) + " lane " +
                                          std::to_string(job.lane.value) + " kept of job " +
                                          std::to_string(job.view->job.value) + " cannot go on: " + why);
  };
  const bool same_chunks = next.view->layout->hash() == job.view->layout->hash() && next.shard == job.shard &&
                           next.lane == job.lane &&
                           std::ranges::equal(chunks_.all(), next.view->layout->chunks_owned_by(next.shard, next.lane),
                                              {}, &ShardChunk::index);
  if (!same_chunks) {
    return no("the model is laid out differently now");
  }
  if (!(next.plan().config.push == job.plan().config.push) || !(next.plan().config.pull == job.plan().config.pull))
    return no("its encodings have changed");
  if (next.recovers != job.recovers || next.plan().has_clocks()) return no("its mode has changed");
  if (!job.recovers) return no("it was not kept to go on from");
  if (!initialised()) return no("some of its chunks never got their initial values");
  chunks_.reopen(std::move(next));
  rule_->begin_view();
  return {};
}

// ---- Snapshots ----

void ShardCore::capture(ShardChunk& chunk, Round round) {
  chunk.captured = true;
  ChunkSnapshot snapshot{job().view->job, job().view->view, round, chunk.index, chunk.state};
  rule_->captured(chunk);
  output_.captured(std::move(snapshot));
  if (uncaptured_ > 0 && --uncaptured_ == 0) chunks_.name_snapshot({});
}

void ShardCore::look_at(ShardChunk& chunk) {
  if (chunks_.snapshot() && chunks_.captures(chunk, rule_->progress(chunk))) capture(chunk, *chunks_.snapshot());
  if (kept_round_ && rule_->complete()) {
    const Round round = *std::exchange(kept_round_, std::nullopt);
    for (ShardChunk& each : chunks_.all()) capture(each, round);
  }
}

bool ShardCore::snapshot_at(Round round) {
  if (!initialised() || round < rule_->next_snapshot()) return false;
  // A nearer one takes the place of one that no chunk has reached.
  if (chunks_.snapshot() && (round >= *chunks_.snapshot() || uncaptured_ < chunks())) return false;
  if (chunks() == 0) return true;
  if (chunks_.available() < chunks() * chunk_arrays(job()).snapshot()) return false;
  chunks_.name_snapshot(round);
  uncaptured_ = chunks();
  for (ShardChunk& chunk : chunks_.all()) chunk.captured = false;
  for (ShardChunk& chunk : chunks_.all()) look_at(chunk);
  return true;
}

bool ShardCore::stop(bool keep, Round round) {
  rule_->end_view();
  stats_.held_frames = stats_.held_bytes = stats_.withheld = 0;
  chunks_.name_snapshot({});
  kept_round_.reset();
  uncaptured_ = 0;
  if (!keep) return true;
  const auto stands = [&](const ShardChunk& chunk) { return rule_->stands_for(chunk, round); };
  if (!initialised() || !std::ranges::all_of(chunks_.all(), stands)) return false;
  if (!rule_->complete()) {
    kept_round_ = round;
    return true;
  }
  for (ShardChunk& chunk : chunks_.all()) capture(chunk, round);
  return true;
}

Version ShardCore::min_version() const {
  if (chunks() == 0) return max_version();
  Version lowest = rule_->progress(chunks_.all().front());
  for (const ShardChunk& chunk : chunks_.all()) lowest = std::min(lowest, rule_->progress(chunk));
  return lowest;
}

}  // namespace tributary
