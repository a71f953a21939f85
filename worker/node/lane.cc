#include "worker/node/lane.h"

#include <algorithm>

#include "common/base/clock.h"
#include "common/wire/codec.h"
#include "common/wire/zmq_util.h"
#include "worker/node/data_socket.h"
#include "worker/node/lane_link.h"

namespace tributary {
namespace {

// Data messages are at most a chunk's payload; headers are smaller than the slack.
constexpr std::size_t kMaxDataMessage = kMaxDataPayload + 4096;
// A connection has at most one push (or Init and Pull) per chunk under way, and at most one repetition of each before
// the first time-out of the next; beyond this a send is refused and ClientCore's time-outs repeat it.
constexpr int kMessagesPerChunk = 4;
constexpr int kHighWaterSlack = 64;

}  // namespace

// A WorkerLaneJob's means on the machine: a socket to every server lane of the job, and memory shared with the lanes on
// this machine. Thread rule: the lane's thread.
class WorkerLane::JobConnections final : private WorkerLaneOutput {
 public:
  // kUnavailable if an endpoint cannot be used; errors of WorkerLaneJob::open(). lane outlives this.
  static Result<std::unique_ptr<JobConnections>> open(const std::shared_ptr<NodeJob>& job, WorkerLane& lane);
  ~JobConnections() override = default;  // REQUIRES: close() or the context is closed

  WorkerLaneJob& job() { return *job_; }
  const std::shared_ptr<NodeJob>& memory() const { return job_->job(); }
  void add_poll_items(std::vector<zmq::pollitem_t>& items);

  // Held until close().
  void hold(RedoRing::Use ring) { ring_use_ = std::move(ring); }

  // Takes the replies of servers on this machine to requests to share memory; after the last one the job begins.
  void poll_links();
  // Up to `batch` messages per connection. True if a connection may have more.
  bool receive(int batch);
  void tick();
  // Closes the sockets; then outstanding() falls to 0 when ZeroMQ's I/O thread is done.
  void close();
  std::uint64_t outstanding() const { return lent_.outstanding(); }

 private:
  JobConnections(const NodeJob& job, WorkerLane& lane);
  Status connect();
  void ask_links(std::uint64_t now_ms);
  const std::vector<ChunkOwner>& servers() const { return job_->chunks().servers(); }  // by connection
  Result<std::vector<const SharedMemory*>> regions();
  void not_shared(std::size_t connection, const Error& why);
  void receive_message(ConnectionIndex from, zmq::message_t& header, zmq::message_t& frame, int frames);

  std::uint64_t now_ns() const override;
  bool send(ConnectionIndex connection, const DataMessage& message, std::span<const std::byte> payload) override;
  void refused(const std::string& line) override;
  void failed(LaneFailure failure) override;

