#include "worker/lane_job.h"

#include <algorithm>
#include <map>
#include <set>

#include "common/assert.h"
#include "common/clock.h"
#include "common/codec.h"
#include "common/encoding.h"
#include "common/local_endpoint.h"
#include "common/zmq_util.h"

namespace tributary {
namespace {

constexpr std::uint32_t kNoiseLines = 10;
constexpr std::uint64_t kNoiseIntervalMs = 10'000;

ClientJob client_job(const NodeJob& job, const std::vector<ChunkIndex>& chunks,
                     const std::vector<ConnectionIndex>& connections) {
  const NodeJobSpec& spec = job.spec();
  ClientJob client;
  client.job = spec.job;
  client.view = spec.view;
  client.node = spec.node;
  client.layout = spec.layout;
  client.chunks = chunks;
  client.connections = connections;
  client.start = Version(spec.start.value);
  client.push = spec.push;
  client.pull = spec.pull;
  client.init = spec.init;
  if (spec.redo && !spec.redo_after.empty()) {
    for (const ChunkIndex chunk : chunks)
      client.redo_after.push_back(spec.redo_after[spec.layout->owner(chunk).shard.value]);
  }
  return client;
}

// Does any of the chunks go to another machine?
bool over_link(const NodeJob& job, const std::vector<ChunkIndex>& chunks) {
  std::set<std::string> endpoints;
  for (const ChunkIndex chunk : chunks) {
    const ChunkOwner owner = job.spec().layout->owner(chunk);
    const auto& all = job.spec().endpoints;
    if (owner.shard.value < all.size() && owner.lane.value < all[owner.shard.value].size())
      endpoints.insert(all[owner.shard.value][owner.lane.value]);
  }
  return !std::ranges::all_of(endpoints, is_local_endpoint);
}

std::unique_ptr<NodeReducer> host_reducer(const NodeJob& job, const std::vector<ChunkIndex>& chunks,
                                          ReduceListener& listener) {
  const NodeJobSpec& spec = job.spec();
  std::vector<const float*> gradients;
  for (std::uint32_t rank = 0; rank < spec.ranks; ++rank) gradients.push_back(job.gradients(rank));
  return std::make_unique<HostReducer>(spec.layout, chunks, std::move(gradients), job.parameters(), spec.push,
                                       spec.pull, listener, spec.redo, spec.start);
}

}  // namespace

Result<std::unique_ptr<WorkerLaneJob>> WorkerLaneJob::open(std::shared_ptr<NodeJob> job,
                                                           const WorkerLaneOptions& options, zmq::context_t& context,
                                                           WorkerLaneListener& listener, Logger logger) {
  const Layout& layout = *job->spec().layout;
  std::vector<ChunkIndex> chunks;
  std::vector<ConnectionIndex> connections;
  std::vector<ChunkOwner> owners;  // by connection
  std::map<std::pair<std::uint16_t, std::uint16_t>, ConnectionIndex> known;
  for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
    const ChunkOwner owner = layout.owner(ChunkIndex(c));
    if (owner.lane.value % options.lanes != options.index) continue;
    const auto [entry, added] = known.try_emplace({owner.shard.value, owner.lane.value},
                                                  ConnectionIndex(static_cast<std::uint16_t>(owners.size())));
    if (added) owners.push_back(owner);
    chunks.push_back(ChunkIndex(c));
    connections.push_back(entry->second);
  }
  std::unique_ptr<WorkerLaneJob> self;
  try {
    self.reset(new WorkerLaneJob(job, options, std::move(chunks), std::move(connections),
                                 static_cast<std::uint16_t>(owners.size()), listener, std::move(logger)));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kLimit, "no memory left for the frames of job '" + job->spec().name +
                                       "'; free memory, raise the limit on open files, or use a smaller model");
  }
  if (const auto& devices = self->job_->spec().devices) {
    auto reducer = DeviceReducer::create(devices, self->chunks_, static_cast<ReduceListener&>(*self));
    if (!reducer) return tl::unexpected(reducer.error());
    self->reducer_ = std::move(*reducer);
  }
  if (Status status = self->connect(context, owners); !status) {
    self->close();
    return tl::unexpected(status.error());
  }
  const std::uint64_t now = steady_ns();
  if (options.local_links) self->ask_links(owners, now);
  self->settle_links(now);
  return self;
}

