#include "worker/node/client_core.h"

#include <algorithm>
#include <utility>

#include "common/base/assert.h"

namespace tributary {
namespace {

constexpr std::uint32_t kNotOurs = ~0u;
constexpr double kSmoothing = 0.125;  // of the acknowledgement time, as TCP's SRTT (RFC 6298)
constexpr std::uint64_t kSmoothedTimes = 8;

}  // namespace

ClientCore::ClientCore(ClientJob job, std::uint16_t connections, ClientOptions options, ClientOutput& output)
    : job_(std::move(job)),
      push_(job_.view->plan->push),
      pull_(job_.view->plan->pull),
      options_(options),
      output_(output),
      local_(job_.view->layout->chunks(), kNotOurs),
      window_({.unit_bytes = push_->bytes(job_.view->layout->chunk_elements()),
               .cap_bytes = options_.window_cap_bytes,
               .peers = connections,
               .over_link = options_.over_link}),
      smoothed_ns_(connections, 0.0),
      no_link_(connections, false),
      queued_(job_.chunks.size()) {
  TRIB_ASSERT(job_.chunks.size() == job_.connections.size());
  TRIB_ASSERT(job_.redo_after.empty() || job_.redo_after.size() == job_.chunks.size());
  chunks_.resize(job_.chunks.size());
  for (std::uint32_t i = 0; i < chunks_.size(); ++i) {
    Chunk& chunk = chunks_[i];
    chunk.index = job_.chunks[i];
    chunk.connection = job_.connections[i];
    TRIB_ASSERT(chunk.connection.value < connections);
    chunk.elements = job_.view->layout->chunk(chunk.index).elements;
    chunk.gives_values = job_.gives_values(chunk.index);
    chunk.phase = chunk.gives_values ? Phase::kWaitingForValues : Phase::kIdle;
    if (!job_.redo_after.empty() && job_.redo_after[i] < job_.start()) {
      chunk.redo = true;
      chunk.round = Round(job_.redo_after[i].value + 1);
    }
    local_[chunk.index.value] = i;
  }
}

ClientCore::Chunk* ClientCore::find(const ChunkKey& key) {
  const bool ours = key.job == job_.view->job && key.view == job_.view->view && key.node == job_.node &&
                    key.chunk.value < local_.size() && local_[key.chunk.value] != kNotOurs;
  if (!ours) {
    ++stats_.stale;
    return nullptr;
  }
  return &chunks_[local_[key.chunk.value]];
}

ClientCore::Chunk* ClientCore::hear(const ChunkKey& key, std::uint64_t now_ns) {
  Chunk* chunk = find(key);
  if (!chunk) return nullptr;
  ++stats_.heard;
  heard_ns_ = now_ns;
  return chunk;
}

ChunkKey ClientCore::key(const Chunk& chunk) const {
  return {job_.view->job, job_.view->view, job_.node, chunk.index};
}

void ClientCore::enqueue(Chunk& chunk) {
  chunk.phase = Phase::kQueued;
  queued_.add(place(chunk));
}

// Sends queued chunks while the window has room.
void ClientCore::pump(std::uint64_t now_ns) {
  while (!queued_.empty()) {
    Chunk& chunk = chunks_[queued_.first()];
    const std::uint64_t bytes = payload_bytes(chunk);
    if (!window_.allows(in_flight_, bytes)) return window_.held_back();
    dequeue(chunk);
    chunk.in_flight = bytes;
    in_flight_ += bytes;
    send(chunk, now_ns);
  }
}

// Returns the bytes that a pull's answer puts on the link. An answer that should be a header alone counts for a part of
// its values: that keeps copies and digests of a large model in steps, and values that come all the same within bounds.
std::uint64_t ClientCore::pull_bytes(const Chunk& chunk) const {
  constexpr std::uint64_t kPart = 16;
  const std::uint64_t bytes = pull_->is_delta() ? chunk.elements * sizeof(float) : pull_->bytes(chunk.elements);
  return job_.may_have_earlier && earlier_fits_ ? bytes / kPart : bytes;
}

std::uint64_t ClientCore::payload_bytes(const Chunk& chunk) const {
  const std::uint64_t values = chunk.elements * sizeof(float);
  if (leaving_) return values;
  if (chunk.redo) return push_->bytes(chunk.elements);
  if (!chunk.delivered) return pull_bytes(chunk);
  const std::uint64_t frame = push_->bytes(chunk.elements);
  return chunk.wants_residual ? residual_offset(frame) + values : frame;
}

void ClientCore::send(Chunk& chunk, std::uint64_t now_ns) {
  chunk.phase = Phase::kSent;
  chunk.sent_ns = now_ns;
  if (chunk.redo) {
    ++stats_.redone;
    Push push{key(chunk), chunk.round, 0, push_->id()};
    push.redo = true;
    return output_.send_push(chunk.connection, std::move(push));
  }
  if (!chunk.delivered) {
    if (chunk.gives_values) output_.send_init(chunk.connection, Init{key(chunk)});
    Pull pull{key(chunk), job_.start()};
    // Once: an answer to an earlier copy of this pull may be under way.
    if (job_.may_have_earlier && !chunk.has_earlier()) chunk.earlier = output_.have_earlier(chunk.index);
    pull.digest = chunk.earlier;
    output_.send_pull(chunk.connection, pull);
    return;
  }
  Push push{key(chunk), chunk.round, chunk.weight, push_->id()};
  if (leaving_) {
    push.round = Round(chunk.version.value);
    push.weight = 0;
    push.residual = ResidualUse::kAlone;
  } else {
    ++stats_.pushes;
    stats_.push_bytes += chunk.in_flight;
    if (chunk.wants_residual) push.residual = ResidualUse::kBehind;
    push.last = chunk.last;
  }
  output_.send_push(chunk.connection, std::move(push));
}

void ClientCore::acknowledge(Chunk& chunk, std::uint64_t now_ns) {
  TRIB_ASSERT(in_flight_ >= chunk.in_flight);
  in_flight_ -= chunk.in_flight;
  // A pull's answer may have waited for somebody's initial values, and a repeated push cannot tell which copy was
  // meant: neither says anything about the link.
  const bool tells = (chunk.delivered || chunk.redo) && !chunk.retransmitted;
  window_.on_acknowledged(chunk.in_flight, chunk.sent_ns, now_ns, tells && !no_link_[chunk.connection.value]);
  if (tells) {
    const auto elapsed = static_cast<double>(now_ns - chunk.sent_ns);
    double& smoothed = smoothed_ns_[chunk.connection.value];
    smoothed = smoothed == 0.0 ? elapsed : smoothed + kSmoothing * (elapsed - smoothed);
    if (metered(chunk)) pushed_.on_bytes(chunk.in_flight, now_ns);
  }
  chunk.in_flight = 0;
}

void ClientCore::set_held(Chunk& chunk, std::uint64_t bytes) {
  TRIB_ASSERT(held_ >= chunk.held);
  held_ += bytes - chunk.held;
  chunk.held = bytes;
  window_.set_held(held_);
}

void ClientCore::start(std::uint64_t now_ns) {
  for (Chunk& chunk : chunks_) {
    if (chunk.phase == Phase::kIdle) enqueue(chunk);
  }
  pump(now_ns);
}

void ClientCore::initial_values_ready(std::uint64_t now_ns) {
  for (Chunk& chunk : chunks_) {
    if (chunk.phase == Phase::kWaitingForValues) enqueue(chunk);
  }
  pump(now_ns);
}

void ClientCore::gradient_ready(ChunkIndex index, Round round, std::uint64_t weight, std::uint64_t now_ns, bool last) {
  TRIB_ASSERT(index.value < local_.size() && local_[index.value] != kNotOurs);
  Chunk& chunk = chunks_[local_[index.value]];
  TRIB_ASSERT(chunk.delivered && chunk.phase == Phase::kIdle && round.value == chunk.version.value + 1);
  chunk.round = round;
  chunk.weight = weight;
  chunk.last = last;
  chunk.retransmitted = false;
  enqueue(chunk);
  pump(now_ns);
}

void ClientCore::on_ack(ConnectionIndex, const Ack& ack, std::uint64_t now_ns) {
  Chunk* chunk = hear(ack.key, now_ns);
  if (!chunk) return;
  if (leaving_) {
    if (chunk->phase != Phase::kSent || !ack.residual_kept || ack.round.value != chunk->version.value) {
      ++stats_.stale;
      return;
    }
    acknowledge(*chunk, now_ns);
    return residual_kept(*chunk, now_ns);
  }
  const bool waits = chunk->phase == Phase::kSent || chunk->phase == Phase::kHeld;
  if (chunk->redo && ack.applied && ack.round == chunk->round && waits) return redo_applied(*chunk, now_ns);
  const bool open = (chunk->delivered || chunk->redo) && ack.round == chunk->round;
  if (open && chunk->phase == Phase::kSent) {
    const std::uint64_t bytes = chunk->in_flight;
    acknowledge(*chunk, now_ns);
    set_held(*chunk, bytes);
    chunk->phase = Phase::kHeld;
    chunk->sent_ns = now_ns;
    pump(now_ns);
  } else {
    ++stats_.stale;
  }
}

void ClientCore::residual_kept(Chunk& chunk, std::uint64_t now_ns) {
  chunk.phase = Phase::kKept;
  ++kept_chunks_;
  pump(now_ns);
}

void ClientCore::redo_applied(Chunk& chunk, std::uint64_t now_ns) {
  if (chunk.phase == Phase::kSent) acknowledge(chunk, now_ns);
  set_held(chunk, 0);
  chunk.retransmitted = false;
  chunk.redo = chunk.round.value < job_.start().value;
  chunk.round = chunk.redo ? chunk.round.next() : Round();
  enqueue(chunk);
  pump(now_ns);
}

void ClientCore::on_answer(ConnectionIndex, const Answer& answer, std::span<const std::byte> payload,
                           std::uint64_t now_ns) {
  Chunk* chunk = hear(answer.key, now_ns);
  if (!chunk) return;
  const bool open = chunk->phase == Phase::kQueued || chunk->phase == Phase::kSent || chunk->phase == Phase::kHeld;
  const std::uint64_t awaited = chunk->delivered ? chunk->round.value : job_.start().value;
  // An answer whose residual was lost is as good as lost: the pull is repeated.
  const bool lacks_residual = !chunk->delivered && answer.residual_sent && !chunk->has_residual;
  // Parameters of an earlier view count as the first ones only.
  const bool late = answer.same && chunk->delivered;
  if (!open || leaving_ || chunk->redo || answer.version.value != awaited || lacks_residual || late) {
    ++stats_.stale;
    return;
  }
  // A delta job's parameters come whole at first. Also later, if a pull was repeated needlessly and reached the server
  // after the next round: they are what the delta would have made.
  const bool whole = pull_->is_delta() && (!chunk->delivered || answer.encoding == EncodingId::kFp32);
  const Encoding& expected = whole ? encoding_for(EncodingId::kFp32) : *pull_;
  if (answer.same && (!chunk->has_earlier() || !payload.empty())) {
    return output_.refused(ErrorReply{answer.key, chunk->round, ErrorCode::kMalformed,
                                      "server answered chunk " + std::to_string(chunk->index.value) +
                                          " as if this node had its values, which did not say so"});
  }
  if (!answer.same && chunk->has_earlier() && !chunk->delivered) earlier_fits_ = false;
  if (answer.same) {
    stats_.bytes_had += chunk->elements * sizeof(float);
  } else if (answer.encoding != expected.id() || payload.size() != expected.bytes(chunk->elements)) {
    return output_.refused(ErrorReply{answer.key, chunk->round, ErrorCode::kWrongLength,
                                      "server answered chunk " + std::to_string(chunk->index.value) + " with " +
                                          std::to_string(payload.size()) + " bytes of " +
                                          std::string(encoding_name(answer.encoding)) + " instead of " +
                                          std::to_string(expected.bytes(chunk->elements)) + " of " + expected.name()});
  }
  if (chunk->phase == Phase::kQueued) dequeue(*chunk);
  if (chunk->phase == Phase::kSent) acknowledge(*chunk, now_ns);
  set_held(*chunk, 0);
  if (!chunk->delivered) ++delivered_chunks_;
  chunk->delivered = true;
  chunk->repeats = 0;
  chunk->version = answer.version;
  chunk->phase = Phase::kIdle;
  chunk->wants_residual = push_->keeps_residual() && answer.snapshot_round.value == answer.version.value + 1;
  ++stats_.answers;
  stats_.bytes_pulled += payload.size();
  if (metered(*chunk)) answered_.on_bytes(payload.size(), now_ns);
  output_.answered(answer, whole || pull_->id() == EncodingId::kFp32, payload);
  pump(now_ns);
}

void ClientCore::on_residual(ConnectionIndex, const Residual& residual, std::span<const std::byte> values,
                             std::uint64_t now_ns) {
  Chunk* chunk = hear(residual.key, now_ns);
  if (!chunk) return;
  if (chunk->delivered || chunk->has_residual || residual.version != job_.start()) {
    ++stats_.stale;
    return;
  }
  if (!push_->keeps_residual() || values.size() != chunk->elements * sizeof(float)) {
    return output_.refused(ErrorReply{residual.key, chunk->round, ErrorCode::kWrongLength,
                                      "server sent a residual of " + std::to_string(values.size()) +
                                          " bytes for chunk " + std::to_string(chunk->index.value) + ", which has " +
                                          std::to_string(chunk->elements) + " values and push encoding " +
                                          push_->name()});
  }
  chunk->has_residual = true;
  output_.residual_restored(chunk->index, values);
}

bool ClientCore::wants_residual(ChunkIndex chunk) const {
  TRIB_ASSERT(chunk.value < local_.size() && local_[chunk.value] != kNotOurs);
  return chunks_[local_[chunk.value]].wants_residual;
}

void ClientCore::keep_residuals(std::uint64_t now_ns) {
  TRIB_ASSERT(push_->keeps_residual() && started());
  if (leaving_) return;
  leaving_ = true;
  for (Chunk& chunk : chunks_) {
    if (chunk.phase == Phase::kQueued) dequeue(chunk);
    in_flight_ -= chunk.in_flight;
    chunk.in_flight = 0;
    set_held(chunk, 0);
    chunk.retransmitted = false;
    enqueue(chunk);
  }
  pump(now_ns);
}

void ClientCore::on_resend(ConnectionIndex, const Resend& resend, std::uint64_t now_ns) {
  Chunk* chunk = find(resend.key);
  if (!chunk) return;
  const bool open = (chunk->delivered || chunk->redo) && !leaving_ && resend.round == chunk->round &&
                    (chunk->phase == Phase::kSent || chunk->phase == Phase::kHeld);
  if (!open) {
    ++stats_.stale;
    return;
  }
  ++stats_.resends;
  chunk->retransmitted = true;
  if (chunk->phase == Phase::kSent) acknowledge(*chunk, now_ns);
  set_held(*chunk, 0);
  enqueue(*chunk);
  pump(now_ns);
}

void ClientCore::on_error(ConnectionIndex, const ErrorReply& error, std::uint64_t now_ns) {
  // Without a key: the server could not read a message of this job (whose connection it is), and would not read it the
  // next time. One that it had no memory for it may; and one of a kind that it does not know was no more than a try.
  const bool unread =
      error.key == ChunkKey{} && error.code != ErrorCode::kInternal && error.code != ErrorCode::kUnknownKind;
  Chunk* chunk = error.key.job == job_.view->job && error.key.view == job_.view->view ? find(error.key) : nullptr;
  // Its server has closed the view, with this node's residual, whose ack was lost, or without: it waits for none.
  const bool closed = error.code == ErrorCode::kUnknownJob || error.code == ErrorCode::kStaleView;
  if (leaving_ && closed && chunk && chunk->phase == Phase::kSent) {
    in_flight_ -= std::exchange(chunk->in_flight, 0);
    return residual_kept(*chunk, now_ns);
  }
  // About a question that was answered meanwhile, by a server that has closed the job since. Others may still answer.
  const bool answered =
      chunk && chunk->delivered && !chunk->redo && error.round.value != 0 && error.round.value <= chunk->version.value;
  if (leaving_ || answered) {
    ++stats_.stale;  // leaving: the view is over, and whoever it concerns has been told by the coordinator
  } else if (unread) {
    output_.refused({{}, error.round, error.code, "it could not read a message of this node: " + error.message});
  } else if (error.key.job == job_.view->job && error.key.view == job_.view->view) {
    output_.refused(error);
  } else {
    ++stats_.stale;
  }
}

void ClientCore::tick(std::uint64_t now_ns) {
  if (now_ns < next_scan_ns_) return;
  next_scan_ns_ = now_ns + options_.scan_interval_ns;
  for (Chunk& chunk : chunks_) {
    std::uint64_t patience = 0;
    const bool pushed = chunk.delivered || chunk.redo;
    if (chunk.phase == Phase::kSent && pushed && !leaving_) {
      patience = options_.acknowledge_timeout_ns +
                 kSmoothedTimes * static_cast<std::uint64_t>(smoothed_ns_[chunk.connection.value]);
    } else if (chunk.phase == Phase::kSent || chunk.phase == Phase::kHeld) {
      patience = options_.query_interval_ns * std::min(std::uint64_t{1} << chunk.repeats, options_.kMaxRepeatFactor);
    } else {
      continue;
    }
    if (now_ns - std::max(chunk.sent_ns, heard_ns_) < patience) continue;
    chunk.retransmitted = true;
    if (!pushed || leaving_) {
      if (std::uint64_t{1} << chunk.repeats < options_.kMaxRepeatFactor) ++chunk.repeats;
      send(chunk, now_ns);
    } else {
      chunk.sent_ns = now_ns;
      ++stats_.queries;
      output_.send_query(chunk.connection, Query{key(chunk), chunk.round, chunk.redo});
    }
  }
}

Version ClientCore::version(ChunkIndex chunk) const {
  TRIB_ASSERT(chunk.value < local_.size() && local_[chunk.value] != kNotOurs);
  return chunks_[local_[chunk.value]].version;
}

bool ClientCore::idle(ChunkIndex chunk) const {
  TRIB_ASSERT(chunk.value < local_.size() && local_[chunk.value] != kNotOurs);
  const Chunk& found = chunks_[local_[chunk.value]];
  return found.delivered && found.phase == Phase::kIdle;
}

}  // namespace tributary
