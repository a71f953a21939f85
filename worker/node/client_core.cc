#include "worker/node/client_core.h"

#include <algorithm>
#include <utility>

#include "common/base/assert.h"

namespace tributary {
namespace {

constexpr double kSmoothing = 0.125;  // of the acknowledgement time, as TCP's SRTT (RFC 6298)
constexpr std::uint64_t kSmoothedTimes = 8;

}  // namespace

ClientCore::ClientCore(ClientJob job, LaneChunks& chunks, ClientOptions options, ClientOutput& output)
    : job_(std::move(job)),
      push_(job_.view->plan->push),
      pull_(job_.view->plan->pull),
      options_(options),
      output_(output),
      chunks_(chunks),
      window_({.unit_bytes = push_->bytes(job_.view->layout->chunk_elements()),
               .cap_bytes = options_.window_cap_bytes,
               .peers = static_cast<std::uint16_t>(chunks.servers().size()),
               .over_link = options_.over_link}),
      smoothed_ns_(chunks.servers().size(), 0.0),
      no_link_(chunks.servers().size(), false) {
  TRIB_ASSERT(job_.redo_after.empty() || job_.redo_after.size() == chunks_.size());
  for (LaneChunk& chunk : chunks_) {
    LaneChunk::Flight& flight = chunk.flight;
    flight.gives_values = !job_.view->resumes && job_.view->first_node_with(chunk.index) == job_.node;
    flight.phase = flight.gives_values ? Phase::kWaitingForValues : Phase::kIdle;
    if (!job_.redo_after.empty() && job_.redo_after[chunk.place] < job_.start()) {
      flight.redo = true;
      flight.round = Round(job_.redo_after[chunk.place].value + 1);
    }
  }
}

LaneChunk* ClientCore::find(const ChunkKey& key) {
  const bool ours = key.job == job_.view->job && key.view == job_.view->view && key.node == job_.node;
  LaneChunk* const chunk = ours ? chunks_.find_whole(key.chunk) : nullptr;
  if (!chunk) ++stats_.stale;
  return chunk;
}

LaneChunk* ClientCore::hear(const ChunkKey& key, std::uint64_t now_ns) {
  LaneChunk* chunk = find(key);
  if (!chunk) return nullptr;
  ++stats_.heard;
  heard_ns_ = now_ns;
  return chunk;
}

ChunkKey ClientCore::key(const LaneChunk& chunk) const {
  return {job_.view->job, job_.view->view, job_.node, chunk.whole};
}

void ClientCore::enqueue(LaneChunk& chunk) {
  chunk.flight.phase = Phase::kQueued;
  queued_.push_back(chunk);
}

// Sends queued chunks while the window has room.
void ClientCore::pump(std::uint64_t now_ns) {
  while (!queued_.empty()) {
    LaneChunk& chunk = queued_.front();
    const std::uint64_t bytes = payload_bytes(chunk);
    if (!window_.allows(in_flight_, bytes)) return window_.held_back();
    dequeue(chunk);
    chunk.flight.in_flight = bytes;
    in_flight_ += bytes;
    send(chunk, now_ns);
  }
}

// Returns the bytes that a pull's answer puts on the link. An answer that should be a header alone counts for a part of
// its values: that keeps copies and digests of a large model in steps, and values that come all the same within bounds.
std::uint64_t ClientCore::pull_bytes(const LaneChunk& chunk) const {
  constexpr std::uint64_t kPart = 16;
  const std::uint64_t bytes =
      pull_->is_delta() ? chunk.range.elements * sizeof(float) : pull_->bytes(chunk.range.elements);
  return job_.may_have_earlier && earlier_fits_ ? bytes / kPart : bytes;
}

std::uint64_t ClientCore::payload_bytes(const LaneChunk& chunk) const {
  const std::uint64_t values = chunk.range.elements * sizeof(float);
  if (leaving_) return values;
  if (chunk.flight.redo) return push_->bytes(chunk.range.elements);
  if (!chunk.flight.delivered) return pull_bytes(chunk);
  const std::uint64_t frame = push_->bytes(chunk.range.elements);
  return chunk.flight.wants_residual ? residual_offset(frame) + values : frame;
}

void ClientCore::send(LaneChunk& chunk, std::uint64_t now_ns) {
  LaneChunk::Flight& flight = chunk.flight;
  flight.phase = Phase::kSent;
  flight.sent_ns = now_ns;
  if (flight.delivered || flight.redo) return send_push(chunk);
  if (flight.gives_values) output_.send(chunk, Init{key(chunk)}, output_.initial_values(chunk));
  // Once: an answer to an earlier copy of this pull may be under way.
  if (job_.may_have_earlier && !flight.has_earlier()) flight.earlier = output_.have_earlier(chunk);
  Pull pull{key(chunk), job_.start()};
  pull.digest = flight.earlier;
  output_.send(chunk, pull, {});
}

void ClientCore::send_push(const LaneChunk& chunk) {
  const LaneChunk::Flight& flight = chunk.flight;
  DataMessage message = Push{key(chunk), flight.round, chunk.gradient.weight, push_->id()};
  Push& push = std::get<Push>(message);
  SaidSettings said = chunk.gradient.settings;
  std::span<const std::byte> payload = chunk.gradient.frame;
  if (flight.redo) {
    ++stats_.redone;
    const std::optional<RedoRing::Frame> kept = output_.kept(chunk, flight.round);
    if (!kept) return;
    push.redo = true;
    push.weight = kept->weight;
    push.gate = kept->gate;
    said = kept->settings;
    payload = kept->bytes;
  } else if (leaving_) {
    push.round = Round(flight.version.value);
    push.weight = 0;
    push.residual = ResidualUse::kAlone;
    said = {};
    payload = output_.residual(chunk);
  } else {
    ++stats_.pushes;
    stats_.push_bytes += flight.in_flight;
    if (flight.wants_residual) push.residual = ResidualUse::kBehind;
    push.last = flight.last;
  }
  push.settings.assign(said.begin(), said.end());
  output_.send(chunk, message, payload);
}

void ClientCore::acknowledge(LaneChunk& chunk, std::uint64_t now_ns) {
  LaneChunk::Flight& flight = chunk.flight;
  TRIB_ASSERT(in_flight_ >= flight.in_flight);
  in_flight_ -= flight.in_flight;
  // A pull's answer may have waited for somebody's initial values, and a repeated push cannot tell which copy was
  // meant: neither says anything about the link.
  const bool tells = (flight.delivered || flight.redo) && !flight.retransmitted;
  window_.on_acknowledged(flight.in_flight, flight.sent_ns, now_ns, tells && !no_link_[chunk.connection.value]);
  if (tells) {
    const auto elapsed = static_cast<double>(now_ns - flight.sent_ns);
    double& smoothed = smoothed_ns_[chunk.connection.value];
    smoothed = smoothed == 0.0 ? elapsed : smoothed + kSmoothing * (elapsed - smoothed);
    if (metered(chunk)) pushed_.on_bytes(flight.in_flight, now_ns);
  }
  flight.in_flight = 0;
}

void ClientCore::set_held(LaneChunk& chunk, std::uint64_t bytes) {
  TRIB_ASSERT(held_ >= chunk.flight.held);
  held_ += bytes - chunk.flight.held;
  chunk.flight.held = bytes;
  window_.set_held(held_);
}

void ClientCore::start(std::uint64_t now_ns) {
  for (LaneChunk& chunk : chunks_) {
    if (chunk.flight.phase == Phase::kIdle) enqueue(chunk);
  }
  pump(now_ns);
}

void ClientCore::initial_values_ready(std::uint64_t now_ns) {
  for (LaneChunk& chunk : chunks_) {
    if (chunk.flight.phase == Phase::kWaitingForValues) enqueue(chunk);
  }
  pump(now_ns);
}

void ClientCore::gradient_ready(LaneChunk& chunk, std::uint64_t now_ns, bool last) {
  if (leaving_) return;  // devices were still at it when the view ended: the round will not be completed
  LaneChunk::Flight& flight = chunk.flight;
  TRIB_ASSERT(flight.idle() && chunk.gradient.round.value == flight.version.value + 1);
  flight.round = chunk.gradient.round;
  flight.last = last;
  flight.retransmitted = false;
  enqueue(chunk);
  pump(now_ns);
}

void ClientCore::on_ack(const Ack& ack, std::uint64_t now_ns) {
  LaneChunk* chunk = hear(ack.key, now_ns);
  if (!chunk) return;
  LaneChunk::Flight& flight = chunk->flight;
  if (leaving_) {
    if (flight.phase != Phase::kSent || !ack.residual_kept || ack.round.value != flight.version.value) {
      ++stats_.stale;
      return;
    }
    acknowledge(*chunk, now_ns);
    return residual_kept(*chunk, now_ns);
  }
  const bool waits = flight.phase == Phase::kSent || flight.phase == Phase::kHeld;
  if (flight.redo && ack.applied && ack.round == flight.round && waits) return redo_applied(*chunk, now_ns);
  const bool open = (flight.delivered || flight.redo) && ack.round == flight.round;
  if (open && flight.phase == Phase::kSent) {
    const std::uint64_t bytes = flight.in_flight;
    acknowledge(*chunk, now_ns);
    set_held(*chunk, bytes);
    flight.phase = Phase::kHeld;
    flight.sent_ns = now_ns;
    pump(now_ns);
  } else {
    ++stats_.stale;
  }
}

void ClientCore::residual_kept(LaneChunk& chunk, std::uint64_t now_ns) {
  chunk.flight.phase = Phase::kKept;
  ++kept_chunks_;
  pump(now_ns);
}

void ClientCore::redo_applied(LaneChunk& chunk, std::uint64_t now_ns) {
  LaneChunk::Flight& flight = chunk.flight;
  if (flight.phase == Phase::kSent) acknowledge(chunk, now_ns);
  set_held(chunk, 0);
  flight.retransmitted = false;
  flight.redo = flight.round.value < job_.start().value;
  flight.round = flight.redo ? flight.round.next() : Round();
  enqueue(chunk);
  pump(now_ns);
}

void ClientCore::on_answer(const Answer& answer, std::span<const std::byte> payload, std::uint64_t now_ns) {
  LaneChunk* chunk = hear(answer.key, now_ns);
  if (!chunk) return;
  LaneChunk::Flight& flight = chunk->flight;
  const bool open = flight.phase == Phase::kQueued || flight.phase == Phase::kSent || flight.phase == Phase::kHeld;
  const std::uint64_t awaited = flight.delivered ? flight.round.value : job_.start().value;
  // An answer whose residual was lost is as good as lost: the pull is repeated.
  const bool lacks_residual = !flight.delivered && answer.residual_sent && !flight.has_residual;
  // Parameters of an earlier view count as the first ones only.
  const bool late = answer.same && flight.delivered;
  if (!open || leaving_ || flight.redo || answer.version.value != awaited || lacks_residual || late) {
    ++stats_.stale;
    return;
  }
  // A delta job's parameters come whole at first. Also later, if a pull was repeated needlessly and reached the server
  // after the next round: they are what the delta would have made.
  const bool whole = pull_->is_delta() && (!flight.delivered || answer.encoding == EncodingId::kFp32);
  const Encoding& expected = whole ? encoding_for(EncodingId::kFp32) : *pull_;
  if (answer.same && (!flight.has_earlier() || !payload.empty())) {
    return output_.refused(ErrorReply{answer.key, flight.round, ErrorCode::kMalformed,
                                      "server answered chunk " + std::to_string(chunk->whole.value) +
                                          " as if this node had its values, which did not say so"});
  }
  if (!answer.same && flight.has_earlier() && !flight.delivered) earlier_fits_ = false;
  if (answer.same) {
    stats_.bytes_had += chunk->range.elements * sizeof(float);
  } else if (answer.encoding != expected.id() || payload.size() != expected.bytes(chunk->range.elements)) {
    return output_.refused(ErrorReply{
        answer.key, flight.round, ErrorCode::kWrongLength,
        "server answered chunk " + std::to_string(chunk->whole.value) + " with " + std::to_string(payload.size()) +
            " bytes of " + std::string(encoding_name(answer.encoding)) + " instead of " +
            std::to_string(expected.bytes(chunk->range.elements)) + " of " + expected.name()});
  }
  if (flight.phase == Phase::kQueued) dequeue(*chunk);
  if (flight.phase == Phase::kSent) acknowledge(*chunk, now_ns);
  set_held(*chunk, 0);
  if (!flight.delivered) ++delivered_chunks_;
  flight.delivered = true;
  flight.repeats = 0;
  flight.version = answer.version;
  flight.phase = Phase::kIdle;
  flight.wants_residual = push_->keeps_residual() && answer.snapshot_round.value == answer.version.value + 1;
  ++stats_.answers;
  stats_.bytes_pulled += payload.size();
  if (metered(*chunk)) answered_.on_bytes(payload.size(), now_ns);
  output_.answered(*chunk, answer, whole || pull_->id() == EncodingId::kFp32, payload);
  pump(now_ns);
}

void ClientCore::on_residual(const Residual& residual, std::span<const std::byte> values, std::uint64_t now_ns) {
  LaneChunk* chunk = hear(residual.key, now_ns);
  if (!chunk) return;
  if (chunk->flight.delivered || chunk->flight.has_residual || residual.version != job_.start()) {
    ++stats_.stale;
    return;
  }
  if (!push_->keeps_residual() || values.size() != chunk->range.elements * sizeof(float)) {
    return output_.refused(ErrorReply{residual.key, chunk->flight.round, ErrorCode::kWrongLength,
                                      "server sent a residual of " + std::to_string(values.size()) +
                                          " bytes for chunk " + std::to_string(chunk->whole.value) + ", which has " +
                                          std::to_string(chunk->range.elements) + " values and push encoding " +
                                          push_->name()});
  }
  chunk->flight.has_residual = true;
  output_.residual_restored(*chunk, values);
}

void ClientCore::keep_residuals(std::uint64_t now_ns) {
  TRIB_ASSERT(push_->keeps_residual() && started());
  if (leaving_) return;
  leaving_ = true;
  for (LaneChunk& chunk : chunks_) {
    if (chunk.flight.phase == Phase::kQueued) dequeue(chunk);
    in_flight_ -= chunk.flight.in_flight;
    chunk.flight.in_flight = 0;
    set_held(chunk, 0);
    chunk.flight.retransmitted = false;
    enqueue(chunk);
  }
  pump(now_ns);
}

void ClientCore::on_resend(const Resend& resend, std::uint64_t now_ns) {
  LaneChunk* chunk = find(resend.key);
  if (!chunk) return;
  LaneChunk::Flight& flight = chunk->flight;
  const bool open = (flight.delivered || flight.redo) && !leaving_ && resend.round == flight.round &&
                    (flight.phase == Phase::kSent || flight.phase == Phase::kHeld);
  if (!open) {
    ++stats_.stale;
    return;
  }
  ++stats_.resends;
  flight.retransmitted = true;
  if (flight.phase == Phase::kSent) acknowledge(*chunk, now_ns);
  set_held(*chunk, 0);
  enqueue(*chunk);
  pump(now_ns);
}

void ClientCore::on_error(const ErrorReply& error, std::uint64_t now_ns) {
  // Without a key: the server could not read a message of this job (whose connection it is), and would not read it the
  // next time. One that it had no memory for it may; and one of a kind that it does not know was no more than a try.
  const bool unread =
      error.key == ChunkKey{} && error.code != ErrorCode::kInternal && error.code != ErrorCode::kUnknownKind;
  LaneChunk* chunk = error.key.job == job_.view->job && error.key.view == job_.view->view ? find(error.key) : nullptr;
  // Its server has closed the view, with this node's residual, whose ack was lost, or without: it waits for none.
  const bool closed = error.code == ErrorCode::kUnknownJob || error.code == ErrorCode::kStaleView;
  if (leaving_ && closed && chunk && chunk->flight.phase == Phase::kSent) {
    in_flight_ -= std::exchange(chunk->flight.in_flight, 0);
    return residual_kept(*chunk, now_ns);
  }
  // About a question that was answered meanwhile, by a server that has closed the job since. Others may still answer.
  const bool answered = chunk && chunk->flight.delivered && !chunk->flight.redo && error.round.value != 0 &&
                        error.round.value <= chunk->flight.version.value;
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
  for (LaneChunk& chunk : chunks_) {
    LaneChunk::Flight& flight = chunk.flight;
    std::uint64_t patience = 0;
    const bool pushed = flight.delivered || flight.redo;
    if (flight.phase == Phase::kSent && pushed && !leaving_) {
      patience = options_.acknowledge_timeout_ns +
                 kSmoothedTimes * static_cast<std::uint64_t>(smoothed_ns_[chunk.connection.value]);
    } else if (flight.phase == Phase::kSent || flight.phase == Phase::kHeld) {
      patience = options_.query_interval_ns * std::min(std::uint64_t{1} << flight.repeats, options_.kMaxRepeatFactor);
    } else {
      continue;
    }
    if (now_ns - std::max(flight.sent_ns, heard_ns_) < patience) continue;
    flight.retransmitted = true;
    if (!pushed || leaving_) {
      if (std::uint64_t{1} << flight.repeats < options_.kMaxRepeatFactor) ++flight.repeats;
      send(chunk, now_ns);
    } else {
      flight.sent_ns = now_ns;
      ++stats_.queries;
      output_.send(chunk, Query{key(chunk), flight.round, flight.redo}, {});
    }
  }
}

}  // namespace tributary