WorkerLaneJob::WorkerLaneJob(std::shared_ptr<NodeJob> job, const WorkerLaneOptions& options,
                             std::vector<ChunkIndex> chunks, std::vector<ConnectionIndex> connections,
                             std::uint16_t connection_count, WorkerLaneListener& listener, Logger logger)
    : job_(std::move(job)),
      lane_(options.index),
      chunks_(std::move(chunks)),
      listener_(listener),
      logger_(logger),
      noise_(std::move(logger), kNoiseLines, kNoiseIntervalMs),
      gather_(job_->spec().layout, chunks_, job_->spec().ranks, job_->spec().start),
      pace_(chunks_.size()),
      reducer_(job_->spec().devices ? nullptr : host_reducer(*job_, chunks_, static_cast<ReduceListener&>(*this))),
      client_(client_job(*job_, chunks_, connections), connection_count,
              ClientOptions{.window_cap_bytes = options.window_cap_bytes, .over_link = over_link(*job_, chunks_)},
              *this),
      copies_(*job_->spec().layout, chunks_, job_->spec().push),
      frames_(job_->spec().layout->chunks()),
      seen_(gather_.tensors().size() * job_->spec().ranks, job_->spec().start.value) {
  complete_.reserve(chunks_.size());
}

WorkerLaneJob::~WorkerLaneJob() = default;

void WorkerLaneJob::add_poll_items(std::vector<zmq::pollitem_t>& items) {
  if (failed_) return;  // nothing is read any more; the attach thread is about to close the job
  if (reducer_->wake_fd() >= 0) items.push_back({nullptr, reducer_->wake_fd(), ZMQ_POLLIN, 0});
  for (zmq::socket_t& socket : sockets_) items.push_back({socket.handle(), 0, ZMQ_POLLIN, 0});
  if (settled_) return;
  for (const LaneLink& link : links_) {
    if (link.asked()) items.push_back({nullptr, link.fd(), ZMQ_POLLIN, 0});
  }
}

void WorkerLaneJob::close() {
  for (zmq::socket_t& socket : sockets_)
    socket.close();  // LINGER 0: queued messages are dropped and their memory returned
  sockets_.clear();
  links_.clear();  // nothing is read any more
  ring_use_.reset();
}

void WorkerLaneJob::initial_values(std::uint64_t now) {
  if (failed_ || !job_->spec().init) return;
  if (settled_) {
    client_.initial_values_ready(now);
  } else {
    initial_values_wait_ = true;
  }
}

void WorkerLaneJob::fail_job(LaneFailure failure) {
  if (failed_) return;
  failed_ = true;
  listener_.lane_failed(job_, std::move(failure));
}

// ---- From the trainers to the servers ----

void WorkerLaneJob::scan() {
  if (failed_) return;
  const std::vector<std::uint32_t>& tensors = gather_.tensors();
  complete_.clear();
  for (std::uint32_t rank = 0; rank < job_->spec().ranks; ++rank) {
    const TensorWord* words = job_->tensor_words(rank);
    std::uint64_t* seen = seen_.data() + rank * tensors.size();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const TensorWord& word = words[tensors[i]];
      const std::uint64_t round = word.round.load(std::memory_order_acquire);
      if (round == seen[i]) continue;
      seen[i] = round;
      const std::uint64_t weight = word.weight.load(std::memory_order_relaxed);
      if (Status status = gather_.on_tensor(rank, tensors[i], Round(round), weight, complete_); !status) {
        return fail_job({LaneFailure::Kind::kTrainer, rank, status.error()});
      }
    }
  }
  if (complete_.empty()) return;
  pace_.gathered(complete_.size(), complete_.back().weight, steady_ns(), reducer_->busy_ns());
  for (const NodeGather::Complete& done : complete_) {
    reducer_->reduce(done.chunk, done.round, done.weight, client_.wants_residual(done.chunk));
  }
}

