#include "server/lane/lane.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/config/config_check.h"
#include "common/daemon/daemon_thread.h"
#include "common/security/socket_keys.h"
#include "common/system/host_port.h"
#include "common/wire/codec.h"
#include "common/wire/zmq_util.h"
#include "server/coordinator/cluster/lane_address.h"
#include "server/lane/pool_preparer.h"

namespace tributary {
Result<std::unique_ptr<Lane>> Lane::start(LaneOptions options, LaneListener& listener, Logger logger) {
  Result<EventFd> wake = EventFd::create();
  if (!wake) return tl::unexpected(wake.error());
  std::unique_ptr<Lane> lane(new Lane(std::move(options), listener, std::move(logger), std::move(*wake)));
  if (Status bound = lane->bind(); !bound) return tl::unexpected(bound.error());
  lane->thread_ = start_thread("lane", lane->logger_, [&self = *lane] { self.run(); });
  return lane;
}

Lane::Lane(LaneOptions options, LaneListener& listener, Logger logger, EventFd wake)
    : options_(std::move(options)),
      logger_(logger),
      noise_(std::move(logger)),
      commands_(std::move(wake)),
      jobs_(options_.jobs, static_cast<LaneOutput&>(*this), listener),
      links_(jobs_.told()),
      context_(1),
      socket_(context_, zmq::socket_type::router) {}

Status Lane::bind() {
  const Result<std::string> address = lane_bind_address(options_.bind, options_.jobs.lane);
  if (!address) return tl::unexpected(address.error());
  if (Status free = check_ipc_free(*address); !free) return free;
  set_common_options(socket_, kMaxMessage, kSendHighWater);
  socket_.set(zmq::sockopt::rcvhwm, kReceiveHighWater);
  if (options_.own) {
    const auto decide = [this](const Admission::Shown& shown) -> Result<std::string> {
      if (!shown.key.empty()) return options_.admitted->admit(shown.key).map([&] { return shown.key; });
      return token_named(shown.token, options_.jobs.shard, options_.jobs.lane).and_then([&](const DataToken& token) {
        return options_.admitted->admit(token, shown.proof);
      });
    };
    if (options_.payload == PayloadSecurity::kPlain) {
      accept_tokens(socket_);
    } else {
      accept_with(socket_, *options_.own);
    }
    ConnectionLimits limits;
    limits.of_key = [this](const std::string& key) { return options_.admitted->nodes(key) * kMaxLanes + kSpare; };
    // Connections of nodes are silent, too, where a view has a pause.
    limits.newcomers = [this] { return kMaxNewcomers + options_.admitted->nodes() * kNewcomersOfNode; };
    limits.held_bytes = [this] { return kMaxHeldBytes + options_.admitted->nodes() * kMaxHeldBytesOfNode; };
    auto admission = Admission::start(context_, socket_, "lane " + std::to_string(options_.jobs.lane.value), decide,
                                      std::move(limits), logger_);
    if (!admission) return tl::unexpected(admission.error());
    admission_ = std::move(*admission);
  }
  const Result<std::string> bound = bind_endpoint(socket_, *address);
  if (!bound) return tl::unexpected(bound.error());
  endpoint_ = advertised_endpoint(*bound, options_.advertise);
  ipc_path_ = ipc_path(*bound).value_or("");
  if (Status linked = links_.listen(new_link_name(options_.jobs.shard, options_.jobs.lane)); !linked) {
    logger_->warn("lane {}: workers on this machine will use sockets: {}", options_.jobs.lane.value,
                  linked.error().message);
  }
  return {};
}

Lane::~Lane() {
  stop();
  // Buffers return in this order: the cores' own; those of places on this machine (workers have mapped the memory, and
  // it is not written any more); those that ZeroMQ had not sent (closing waits for it). Then the pools end.
  const std::vector<std::shared_ptr<BufferPool>> pools = jobs_.end();
  links_.end();
  admission_.reset();
  socket_.close();
  context_.close();
  if (!ipc_path_.empty()) ::unlink(ipc_path_.c_str());
}

void Lane::stop() {
  if (!thread_.joinable()) return;
  post([this](LaneJobs&) { running_ = false; });
  thread_.join();
}

void Lane::run() {
  while (running_) {
    const bool more = receive_batch();
    const std::uint64_t duties = jobs_.turn();
    std::uint64_t wait = more ? 0 : duties;
    const std::uint64_t now = now_ms();
    noise_.tick(now);
    if (links_.pending()) wait = std::min(wait, LaneJobs::kPublishMs);
    poll_items_.clear();
    poll_items_.push_back({socket_.handle(), 0, ZMQ_POLLIN, 0});
    poll_items_.push_back({nullptr, commands_.fd(), ZMQ_POLLIN, 0});
    links_.add_poll_items(poll_items_, now);
    const bool some = zmq_poll(poll_items_.data(), static_cast<int>(poll_items_.size()), static_cast<long>(wait)) > 0;
    if (some && poll_items_[1].revents != 0) run_commands();
    const bool asked = some && std::any_of(poll_items_.begin() + 2, poll_items_.end(),
                                           [](const zmq::pollitem_t& item) { return item.revents != 0; });
    if (asked || links_.pending()) {
      links_.serve(now_ms(), [this](const LinkRequest& request) { return jobs_.shared(request); });
      count_mapped();
    }
  }
}

void Lane::run_commands() {
  commands_.run(jobs_);
  links_.forget_those_over();
  count_mapped();
}

void Lane::count_mapped() {
  jobs_.counters().mapped_bytes.set(links_.mapped_bytes());
  jobs_.changed();
}

void Lane::restore(JobId job, ViewId view, ChunkIndex chunk, ChunkState state) {
  const std::size_t bytes = state.bytes();
  {
    std::unique_lock lock(mutex_);
    restored_.wait(lock, [&] { return restore_bytes_ == 0 || restore_bytes_ + bytes <= kMaxRestoreBytes; });
    restore_bytes_ += bytes;
  }
  post([this, job, view, chunk, bytes, state = std::move(state)](LaneJobs& jobs) mutable {
    jobs.restore(job, view, chunk, std::exchange(state, {}));
    {
      const std::lock_guard lock(mutex_);
      restore_bytes_ -= bytes;
    }
    restored_.notify_one();
  });
}

// ---- Messages ----

bool Lane::receive_batch() {
  for (int i = 0; i < kBatch; ++i) {
    zmq::message_t frames[3];  // routing id, header, payload
    const int after_routing_id = receive_frames(socket_, frames) - 1;
    if (after_routing_id < 1) return false;  // a ROUTER's routing id is always followed by a frame
    if (admission_) {
      admission_->heard(
          std::span(frames).subspan(1, std::min<std::size_t>(static_cast<std::size_t>(after_routing_id), 2)));
    }
    jobs_.changed();
    receive(frames, after_routing_id);
  }
  return true;
}

void Lane::receive(zmq::message_t (&frames)[3], int after_routing_id) {
  LaneCounters& counters = jobs_.counters();
  counters.messages.add();
  const Result<PeerId> from = peer_from_routing_id(bytes_of(frames[0]));
  if (!from) {
    counters.malformed.add();
    refused(from.error().message);
    send(std::move(frames[0]), ErrorReply{{}, {}, from.error().code, from.error().message}, {}, {});
    return;
  }
  LaneJobs::Received received;
  received.frames = after_routing_id;
  Result<DataMessage> message = decode_data(bytes_of(frames[1]), &received.place);
  if (!message) {
    counters.malformed.add();
    refused("refused a message: " + message.error().message);
    return jobs_.refuse(*from, {}, {}, message.error().code, std::move(message.error().message));
  }
  const auto* push = std::get_if<Push>(&*message);
  if (push && push->key.job == JobId() && options_.admitted &&
      options_.admitted->may_measure(options_.own ? key_of(frames[1]) : std::string())) {
    return echo(frames, *push);
  }
  if (Status permitted = permit(frames[1], *message); !permitted) {
    counters.malformed.add();
    refused("refused a message: " + permitted.error().message);
    return jobs_.refuse(*from, {}, {}, permitted.error().code, permitted.error().message);
  }
  try {
    if (received.place.bytes != 0) {
      received.payload = links_.payload(received.place);
    } else if (after_routing_id > 1) {
      received.payload = to_payload(std::move(frames[2]));
    }
    jobs_.receive(*from, *message, std::move(received));
  } catch (const std::exception& e) {  // no memory, most likely: the sender gets an error, all others continue
    counters.internal_errors.add();
    jobs_.refuse(*from, {}, {}, ErrorCode::kInternal,
                 std::string("the server could not handle the message: ") + e.what());
  }
}

// A measurement goes back as it came. It is not referenced memory, as answers are: so it is counted until it has left.
void Lane::echo(zmq::message_t (&frames)[3], const Push& push) {
  if (frames[2].size() > kMaxMeasuredPayload || echoes_.load(std::memory_order_relaxed) >= kMaxEchoes) return;
  struct Echo {
    zmq::message_t frame;
    std::atomic<std::uint64_t>& count;
  };
  echoes_.fetch_add(1, std::memory_order_relaxed);
  auto* held = new Echo{std::move(frames[2]), echoes_};
  const auto gone = [](void*, void* hint) {
    Echo* echo = static_cast<Echo*>(hint);
    echo->count.fetch_sub(1, std::memory_order_relaxed);
    delete echo;
  };
  zmq::message_t payload(held->frame.data(), held->frame.size(), gone, held);
  send(std::move(frames[0]), Answer{.key = push.key}, std::move(payload), {});
}

// Checks that a node sends messages for itself only. Messages of views that are not open here are refused elsewhere.
Status Lane::permit(const zmq::message_t& frame, const DataMessage& message) const {
  if (!options_.own) return {};
  const ChunkKey key = std::visit([](const auto& m) { return m.key; }, message);
  const ShardCore* core = jobs_.core(key.job);
  if (!core || core->job().view->view != key.view) return {};
  const std::vector<std::string>& keys = core->job().view->worker_keys;
  if (key.node.value < keys.size() && keys[key.node.value] == key_of(frame)) return {};
  return fail(ErrorCode::kInvalidArgument,
              "a message for node " + std::to_string(key.node.value) + " came with a key that is not that node's");
}

// A dropped answer is not lost for good: the client queries overdue answers, and gets them again.
bool Lane::send(zmq::message_t routing_id, const DataMessage& message, std::optional<zmq::message_t> payload,
                const PayloadPlace& place) {
  if (!send_now(socket_, routing_id, true)) {
    const bool full = zmq_errno() == EAGAIN;
    jobs_.counters().dropped_sends.add();
    if (!full) jobs_.counters().dropped_unreachable.add();
    refused(full ? "dropped an answer: its receiver takes nothing" : "dropped an answer: its receiver is gone");
    return false;
  }
  alignas(8) std::byte scratch[kMaxErrorHeader];
  const std::span<const std::byte> bytes = encode_data(message, scratch, place);
  zmq::message_t header(bytes.data(), bytes.size());
  // Once a ROUTER has taken the routing id it takes (or drops) the rest of the message.
  bool sent = send_now(socket_, header, payload.has_value());
  if (payload) sent = send_now(socket_, *payload, false) && sent;
  TRIB_ASSERT(sent);
  return true;
}

void Lane::send(PeerId to, const DataMessage& message, const BufferRef& values, const PayloadPlace& place) {
  if (values.size() == 0 || place.bytes != 0) {
    send(routing_id_of(to), message, {}, place);
  } else {
    send(routing_id_of(to), message, borrow(values, values.size()), {});
  }
}

std::uint64_t Lane::now_ns() const {
  return steady_ns();
}

std::uint64_t Lane::now_ms() const {
  return steady_ms();
}

std::unique_ptr<PoolPreparing> Lane::preparing() {
  return std::make_unique<PoolPreparer>();
}

void Lane::refused(const std::string& line) {
  noise_.warn(line, now_ms());
}

void Lane::warn(const std::string& line) {
  logger_->warn("{}", line);
}

}  // namespace tributary
