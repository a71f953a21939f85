#include "worker/node/lane_job.h"

#include <algorithm>

#include "common/math/encoding.h"
#include "worker/device/device_reducer.h"
#include "worker/node/local_endpoint.h"

namespace tributary {
namespace {

ClientJob client_job(const NodeJob& job, const LaneChunks& chunks, bool may_have_earlier) {
  const NodeJobSpec& spec = job.spec();
  ClientJob client{spec.view, spec.node, {}, may_have_earlier};
  if (spec.redo && !spec.redo_after.empty()) {
    for (const LaneChunk& chunk : chunks)
      client.redo_after.push_back(spec.redo_after[chunks.servers()[chunk.connection.value].shard.value]);
  }
  return client;
}

// Does any of the chunks go to another machine?
bool over_link(const NodeJob& job, const LaneChunks& chunks) {
  const auto& endpoints = job.spec().endpoints;
  return !std::ranges::all_of(chunks.servers(), [&](const ChunkOwner& owner) {
    return owner.shard.value >= endpoints.size() || owner.lane.value >= endpoints[owner.shard.value].size() ||
           is_local_endpoint(endpoints[owner.shard.value][owner.lane.value]);
  });
}

std::unique_ptr<NodeReducer> host_reducer(const NodeJob& job, const LaneChunks& chunks, ReduceListener& listener) {
  const NodeJobSpec& spec = job.spec();
  std::vector<const float*> gradients;
  for (std::uint32_t rank = 0; rank < spec.ranks; ++rank) gradients.push_back(job.gradients(rank));
  return std::make_unique<HostReducer>(chunks, std::move(gradients), job.parameters(), job.plan().config.push,
                                       job.plan().config.pull, listener, spec.redo, spec.model_ranks());
}

}  // namespace

Result<std::unique_ptr<WorkerLaneJob>> WorkerLaneJob::open(std::shared_ptr<NodeJob> job,
                                                           const WorkerLaneOptions& options, WorkerLaneOutput& output) {
  std::unique_ptr<WorkerLaneJob> self;
  try {
    self.reset(new WorkerLaneJob(job, options, output));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kLimit, "no memory left for the frames of job '" + job->view().name() +
                                       "'; free memory, raise the limit on open files, or use a smaller model");
  }
  if (const auto& devices = job->spec().devices) {
    auto reducer = DeviceReducer::create(devices, self->chunks_, static_cast<ReduceListener&>(*self), job->spec().redo);
    if (!reducer) return tl::unexpected(reducer.error());
    self->reducer_ = std::move(*reducer);
  }
  return self;
}

WorkerLaneJob::WorkerLaneJob(std::shared_ptr<NodeJob> job, const WorkerLaneOptions& options, WorkerLaneOutput& output)
    : job_(std::move(job)),
      counts_(job_->lane_stats(options.index)),
      output_(output),
      chunks_(job_->view().layout, job_->view().start, options.index, options.lanes),
      gather_(chunks_, job_->spec().ranks, job_->spec().model_ranks()),
      pace_(chunks_.size(), counts_.times),
      reducer_(job_->spec().devices ? nullptr : host_reducer(*job_, chunks_, static_cast<ReduceListener&>(*this))),
      earlier_(job_->take_earlier(options.index)),
      client_(client_job(*job_, chunks_, earlier_ != nullptr), chunks_,
              ClientOptions{.window_cap_bytes = options.window_cap_bytes, .over_link = over_link(*job_, chunks_)},
              *this) {
  complete_.reserve(chunks_.size());
}

void WorkerLaneJob::start() {
  started_ = true;
  client_.start(output_.now_ns());
  if (client_.started()) earlier_.reset();  // of no chunks
  if (initial_values_wait_) client_.initial_values_ready(output_.now_ns());
}

void WorkerLaneJob::initial_values() {
  if (failed_ || !job_->spec().init()) return;
  if (started_) return client_.initial_values_ready(output_.now_ns());
  initial_values_wait_ = true;
}

void WorkerLaneJob::fail_job(LaneFailure failure) {
  if (failed_) return;
  failed_ = true;
  output_.failed(std::move(failure));
}

// ---- From the trainers to the servers ----