void WorkerLaneJob::reduced(ChunkIndex chunk, Round round, std::uint64_t weight, std::span<const std::byte> payload) {
  frames_[chunk.value] = payload;
  const std::uint64_t now = steady_ns();
  pace_.reduced(now, reducer_->busy_ns());
  client_.gradient_ready(chunk, round, weight, now, job_->is_last(round));
}

void WorkerLaneJob::send(ConnectionIndex connection, const DataMessage& message, std::span<const std::byte> payload) {
  zmq::socket_t& socket = sockets_[connection.value];
  alignas(8) std::byte space[kMaxErrorHeader];
  const PayloadPlace place = links_[connection.value].place(payload);
  const std::span<const std::byte> encoded = encode_data(message, space, place);
  zmq::message_t header(encoded.data(), encoded.size());
  const bool in_frame = !payload.empty() && place.bytes == 0;
  // What is not sent here is sent again by ClientCore's time-outs: a lost message and a full queue look the same to it.
  if (!send_now(socket, header, in_frame)) {
    ++send_failures_;
    return;
  }
  bytes_sent_ += payload.size();
  (in_frame ? socket_payload_bytes_ : shared_payload_bytes_) += payload.size();
  if (!in_frame) return;
  zmq::message_t body = lent_.lend(payload);
  // Once ZeroMQ took the first frame of a message it takes the others.
  if (!send_now(socket, body, false)) ++send_failures_;
}

void WorkerLaneJob::send_push(ConnectionIndex connection, const Push& push) {
  const ChunkIndex chunk = push.key.chunk;
  const bool alone = push.residual == ResidualUse::kAlone;
  std::span<const std::byte> payload = alone ? reducer_->residual(chunk) : frames_[chunk.value];
  if (push.redo) {
    const std::optional<RedoRing::Frame> kept = kept_frame(chunk, push.round);
    if (!kept) return;
    payload = kept->bytes;
  }
  if (links_[connection.value].shared() && job_->spec().devices) payload = copies_.copy(chunk, payload, alone);
  send(connection, push, payload);
}

// They were there when the view began, but trainers can write to the ring.
std::optional<RedoRing::Frame> WorkerLaneJob::kept_frame(ChunkIndex chunk, Round round) {
  std::optional<RedoRing::Frame> kept = job_->spec().redo->find(chunk, round);
  if (!kept) {
    fail_job({LaneFailure::Kind::kRefused, 0,
              Error{ErrorCode::kUnavailable, "job '" + job_->spec().name + "': the pushes of round " +
                                                 std::to_string(round.value) +
                                                 " are no longer kept on this node; attach again"}});
  }
  return kept;
}

std::uint64_t WorkerLaneJob::kept_weight(ChunkIndex chunk, Round round) {
  const std::optional<RedoRing::Frame> kept = kept_frame(chunk, round);
  return kept ? kept->weight : 0;
}

GateDecision WorkerLaneJob::kept_decision(ChunkIndex chunk, Round round) {
  const std::optional<RedoRing::Frame> kept = kept_frame(chunk, round);
  return kept ? kept->gate : GateDecision{};
}

void WorkerLaneJob::send_init(ConnectionIndex connection, const Init& init) {
  const ChunkRange range = job_->spec().layout->chunk(init.key.chunk);
  const auto* values = reinterpret_cast<const std::byte*>(job_->parameters() + range.begin);
  send(connection, init, {values, range.elements * sizeof(float)});
}

void WorkerLaneJob::send_pull(ConnectionIndex connection, const Pull& pull) {
  send(connection, pull);
}
void WorkerLaneJob::send_query(ConnectionIndex connection, const Query& query) {
  send(connection, query);
}

