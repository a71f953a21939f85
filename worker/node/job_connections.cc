#include "worker/node/job_connections.h"

#include <algorithm>

#include "common/base/clock.h"
#include "common/wire/codec.h"

namespace tributary {
namespace {

// Data messages are at most a chunk's payload; headers are smaller than the slack.
constexpr std::size_t kMaxDataMessage = kMaxDataPayload + 4096;
// A connection has at most one push (or Init and Pull) per chunk under way, and at most one repetition of each before
// the first time-out of the next; beyond this a send is refused and ClientCore's time-outs repeat it.
constexpr int kMessagesPerChunk = 4;
constexpr int kHighWaterSlack = 64;

}  // namespace

Result<std::unique_ptr<JobConnections>> JobConnections::open(const std::shared_ptr<NodeJob>& job, NodeLane& lane,
                                                             const WorkerLaneOptions& options,
                                                             zmq::context_t& context) {
  std::unique_ptr<JobConnections> self(new JobConnections(*job, lane, options));
  auto opened = WorkerLaneJob::open(job, options, *self);
  if (!opened) return tl::unexpected(opened.error());
  self->job_ = std::move(*opened);
  if (Status status = self->connect(context); !status) {
    self->close();
    return tl::unexpected(status.error());
  }
  if (options.local_links) self->ask_links(steady_ms());
  self->poll_links();
  return self;
}

JobConnections::JobConnections(const NodeJob& job, NodeLane& lane, const WorkerLaneOptions& options)
    : spec_(job.spec()),
      lane_(lane),
      options_(options),
      counts_(job.lane_stats(options.index)),
      noise_(lane.logger()) {}

JobConnections::~JobConnections() = default;

Status JobConnections::connect(zmq::context_t& context) {
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
    DataPeer peer{.endpoint = endpoint, .own = options_.own};
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
      sockets_.emplace_back(context, std::move(peer), kMaxDataMessage,
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
void JobConnections::ask_links(std::uint64_t now) {
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
Result<std::vector<const SharedMemory*>> JobConnections::regions() {
  std::vector<const SharedMemory*> regions = job_->reducer().frames();
  if (job_->reducer().lends_gradients()) regions.push_back(&memory()->rank_memory(0));
  if (spec_.init()) regions.push_back(&memory()->node_memory());
  return regions;
}

void JobConnections::not_shared(std::size_t connection, const Error& why) {
  lane_.logger()->info("job '{}': payloads to lane {} of server {} go over a socket: {}", spec_.view->name(),
                       servers()[connection].lane.value, servers()[connection].shard.value, why.message);
}

void JobConnections::poll_links() {
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

void JobConnections::add_poll_items(std::vector<zmq::pollitem_t>& items) {
  if (job_->failed()) return;  // nothing is read any more; the attach thread is about to close the job
  if (const int fd = job_->reducer().wake_fd(); fd >= 0) items.push_back({nullptr, fd, ZMQ_POLLIN, 0});
  for (DataSocket& to : sockets_) items.push_back({to.socket().handle(), 0, ZMQ_POLLIN, 0});
  if (started_) return;
  for (const LaneLink& link : links_) {
    if (link.asked()) items.push_back({nullptr, link.fd(), ZMQ_POLLIN, 0});
  }
}

void JobConnections::close() {
  for (DataSocket& to : sockets_) to.close();
  sockets_.clear();
  links_.clear();  // nothing is read any more
  ring_use_.reset();
}

std::uint64_t JobConnections::now_ns() const {
  return steady_ns();
}

bool JobConnections::send(ConnectionIndex connection, const DataMessage& message, std::span<const std::byte> payload) {
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

bool JobConnections::receive(int batch) {
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

void JobConnections::receive_message(ConnectionIndex from, zmq::message_t& header, zmq::message_t& frame, int frames) {
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

void JobConnections::refused(const std::string& line) {
  counts_.malformed.add();
  noise_.warn("job '" + spec_.view->name() + "': " + line, steady_ms());
}

void JobConnections::failed(LaneFailure failure) {
  lane_.failed(memory(), std::move(failure));
}

void JobConnections::tick() {
  job_->tick();
  for (DataSocket& to : sockets_) {
    if (const auto why = to.tick(steady_ms())) noise_.warn("job '" + spec_.view->name() + "': " + *why, steady_ms());
  }
  noise_.tick(steady_ms());
  counts_.lent_messages.set(lent_.outstanding());
}

}  // namespace tributary
