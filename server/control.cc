// The connection to the coordinator and the control thread's loop; what is done about jobs is in control_jobs.cc.
#include "server/control.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/host_identity.h"
#include "common/base/incarnation.h"
#include "common/daemon/daemon_thread.h"
#include "common/wire/codec.h"
#include "common/wire/lane_reply.h"
#include "common/wire/zmq_util.h"

namespace tributary {
namespace {

constexpr std::uint32_t kNoiseLines = 5;
constexpr std::uint64_t kNoiseIntervalMs = 10'000;
constexpr std::uint64_t kPollMs = 100;
constexpr std::uint64_t kBusyPollMs = 20;  // while something waits to be sent

}  // namespace

Result<std::unique_ptr<Control>> Control::create(const ServerConfig& config, std::string coordinator, Store* store,
                                                 Logger logger) {
  Result<EventFd> wake = EventFd::create();
  if (!wake) return tl::unexpected(wake.error());
  std::unique_ptr<Control> control(
      new Control(config, std::move(coordinator), store, std::move(logger), std::move(*wake)));
  try {
    set_common_options(control->socket_, kMaxControlBytes, kHighWater);
    // While the coordinator is away nothing is queued in ZeroMQ: heartbeats that nobody waits for are dropped, and what
    // must arrive waits in outbox_.
    control->socket_.set(zmq::sockopt::immediate, true);
    control->socket_.connect(control->coordinator_);
  } catch (const zmq::error_t& e) {
    return fail(ErrorCode::kConfig, "[server] coordinator = \"" + control->coordinator_ + "\": cannot connect: " +
                                        e.what() + "; use \"tcp://HOST:PORT\" or \"ipc:///PATH\"");
  }
  return control;
}

Control::Control(const ServerConfig& config, std::string coordinator, Store* store, Logger logger, EventFd wake)
    : config_(config),
      coordinator_(std::move(coordinator)),
      store_(store),
      logger_(logger),
      noise_(std::move(logger), kNoiseLines, kNoiseIntervalMs),
      incarnation_(random_incarnation()),
      events_(std::move(wake)),
      context_(1),
      socket_(context_, zmq::socket_type::dealer),
      jobs_(config_, store, logger_, static_cast<ControlJobsOutput&>(*this)) {}

Control::~Control() {
  stop();
  socket_.close();
  context_.close();
}

void Control::start(std::vector<Lane*> lanes, Snapshotter* snapshotter, CheckpointService* checkpoints) {
  jobs_.start({lanes.begin(), lanes.end()}, snapshotter);
  lanes_ = std::move(lanes);
  snapshotter_ = snapshotter;
  checkpoints_ = checkpoints;
  heard_ms_ = published_heard_ms_ = steady_ms();
  heard_waking_ms_ = waking_.at(heard_ms_);
  thread_ = start_thread("control", logger_, [this] { run(); });
}

void Control::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_release);
  events_.rouse();
  thread_.join();
}

void Control::drain() {
  draining_.store(true, std::memory_order_release);
  events_.rouse();
}

void Control::run() {
  say_hello(steady_ms());
  while (!stopping_.load(std::memory_order_acquire)) {
    const std::uint64_t wait =
        outbox_.empty() && joined_ ? std::min<std::uint64_t>(kPollMs, config_.heartbeat_ms) : kBusyPollMs;
    zmq::pollitem_t items[2] = {{socket_.handle(), 0, ZMQ_POLLIN, 0}, {nullptr, events_.fd(), ZMQ_POLLIN, 0}};
    zmq_poll(items, 2, static_cast<long>(wait));
    events_.run();
    receive_batch();
    const std::uint64_t now = steady_ms();
    heartbeat(now);
    check_silence(now);
    jobs_.tick();
    flush();
    check_drain(now);
    noise_.tick(now);
    publish();
  }
}

bool Control::between_chunks() {
  heartbeat(steady_ms());  // loading may take longer than the coordinator's patience
  return !stopping_.load(std::memory_order_acquire);
}