// ---- From the servers to the trainers ----

bool WorkerLaneJob::receive(int batch) {
  bool more_to_come = false;
  for (std::size_t i = 0; i < sockets_.size() && !failed_; ++i) {
    int taken = 0;
    for (; taken < batch; ++taken) {
      zmq::message_t received[2];  // header, payload
      const int frames = receive_frames(sockets_[i], received);
      if (frames == 0) break;
      receive_message(ConnectionIndex(static_cast<std::uint16_t>(i)), received[0], received[1], frames);
    }
    more_to_come |= taken == batch;
  }
  if (client_.in_flight_bytes() == 0) pace_.acknowledged(steady_ns());
  return more_to_come;
}

void WorkerLaneJob::receive_message(ConnectionIndex from, zmq::message_t& header, zmq::message_t& frame, int frames) {
  PayloadPlace place;
  Result<DataMessage> message = decode_data(bytes_of(header), &place);
  std::span<const std::byte> payload = bytes_of(frame);
  if (message && frames > (place.bytes == 0 ? 2 : 1)) {
    message = fail(ErrorCode::kMalformed, "a data message has at most 2 frames, one if its payload is elsewhere");
  }
  if (message && place.bytes != 0) {
    const auto found = links_[from.value].payload(place);
    if (found) payload = *found;
    if (!found) message = tl::unexpected(found.error());
  }
  if (!message) {
    ++malformed_;
    noise_.warn("job '" + job_->spec().name + "': dropped a message of a server: " + message.error().message,
                steady_ms());
    return;
  }
  (place.bytes == 0 ? socket_payload_bytes_ : shared_payload_bytes_) += payload.size();
  const std::uint64_t now = steady_ns();
  if (const auto* answer = std::get_if<Answer>(&*message)) {
    client_.on_answer(from, *answer, payload, now);
  } else if (const auto* receipt = std::get_if<Receipt>(&*message)) {
    client_.on_receipt(from, *receipt, now);
  } else if (const auto* residual = std::get_if<Residual>(&*message)) {
    client_.on_residual(from, *residual, payload);
  } else if (const auto* resend = std::get_if<Resend>(&*message)) {
    client_.on_resend(from, *resend, now);
  } else if (const auto* error = std::get_if<ErrorReply>(&*message)) {
    client_.on_error(from, *error);
  } else {
    ++malformed_;
    noise_.warn("job '" + job_->spec().name + "': a server sent a message that only workers send", steady_ms());
  }
  // Reducers have copied what they want of it: on devices, too, it waits in memory of ours.
  if (place.bytes != 0) links_[from.value].read(place);
}

void WorkerLaneJob::answered(const Answer& answer, bool whole, std::span<const std::byte> payload) {
  const ChunkIndex chunk = answer.key.chunk;
  if (!frames_[chunk.value].empty()) {
    reducer_->release(chunk);
    frames_[chunk.value] = {};
  }
  if (job_->spec().clocks) {
    const std::uint64_t behind =
        answer.version.value > answer.slowest.value ? answer.version.value - answer.slowest.value : 0;
    ++pulls_;
    staleness_sum_ += behind;
    staleness_max_ = std::max(staleness_max_, behind);
  }
  const Round round(answer.version.value);
  if (RedoRing* ring = job_->spec().redo.get()) {
    ring->note_decision(chunk, round, answer.gate);
  }
  if (answer.gate.known()) job_->header().gate[round.value % kGateWords].write(round.value, answer.gate);
  reducer_->deliver(chunk, answer.version, whole, payload);
}

void WorkerLaneJob::delivered(ChunkIndex chunk, Version version) {
  gather_.answered(chunk);
  pace_.answered(steady_ns());
  job_->chunk_words()[chunk.value].version_plus_one.store(version.value + 1, std::memory_order_release);
  answered_some_ = true;
}