void WorkerLaneJob::scan() {
  if (failed_) return;
  complete_.clear();
  for (std::uint32_t rank = 0; rank < job_->spec().ranks; ++rank) {
    if (Status status = gather_.look(rank, job_->rank_words(rank), complete_); !status) {
      return fail_job({LaneFailure::Kind::kTrainer, rank, status.error()});
    }
  }
  if (complete_.empty()) return;
  const std::uint64_t now = output_.now_ns();
  pace_.gathered(complete_.size(), complete_.back()->gradient.weight, now, reducer_->busy_ns());
  if (trace_) {
    for (const LaneChunk* chunk : complete_) trace_->ready(*chunk, now);
  }
  for (LaneChunk* chunk : complete_) reducer_->reduce(*chunk, chunk->flight.wants_residual);
}

void WorkerLaneJob::reduced(LaneChunk& chunk) {
  const std::uint64_t now = output_.now_ns();
  pace_.reduced(now, reducer_->busy_ns());
  if (trace_) trace_->reduced(chunk, now, reducer_->busy_ns());
  client_.gradient_ready(chunk, now, job_->is_last(chunk.gradient.round));
}

void WorkerLaneJob::send(const LaneChunk& chunk, const DataMessage& message, std::span<const std::byte> payload) {
  if (const auto* push = std::get_if<Push>(&message); push && trace_)
    trace_->sent(chunk, push->round, output_.now_ns());
  if (output_.send(chunk.connection, message, payload)) {
    counts_.bytes_pushed.add(payload.size());
  } else {
    counts_.send_failures.add();
  }
}

// They were there when the view began, but trainers can write to the ring.
std::optional<RedoRing::Frame> WorkerLaneJob::kept(const LaneChunk& chunk, Round round) {
  std::optional<RedoRing::Frame> kept = job_->spec().redo->find(chunk.index, round);
  if (!kept) {
    fail_job({LaneFailure::Kind::kRefused, 0,
              Error{ErrorCode::kUnavailable, "job '" + job_->view().name() + "': the pushes of round " +
                                                 std::to_string(round.value) +
                                                 " are no longer kept on this node; attach again"}});
  }
  return kept;
}

std::span<const std::byte> WorkerLaneJob::initial_values(const LaneChunk& chunk) {
  return std::as_bytes(std::span(job_->parameters() + chunk.range.begin, chunk.range.elements));
}

Checksum128::Value WorkerLaneJob::have_earlier(const LaneChunk& chunk) {
  if (!earlier_) return {};
  const std::span here(job_->parameters() + chunk.range.begin, chunk.range.elements);
  std::copy_n(earlier_->parameters() + chunk.range.begin, chunk.range.elements, here.data());
  return Checksum128::of(std::as_bytes(here));
}

// ---- From the servers to the trainers ----

void WorkerLaneJob::receive(const DataMessage& message, std::span<const std::byte> payload) {
  if (failed_) return;
  const ChunkKey key = std::visit([](const auto& m) { return m.key; }, message);
  const LaneChunk* const chunk = chunks_.find_whole(key.chunk);
  if (!chunk && key != ChunkKey{}) {  // an error may be about no chunk in particular
    return output_.refused("a server sent something about chunk " + std::to_string(key.chunk.value) +
                           ", which is not this lane's");
  }
  const std::uint64_t now = output_.now_ns();
  if (const auto* answer = std::get_if<Answer>(&message)) {
    if (trace_ && chunk) trace_->arrived(*chunk, now);
    client_.on_answer(*answer, payload, now);
  } else if (const auto* ack = std::get_if<Ack>(&message)) {
    if (trace_ && chunk) trace_->acknowledged(*chunk, ack->round, now);
    client_.on_ack(*ack, now);
  } else if (const auto* residual = std::get_if<Residual>(&message)) {
    client_.on_residual(*residual, payload, now);
  } else if (const auto* resend = std::get_if<Resend>(&message)) {
    client_.on_resend(*resend, now);
  } else if (const auto* error = std::get_if<ErrorReply>(&message)) {
    client_.on_error(*error, now);
  } else {
    output_.refused("a server sent a message that only workers send");
  }
  if (client_.in_flight_bytes() == 0 && pace_.acknowledged(now) && trace_)
    trace_->metered(pace_.compute_ns(), pace_.network_ns());
}

void WorkerLaneJob::answered(LaneChunk& chunk, const Answer& answer, bool whole, std::span<const std::byte> payload) {
  if (!chunk.gradient.frame.empty()) reducer_->release(chunk);
  if (job_->plan().has_clocks()) {
    const std::uint64_t behind =
        answer.version.value > answer.slowest.value ? answer.version.value - answer.slowest.value : 0;
    ++pulls_;
    staleness_sum_ += behind;
    staleness_max_ = std::max(staleness_max_, behind);
  }
  const Round round(answer.version.value);
  if (RedoRing* ring = job_->spec().redo.get()) ring->note_decision(round, answer.gate);
  if (answer.gate.known()) job_->header().gate[round.value % kGateWords].write(round.value, answer.gate);
  if (answer.same) {
    delivered(chunk, answer.version);
  } else {
    reducer_->deliver(chunk, answer.version, whole, payload);
  }
  if (earlier_ && client_.started()) earlier_.reset();
}