void Control::loaded() {
  heard_ms_ = steady_ms();  // its silence was ours
  heard_waking_ms_ = waking_.at(heard_ms_);
}

void Control::receive_batch() {
  for (int i = 0; i < kBatch; ++i) {
    zmq::message_t body;
    const int frames = receive_frames(socket_, {&body, 1});
    if (frames == 0) return;
    const std::uint64_t now = steady_ms();
    if (!ever_joined_ && is_lane_reply(bytes_of(body))) {
      refused_ = lane_as_coordinator("[server]", coordinator_);
      continue;
    }
    Result<ControlMessage> message = decode_control(bytes_of(body));
    if (!message || frames != 1) {
      noise_.warn("ignored a message of the coordinator at " + coordinator_ + ": " +
                      (message ? "it has " + std::to_string(frames) + " frames" : message.error().message),
                  now);
      continue;
    }
    heard_ms_ = now;
    heard_waking_ms_ = waking_.at(now);
    std::visit(
        [&](const auto& m) {
          using M = std::decay_t<decltype(m)>;
          if constexpr (std::is_same_v<M, HelloReply>) {
            meet(m.coordinator_incarnation, now, true);
          } else if constexpr (std::is_same_v<M, HeartbeatReply>) {
            meet(m.coordinator_incarnation, now, false);
          } else if constexpr (requires { this->on(m); }) {
            on(m);
          } else if constexpr (std::is_same_v<M, DrainDone>) {
            if (draining_.load(std::memory_order_acquire)) drained_.store(true, std::memory_order_release);
          } else if constexpr (std::is_same_v<M, ControlError>) {
            // What this process is cannot change any more; a coordinator that knew it may have changed.
            if (!ever_joined_ && m.code == ErrorCode::kTopology) {
              refused_ = "the coordinator at " + coordinator_ + " refused: " + m.message;
            } else {
              noise_.log(spdlog::level::err, "the coordinator refused: " + m.message, now);
            }
          } else {
            noise_.warn("the coordinator at " + coordinator_ + " sent a message that is not for servers", now);
          }
        },
        *message);
  }
}

// Whoever answers with another incarnation than we know, or with 0, knows nothing of us and our jobs.
void Control::meet(std::uint64_t incarnation, std::uint64_t now, bool hello) {
  if (hello && incarnation != 0) {
    if (coordinator_incarnation_ != incarnation) {
      jobs_.park_all("the coordinator came back as a new process");
      logger_->info("joined the coordinator at {}", coordinator_);
    }
    coordinator_incarnation_ = incarnation;
    joined_ = ever_joined_ = true;
    if (draining_.load(std::memory_order_acquire)) send(DrainRequest{incarnation_});
    return;
  }
  if (!joined_ || incarnation == coordinator_incarnation_) return;
  jobs_.park_all("the coordinator does not know this server any more");
  outbox_.clear();
  joined_ = false;
  coordinator_incarnation_ = 0;
  say_hello(now);
}

void Control::say_hello(std::uint64_t now) {
  if ((socket_.get(zmq::sockopt::events) & ZMQ_POLLOUT) == 0) return;  // not connected yet: tried again in a moment
  ServerHello hello;
  hello.shard = ShardIndex(config_.index);
  hello.servers = config_.servers;
  hello.incarnation = incarnation_;
  hello.bandwidth = config_.bandwidth;
  hello.host = config_.host.empty() ? host_identity() : config_.host;
  for (const Lane* lane : lanes_) {
    hello.lane_endpoints.push_back(lane->endpoint());
    hello.lane_locals.push_back(lane->link_name());
  }
  if (store_) hello.exclusive = file_identity(config_.store_path);
  jobs_.describe(hello);
  send_now_or_drop(std::move(hello));
  hello_ms_ = now;
}