void WorkerLaneJob::residual_restored(ChunkIndex chunk, std::span<const std::byte> values) {
  reducer_->restore_residual(chunk, values);
}

void WorkerLaneJob::reducer_failed(Error error) {
  // A lost device: the daemon ends, and whoever attaches to the next one goes on.
  const bool lost = error.code == ErrorCode::kUnavailable;
  fail_job({lost ? LaneFailure::Kind::kViewOver : LaneFailure::Kind::kRefused, 0, std::move(error)});
}

bool WorkerLaneJob::keep_residuals(std::uint64_t now) {
  if (failed_ || !make_encoding(job_->spec().push)->keeps_residual() || !client_.started()) return false;
  client_.keep_residuals(now);
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

void WorkerLaneJob::publish() {
  if (answered_some_) {
    const std::uint64_t reduce = reducer_->busy_ns();
    const std::uint64_t pulled = client_.stats().answer_bytes;
    NodeHeader& header = job_->header();
    header.reduce_ns.fetch_add(reduce - reported_reduce_ns_, std::memory_order_relaxed);
    header.bytes_pushed.fetch_add(bytes_sent_ - reported_pushed_, std::memory_order_relaxed);
    header.bytes_pulled.fetch_add(pulled - reported_pulled_, std::memory_order_relaxed);
    if (pulls_ != 0) {
      header.pulls.fetch_add(pulls_, std::memory_order_relaxed);
      header.staleness_sum.fetch_add(staleness_sum_, std::memory_order_relaxed);
      std::uint64_t most = header.staleness_max.load(std::memory_order_relaxed);
      while (most < staleness_max_ && !header.staleness_max.compare_exchange_weak(most, staleness_max_)) {
      }
      pulls_ = staleness_sum_ = 0;
    }
    reported_reduce_ns_ = reduce;
    reported_pushed_ = bytes_sent_;
    reported_pulled_ = pulled;
    answered_some_ = false;
    job_->announce();
  }
}

void WorkerLaneJob::tick(std::uint64_t now) {
  if (!failed_) client_.tick(now);
  noise_.tick(now / 1'000'000);
  const ClientStats& stats = client_.stats();
  LaneJobStats& out = job_->lane_stats(lane_);
  constexpr auto kRelaxed = std::memory_order_relaxed;
  out.window_bytes.store(client_.window().window_bytes(), kRelaxed);
  out.in_flight_bytes.store(client_.in_flight_bytes(), kRelaxed);
  out.push_rate.store(static_cast<std::uint64_t>(client_.push_rate()), kRelaxed);
  out.answer_rate.store(static_cast<std::uint64_t>(client_.answer_rate()), kRelaxed);
  out.base_rtt_ns.store(client_.window().base_rtt_ns(), kRelaxed);
  out.pushes.store(stats.pushes, kRelaxed);
  out.bytes_pushed.store(bytes_sent_, kRelaxed);
  out.answers.store(stats.answers, kRelaxed);
  out.bytes_pulled.store(stats.answer_bytes, kRelaxed);
  out.resends.store(stats.resends, kRelaxed);
  out.queries.store(stats.queries, kRelaxed);
  out.redone.store(stats.redone, kRelaxed);
  out.stale.store(stats.stale, kRelaxed);
  out.malformed.store(malformed_, kRelaxed);
  out.send_failures.store(send_failures_, kRelaxed);
  out.reduce_ns.store(reducer_->busy_ns(), kRelaxed);
  out.rounds.store(pace_.rounds(), kRelaxed);
  out.compute_ns.store(pace_.compute_ns(), kRelaxed);
  out.network_ns.store(pace_.network_ns(), kRelaxed);
  out.samples.store(pace_.samples(), kRelaxed);
  out.lent_messages.store(lent_.outstanding(), kRelaxed);
  out.socket_payload_bytes.store(socket_payload_bytes_, kRelaxed);
  out.shared_payload_bytes.store(shared_payload_bytes_, kRelaxed);
}

}  // namespace tributary