void WorkerLaneJob::delivered(LaneChunk& chunk, Version version) {
  const std::uint64_t now = output_.now_ns();
  NodeGather::answered(chunk);
  pace_.answered(now);
  if (trace_) trace_->delivered(chunk, version, now);
  job_->publish(chunk.index, version);
  answered_some_ = true;
}

void WorkerLaneJob::residual_restored(LaneChunk& chunk, std::span<const std::byte> values) {
  reducer_->restore_residual(chunk, values);
}

void WorkerLaneJob::reducer_failed(Error error) {
  // A lost device: the daemon ends, and whoever attaches to the next one goes on.
  const bool lost = error.code == ErrorCode::kUnavailable;
  fail_job({lost ? LaneFailure::Kind::kViewOver : LaneFailure::Kind::kRefused, 0, std::move(error)});
}

bool WorkerLaneJob::keep_residuals() {
  if (failed_ || !job_->plan().push->keeps_residual() || !client_.started()) return false;
  client_.keep_residuals(output_.now_ns());
  return !client_.residuals_kept();
}

void WorkerLaneJob::refused(const ErrorReply& error) {
  const bool over = error.code == ErrorCode::kStaleView || error.code == ErrorCode::kUnknownJob;
  const std::string what = error.key == ChunkKey{} ? std::string("a message")
                                                   : "chunk " + std::to_string(error.key.chunk.value) + " of round " +
                                                         std::to_string(error.round.value);
  fail_job({over ? LaneFailure::Kind::kViewOver : LaneFailure::Kind::kRefused, 0,
            Error{error.code, "a server refused " + what + ": " + error.message}});
}

// ---- What others see ----

bool WorkerLaneJob::publish() {
  if (!answered_some_) return false;
  const std::uint64_t reduce = reducer_->busy_ns();
  const std::uint64_t pulled = client_.stats().bytes_pulled;
  const std::uint64_t pushed = counts_.bytes_pushed.value();
  NodeHeader& header = job_->header();
  header.reduce_ns.fetch_add(reduce - told_.reduce_ns, std::memory_order_relaxed);
  header.bytes_pushed.fetch_add(pushed - told_.pushed, std::memory_order_relaxed);
  header.bytes_pulled.fetch_add(pulled - told_.pulled, std::memory_order_relaxed);
  counts_.bytes_pulled.set(pulled);
  counts_.bytes_had.set(client_.stats().bytes_had);
  if (pulls_ != 0) {
    header.pulls.fetch_add(pulls_, std::memory_order_relaxed);
    header.staleness_sum.fetch_add(staleness_sum_, std::memory_order_relaxed);
    // (Should another lane write a smaller one between the two, this lane says its own again the next time.)
    if (header.staleness_max.load(std::memory_order_relaxed) < staleness_max_)
      header.staleness_max.store(staleness_max_, std::memory_order_relaxed);
    pulls_ = staleness_sum_ = 0;
  }
  told_ = {reduce, pushed, pulled};
  answered_some_ = false;
  job_->header().announce();
  return true;
}

void WorkerLaneJob::trace(std::shared_ptr<TraceBuffer> buffer) {
  trace_ = buffer ? std::make_unique<WorkerLaneTrace>(chunks_.size(), reducer_->busy_ns(), std::move(buffer)) : nullptr;
}

void WorkerLaneJob::tick() {
  if (!failed_) client_.tick(output_.now_ns());
  publish_counts<ClientCounts<std::uint64_t>>(counts_, client_.stats());
  counts_.window_bytes.set(client_.window().window_bytes());
  counts_.in_flight_bytes.set(client_.in_flight_bytes());
  counts_.push_rate.set(static_cast<std::uint64_t>(client_.push_rate()));
  counts_.answer_rate.set(static_cast<std::uint64_t>(client_.answer_rate()));
  counts_.base_rtt_ns.set(client_.window().base_rtt_ns());
  counts_.reduce_ns.set(reducer_->busy_ns());
  counts_.rounds.set(pace_.rounds());
  counts_.compute_ns.set(pace_.compute_ns());
  counts_.network_ns.set(pace_.network_ns());
  counts_.samples.set(pace_.samples());
}

}  // namespace tributary