void Control::heartbeat(std::uint64_t now) {
  if (!joined_) {
    if (now >= hello_ms_ + kHelloMs) say_hello(now);
  } else if (now >= heartbeat_ms_ + config_.heartbeat_ms) {
    beat();
    heartbeat_ms_ = now;
  }
}

void Control::beat() {
  Heartbeat beat;
  beat.incarnation = incarnation_;
  beat.progress = jobs_.progress();
  send_now_or_drop(std::move(beat));
}

void Control::check_silence(std::uint64_t now) {
  const bool silent = waking_.at(now) > heard_waking_ms_ + config_.peer_timeout_ms;
  if (silent && !silence_logged_) {
    logger_->warn("the coordinator at {} has not been heard for {} ms; still trying", coordinator_,
                  config_.peer_timeout_ms);
  }
  silence_logged_ = silent;
}

bool Control::send_now_or_drop(const ControlMessage& message) {
  const std::vector<std::byte> bytes = encode_control(message);
  zmq::message_t frame(bytes.data(), bytes.size());
  return send_now(socket_, frame, false);
}

void Control::send(ControlMessage message) {
  if (outbox_.size() >= kMaxOutbox) {
    logger_->warn("dropped a message to the coordinator: {} wait already", kMaxOutbox);
    return;
  }
  outbox_.push_back(std::move(message));
  flush();
}

void Control::flush() {
  // After a reconnection the coordinator knows this connection only by a heartbeat; what came before one would be a
  // stranger's.
  if (!outbox_.empty() && joined_) beat();
  while (!outbox_.empty() && send_now_or_drop(outbox_.front())) outbox_.pop_front();
}

void Control::check_drain(std::uint64_t now) {
  if (!draining_.load(std::memory_order_acquire) || drained()) return;
  if (drain_ms_ == 0) {
    drain_ms_ = now;
    send(DrainRequest{incarnation_});
  }
  if (jobs_.empty() && now >= drain_ms_ + kDrainAloneMs) drained_.store(true, std::memory_order_release);
}

void Control::publish() {
  ControlStatus status;
  status.joined = joined_;
  status.refused = refused_;
  status.coordinator_incarnation = coordinator_incarnation_;
  status.jobs = jobs_.statuses();
  status.not_saved = jobs_.not_saved();
  const std::lock_guard lock(status_mutex_);
  published_ = std::move(status);
  published_heard_ms_ = heard_ms_;
}

ControlStatus Control::status() const {
  const std::lock_guard lock(status_mutex_);
  ControlStatus status = published_;
  const std::uint64_t now = steady_ms();
  status.silent_ms = now > published_heard_ms_ ? now - published_heard_ms_ : 0;
  return status;
}

void Control::lane_opened(LaneIndex, JobId id, ViewId view, const Status& status) {
  post([this, id, view, status] { jobs_.lane_opened(id, view, status); });
}

void Control::lane_snapshot(LaneIndex lane, JobId id, ViewId view, Round round, bool started) {
  if (started) return;
  post([=, this] { jobs_.lane_snapshot(lane, id, view, round, started); });
}

void Control::lane_parked(LaneIndex, JobId id, ViewId view, bool any, Version min, Version max) {
  post([=, this] { jobs_.lane_parked(id, view, any, min, max); });
}

void Control::lane_stopped(LaneIndex, JobId id, ViewId view, Round round, bool kept) {
  if (kept) return;
  post([=, this] { jobs_.lane_stopped(id, view, round, kept); });
}

void Control::lane_facts(LaneIndex lane, RoundFacts facts) {
  post([this, lane, facts = std::move(facts)]() mutable { jobs_.lane_facts(lane, std::move(facts)); });
}

// On the lane's thread: chunks that nobody expects any more are dropped by the snapshotter.
void Control::lane_captured(ChunkSnapshot snapshot) {
  snapshotter_->captured(std::move(snapshot));
}

void Control::snapshot_finished(const SnapshotDone& done) {
  post([this, done] { jobs_.snapshot_finished(done); });
}

}  // namespace tributary