  const NodeJobSpec& spec_;
  WorkerLane& lane_;
  LaneJobStats& counts_;
  RateLimitedLog noise_;
  LentMemory lent_;  // of all sockets
  std::unique_ptr<WorkerLaneJob> job_;
  std::vector<DataSocket> sockets_;  // by connection
  std::vector<LaneLink> links_;      // by connection
  bool started_ = false;             // no link is waited for; the job has started
  RedoRing::Use ring_use_;
};

// ---- The thread, and the orders of the attach thread ----

Result<std::unique_ptr<WorkerLane>> WorkerLane::start(WorkerLaneOptions options, WorkerLaneListener& listener,
                                                      Logger logger) {
  auto bells = Bells::create();
  if (!bells) return tl::unexpected(bells.error());
  std::unique_ptr<WorkerLane> self(new WorkerLane(options, listener, std::move(logger), std::move(*bells)));
  self->NodeLane::start("lane");
  return self;
}

WorkerLane::WorkerLane(WorkerLaneOptions options, WorkerLaneListener& listener, Logger logger, Bells bells)
    : NodeLane(listener, std::move(logger), std::move(bells)), options_(options), context_(1) {}

WorkerLane::~WorkerLane() {
  stop();
}

void WorkerLane::open(std::shared_ptr<NodeJob> job) {
  jobs_held_.fetch_add(1, std::memory_order_acq_rel);
  RedoRing::Use ring;  // counted before anybody can look
  if (job->spec().redo) ring = RedoRing::use(job->spec().redo);
  command([this, job = std::move(job), ring = std::move(ring)]() mutable {
    auto opened = JobConnections::open(job, *this);
    if (opened) {
      (*opened)->hold(std::move(ring));
      jobs_.push_back(std::move(*opened));
      return;
    }
    jobs_held_.fetch_sub(1, std::memory_order_acq_rel);
    failed(job, {LaneFailure::Kind::kRefused, 0, opened.error()});
  });
}

void WorkerLane::initial_values(std::shared_ptr<NodeJob> job) {
  command([this, job = std::move(job)] {
    if (JobConnections* found = find(job.get())) found->job().initial_values();
  });
}

void WorkerLane::trace(std::shared_ptr<NodeJob> job, std::shared_ptr<TraceBuffer> buffer) {
  command([this, job = std::move(job), buffer = std::move(buffer)] {
    if (JobConnections* found = find(job.get())) found->job().trace(buffer);
  });
}

void WorkerLane::close(std::shared_ptr<NodeJob> job, bool keep) {
  if (keep) jobs_keeping_.fetch_add(1, std::memory_order_acq_rel);  // before anybody can look
  command([this, job = std::move(job), keep]() mutable {
    const auto at = std::ranges::find_if(jobs_, [&](const auto& held) { return held->memory() == job; });
    const std::uint64_t now = steady_ms();
    if (keep && (at == jobs_.end() || !(*at)->job().keep_residuals())) {
      jobs_keeping_.fetch_sub(1, std::memory_order_acq_rel);
      keep = false;
    }
    if (at == jobs_.end()) return;
    if (keep) {
      keeping_.push_back({std::move(*at), now, {options_.stop_timeout_ms, now}});
    } else {
      (*at)->close();
      closing_.push_back({std::move(*at), now, {0, 0}});
    }
    jobs_.erase(at);
  });
}

void WorkerLane::finish_keeping(std::uint64_t now) {
  for (auto at = keeping_.begin(); at != keeping_.end();) {
    const bool late = at->patience.over(at->job->job().heard(), now);
    if (!at->job->job().kept() && !late) {
      ++at;
      continue;
    }
    if (!at->job->job().kept()) {
      logger()->warn(
          "job '{}': no server has said a word for {} ms; {} residuals are kept so far, and the last snapshot stands",
          at->job->memory()->view().name(), options_.stop_timeout_ms, at->job->job().residuals_kept());
    }
    at->job->close();
    closing_.push_back({std::move(at->job), now, {0, 0}});
    at = keeping_.erase(at);
    jobs_keeping_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

WorkerLane::JobConnections* WorkerLane::find(const NodeJob* job) {
  const auto at = std::ranges::find_if(jobs_, [&](const auto& held) { return held->memory().get() == job; });
  return at == jobs_.end() ? nullptr : at->get();
}

void WorkerLane::finish_closing(std::uint64_t now) {
  std::erase_if(closing_, [&](Closing& entry) {
    if (entry.job->outstanding() == 0) {
      jobs_held_.fetch_sub(1, std::memory_order_acq_rel);
      return true;
    }
    if (!entry.warned && now - entry.since_ms > kLentPatienceMs) {
      entry.warned = true;
      logger()->warn(
          "job '{}': ZeroMQ still holds {} messages {} ms after its sockets were closed; their memory stays mapped",
          entry.job->memory()->view().name(), entry.job->outstanding(), now - entry.since_ms);
    }
    return false;
  });
}

void WorkerLane::run() {
  std::vector<zmq::pollitem_t> items;
  std::uint64_t next_tick_ns = 0;
  bool more = false;  // a connection has messages beyond its batch
  while (!stopping()) {
    items.clear();
    items.push_back({nullptr, commands_.fd(), ZMQ_POLLIN, 0});
    items.push_back({nullptr, doorbell_.fd(), ZMQ_POLLIN, 0});
    for (auto& job : jobs_) job->add_poll_items(items);
    for (auto& entry : keeping_) entry.job->add_poll_items(items);
    zmq_poll(items.data(), static_cast<int>(items.size()), more ? 0 : closing_.empty() ? kTickMs : kClosingTickMs);

    commands_.run();
    const bool rung = items[1].revents != 0;
    if (rung) doorbell_.drain();
    more = false;
    for (auto& job : jobs_) {
      job->poll_links();
      more |= job->receive(kBatch);
      job->job().poll_reducer();
      if (rung) job->job().scan();
      job->job().publish();
    }
    for (auto& entry : keeping_) {
      more |= entry.job->receive(kBatch);
      entry.job->job().poll_reducer();
    }
    const std::uint64_t now = steady_ns();
    if (now >= next_tick_ns) {
      for (auto& job : jobs_) job->tick();
      for (auto& entry : keeping_) entry.job->tick();
      next_tick_ns = now + kTickMs * 1'000'000ull;
    }
    if (!keeping_.empty()) finish_keeping(now / 1'000'000);
    if (!closing_.empty()) finish_closing(now / 1'000'000);
  }
  for (auto& job : jobs_) job->close();
  for (auto& entry : keeping_) entry.job->close();
  context_.close();  // returns when ZeroMQ's threads are done: nothing is lent any more
  jobs_.clear();
  keeping_.clear();
  closing_.clear();
}

// ---- A job's sockets ----

Result<std::unique_ptr<WorkerLane::JobConnections>> WorkerLane::JobConnections::open(
    const std::shared_ptr<NodeJob>& job, WorkerLane& lane) {
  std::unique_ptr<JobConnections> self(new JobConnections(*job, lane));
  auto opened = WorkerLaneJob::open(job, lane.options_, *self);
  if (!opened) return tl::unexpected(opened.error());
  self->job_ = std::move(*opened);
  if (Status status = self->connect(); !status) {
    self->close();
    return tl::unexpected(status.error());
  }
  if (lane.options_.local_links) self->ask_links(steady_ms());
  self->poll_links();
  return self;
}

WorkerLane::JobConnections::JobConnections(const NodeJob& job, WorkerLane& lane)
    : spec_(job.spec()), lane_(lane), counts_(job.lane_stats(lane.options_.index)), noise_(lane.logger()) {}

Status WorkerLane::JobConnections::connect() {
  std::vector<int> chunks_of(servers().size(), 0);
  for (const LaneChunk& chunk : job_->chunks()) ++chunks_of[chunk.connection.value];
  for (std::size_t i = 0; i < servers().size(); ++i) {
    const auto& endpoints = spec_.endpoints;
    const ChunkOwner owner = servers()[i];
    if (owner.shard.value >= endpoints.size() || owner.lane.value >= endpoints[owner.shard.value].size()) {
      return fail(ErrorCode::kInvalidArgument, "the coordinator gave chunks to lane " +
                                                   std::to_string(owner.lane.value) + " of server " +
                                                   std::to_string(owner.shard.value) + " but named no address for it");
    }
    const std::string& endpoint = endpoints[owner.shard.value][owner.lane.value];
    DataPeer peer{.endpoint = endpoint, .own = lane_.options_.own};
    if (peer.own) {
      if (owner.shard.value >= spec_.server_keys.size() || !is_key(spec_.server_keys[owner.shard.value])) {
        return fail(ErrorCode::kConfig, "this worker has keys, and server " + std::to_string(owner.shard.value) +
                                            " has none: give all daemons of the cluster keys, or none");
      }
      peer.key = spec_.server_keys[owner.shard.value];
      if (std::ranges::find(spec_.plain, owner.shard) != spec_.plain.end()) {
        peer.token = DataToken{spec_.view->job, spec_.view->view, spec_.node, owner.shard, owner.lane};
      }
    }
    try {
      sockets_.emplace_back(lane_.context_, std::move(peer), kMaxDataMessage,
                            kMessagesPerChunk * chunks_of[i] + kHighWaterSlack);
    } catch (const zmq::error_t& e) {
      return fail(ErrorCode::kUnavailable, "cannot connect to server " + std::to_string(owner.shard.value) + " at '" +
                                               endpoint + "': " + e.what() + "; check its [server] bind and advertise");
    }
  }
  links_.resize(servers().size());
  return {};
}

// Memory is shared with servers that say so before the first message: then every payload goes that way, or none does.
void WorkerLane::JobConnections::ask_links(std::uint64_t now) {
  const auto& locals = spec_.locals;
  for (std::size_t i = 0; i < servers().size(); ++i) {
    const auto [shard, lane] = servers()[i];
    if (shard.value >= locals.size() || lane.value >= locals[shard.value].size()) continue;
    const std::string& name = locals[shard.value][lane.value];
    if (name.empty()) continue;
    auto socket = connect_link(name);
    auto link = !socket ? tl::unexpected(socket.error()) : regions().and_then([&](auto shared) {
      const LinkRequest request{spec_.view->job, spec_.view->view, spec_.node};
      return LaneLink::ask(std::move(*socket), request, std::move(shared), now);
    });
    if (link) {
      links_[i] = std::move(*link);
    } else {
      not_shared(i, link.error());
    }
  }
}

// Returns the memory regions in which payloads to servers lie.
Result<std::vector<const SharedMemory*>> WorkerLane::JobConnections::regions() {
  std::vector<const SharedMemory*> regions = job_->reducer().frames();
  if (job_->reducer().lends_gradients()) regions.push_back(&memory()->rank_memory(0));
  if (spec_.init()) regions.push_back(&memory()->node_memory());
  return regions;
}

void WorkerLane::JobConnections::not_shared(std::size_t connection, const Error& why) {
  lane_.logger()->info("job '{}': payloads to lane {} of server {} go over a socket: {}", spec_.view->name(),
                       servers()[connection].lane.value, servers()[connection].shard.value, why.message);
}

void WorkerLane::JobConnections::poll_links() {
  if (started_) return;
  const std::uint64_t now = steady_ms();
  std::uint64_t shared = 0;
  bool waits = false;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (links_[i].asked()) {
      if (Status polled = links_[i].poll(now); !polled) not_shared(i, polled.error());
    }
    waits |= links_[i].asked();
    shared += links_[i].shared() ? 1 : 0;
  }
  if (waits) return;
  started_ = true;
  counts_.connections.set(links_.size());
  counts_.shared_connections.set(shared);
  for (std::size_t i = 0; i < links_.size() && shared < links_.size(); ++i) {
    if (links_[i].shared()) job_->crosses_no_link(ConnectionIndex(static_cast<std::uint16_t>(i)));
  }
  job_->start();
}

void WorkerLane::JobConnections::add_poll_items(std::vector<zmq::pollitem_t>& items) {
  if (job_->failed()) return;  // nothing is read any more; the attach thread is about to close the job
  if (const int fd = job_->reducer().wake_fd(); fd >= 0) items.push_back({nullptr, fd, ZMQ_POLLIN, 0});
  for (DataSocket& to : sockets_) items.push_back({to.socket().handle(), 0, ZMQ_POLLIN, 0});
  if (started_) return;
  for (const LaneLink& link : links_) {
    if (link.asked()) items.push_back({nullptr, link.fd(), ZMQ_POLLIN, 0});
  }
}

void WorkerLane::JobConnections::close() {
  for (DataSocket& to : sockets_) to.close();
  sockets_.clear();
  links_.clear();  // nothing is read any more
  ring_use_.reset();
}

std::uint64_t WorkerLane::JobConnections::now_ns() const {
  return steady_ns();
}

bool WorkerLane::JobConnections::send(ConnectionIndex connection, const DataMessage& message,
                                      std::span<const std::byte> payload) {
  zmq::socket_t& socket = sockets_[connection.value].socket();
  const LaneLink& link = links_[connection.value];
  alignas(8) std::byte space[kMaxErrorHeader];
  const PayloadPlace place = link.shared() ? link.place(payload) : PayloadPlace{};
  const std::span<const std::byte> encoded = encode_data(message, space, place);
  zmq::message_t header(encoded.data(), encoded.size());
  const bool in_frame = !payload.empty() && place.bytes == 0;
  if (!send_now(socket, header, in_frame)) return false;
  (in_frame ? counts_.socket_payload_bytes : counts_.shared_payload_bytes).add(payload.size());
  if (!in_frame) return true;
  zmq::message_t body = lent_.lend(payload);
  // Once ZeroMQ took the first frame of a message it takes the others.
  return send_now(socket, body, false);
}

bool WorkerLane::JobConnections::receive(int batch) {
  bool more_to_come = false;
  for (std::size_t i = 0; i < sockets_.size() && !job_->failed(); ++i) {
    int taken = 0;
    for (; taken < batch; ++taken) {
      zmq::message_t received[2];  // header, payload
      const int frames = receive_frames(sockets_[i].socket(), received);
      if (frames == 0) break;
      receive_message(ConnectionIndex(static_cast<std::uint16_t>(i)), received[0], received[1], frames);
    }
    more_to_come |= taken == batch;
  }
  return more_to_come;
}

void WorkerLane::JobConnections::receive_message(ConnectionIndex from, zmq::message_t& header, zmq::message_t& frame,
                                                 int frames) {
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
  if (!message) return refused("dropped a message of a server: " + message.error().message);
  (place.bytes == 0 ? counts_.socket_payload_bytes : counts_.shared_payload_bytes).add(payload.size());
  job_->receive(*message, payload);
  // Reducers have copied what they want of it: on devices, too, it waits in memory of ours.
  if (place.bytes != 0) links_[from.value].read(place);
}

void WorkerLane::JobConnections::refused(const std::string& line) {
  counts_.malformed.add();
  noise_.warn("job '" + spec_.view->name() + "': " + line, steady_ms());
}

void WorkerLane::JobConnections::failed(LaneFailure failure) {
  lane_.failed(memory(), std::move(failure));
}

void WorkerLane::JobConnections::tick() {
  job_->tick();
  for (DataSocket& to : sockets_) {
    if (const auto why = to.tick(steady_ms())) noise_.warn("job '" + spec_.view->name() + "': " + *why, steady_ms());
  }
  noise_.tick(steady_ms());
  counts_.lent_messages.set(lent_.outstanding());
}

}  // namespace tributary
