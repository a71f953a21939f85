// The connection to the coordinator and the control thread's loop; what is done about jobs is in control_jobs.cc.
#include "server/control.h"

#include <algorithm>
#include <utility>

#include "common/clock.h"
#include "common/codec.h"
#include "common/host_identity.h"
#include "common/incarnation.h"
#include "common/zmq_util.h"

namespace tributary {
namespace {

constexpr std::uint32_t kNoiseLines = 5;
constexpr std::uint64_t kNoiseIntervalMs = 10'000;
constexpr std::uint64_t kPollMs = 100;
constexpr std::uint64_t kBusyPollMs = 20;  // while something waits to be sent

}  // namespace

Version ControlJobStatus::min_version() const {
  Version result{~0ull};
  for (const auto& lane : gauges) result = std::min(result, Version(lane->min_version.load(std::memory_order_relaxed)));
  return gauges.empty() ? Version(0) : result;
}

Version ControlJobStatus::max_version() const {
  Version result{0};
  for (const auto& lane : gauges) result = std::max(result, Version(lane->max_version.load(std::memory_order_relaxed)));
  return result;
}

std::uint64_t ControlJobStatus::pool_bytes() const {
  std::uint64_t result = 0;
  for (const auto& lane : gauges) result += lane->pool_bytes.load(std::memory_order_relaxed);
  return result;
}

std::uint64_t ControlJobStatus::withheld() const {
  std::uint64_t result = 0;
  for (const auto& lane : gauges) result += lane->withheld.load(std::memory_order_relaxed);
  return result;
}

std::uint64_t ControlJobStatus::stalled() const {
  std::uint64_t result = 0;
  for (const auto& lane : gauges) result += lane->stalled.load(std::memory_order_relaxed);
  return result;
}

std::uint64_t ControlJobStatus::late_pushes() const {
  std::uint64_t result = 0;
  for (const auto& lane : gauges) result += lane->late_pushes.load(std::memory_order_relaxed);
  return result;
}

std::vector<std::pair<Round, Round>> ControlJobStatus::clocks() const {
  std::vector<std::pair<Round, Round>> result;
  for (const auto& lane : gauges) {
    if (result.empty()) result.resize(lane->clocks.size(), {Round(~0ull), Round(0)});
    for (std::size_t node = 0; node < result.size(); ++node) {
      auto& [last, furthest] = result[node];
      last = std::min(last, Round(lane->clocks[node].last.load(std::memory_order_relaxed)));
      furthest = std::max(furthest, Round(lane->clocks[node].furthest.load(std::memory_order_relaxed)));
    }
  }
  return result;
}

MemoryTerms ControlJobStatus::memory_terms() const {
  ShardMemory shard = memory;
  for (const auto& lane : gauges) {
    shard.max_held_bytes += lane->max_held_bytes.load(std::memory_order_relaxed);
    shard.log_bytes += lane->log_bytes.load(std::memory_order_relaxed);
    shard.local_nodes = std::max(shard.local_nodes, lane->links.load(std::memory_order_relaxed));
  }
  const MemoryTerms steady = memory_formula(shard);
  if (!snapshot_pending) return steady;
  // While a snapshot is written, blocks beyond the steady state are those that copy-on-write keeps for it.
  const std::uint64_t pool = pool_bytes();
  const std::uint64_t expected = steady.state + steady.answers + steady.told + steady.sums;
  shard.snapshot_bytes = pool > expected ? pool - expected : 0;
  return memory_formula(shard);
}

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
      wake_(std::move(wake)),
      context_(1),
      socket_(context_, zmq::socket_type::dealer) {}

Control::~Control() {
  stop();
  socket_.close();
  context_.close();
}

void Control::start(std::vector<Lane*> lanes, Snapshotter* snapshotter, CheckpointService* checkpoints,
                    RedoLogs* logs) {
  logs_ = logs;
  lanes_ = std::move(lanes);
  snapshotter_ = snapshotter;
  checkpoints_ = checkpoints;
  heard_ms_ = published_heard_ms_ = steady_ms();
  thread_ = std::thread([this] { run(); });
}

void Control::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_release);
  wake_.notify();
  thread_.join();
}

void Control::drain() {
  draining_.store(true, std::memory_order_release);
  wake_.notify();
}

void Control::run() {
  say_hello(steady_ms());
  while (!stopping_.load(std::memory_order_acquire)) {
    const std::uint64_t wait =
        outbox_.empty() && joined_ ? std::min<std::uint64_t>(kPollMs, config_.heartbeat_ms) : kBusyPollMs;
    zmq::pollitem_t items[2] = {{socket_.handle(), 0, ZMQ_POLLIN, 0}, {nullptr, wake_.fd(), ZMQ_POLLIN, 0}};
    if (zmq_poll(items, 2, static_cast<long>(wait)) > 0 && items[1].revents != 0) wake_.drain();
    run_events();
    receive_batch();
    const std::uint64_t now = steady_ms();
    heartbeat(now);
    check_silence(now);
    forget_parked(now);
    repeat_facts(now);
    flush();
    check_drain(now);
    noise_.tick(now);
    publish();
  }
}

void Control::post(std::function<void()> event) {
  {
    const std::lock_guard lock(events_mutex_);
    events_.push_back(std::move(event));
  }
  wake_.notify();
}

void Control::run_events() {
  std::deque<std::function<void()>> events;
  {
    const std::lock_guard lock(events_mutex_);
    events.swap(events_);
  }
  for (const std::function<void()>& event : events) event();
}

void Control::receive_batch() {
  for (int i = 0; i < kBatch; ++i) {
    zmq::message_t body;
    const int frames = receive_frames(socket_, {&body, 1});
    if (frames == 0) return;
    const std::uint64_t now = steady_ms();
    Result<ControlMessage> message = decode_control(bytes_of(body));
    if (!message || frames != 1) {
      noise_.warn("ignored a message of the coordinator at " + coordinator_ + ": " +
                      (message ? "it has " + std::to_string(frames) + " frames" : message.error().message),
                  now);
      continue;
    }
    heard_ms_ = now;
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
            noise_.log(spdlog::level::err, "the coordinator refused: " + m.message, now);
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
      while (!jobs_.empty()) park(jobs_.begin()->first, "the coordinator came back as a new process");
      logger_->info("joined the coordinator at {}", coordinator_);
    }
    coordinator_incarnation_ = incarnation;
    joined_ = true;
    if (draining_.load(std::memory_order_acquire)) send(DrainRequest{incarnation_});
    return;
  }
  if (!joined_ || incarnation == coordinator_incarnation_) return;
  while (!jobs_.empty()) park(jobs_.begin()->first, "the coordinator does not know this server any more");
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
  hello.store = store_ != nullptr;
  if (store_) hello.exclusive = file_identity(config_.store_path);
  if (store_) hello.stored = store_->jobs();
  for (StoredJob& stored : hello.stored) {
    if (logs_) stored.log = logs_->range(stored.job);
  }
  for (const auto& [id, parked] : parked_) {
    const bool pending = parked.parking != 0;
    if (pending || parked.all) hello.kept.push_back({id, parked.min_version, parked.max_version, pending});
  }
  // To a coordinator that is new, these are over.
  for (const auto& [id, job] : jobs_) {
    if (job.recovers && job.status.chunks != 0) hello.kept.push_back({id, {}, {}, true});
  }
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
  for (const auto& [id, job] : jobs_) {
    if (job.status.chunks == 0) continue;  // owns nothing, so it is never behind
    beat.progress.push_back({id, job.status.view, job.status.min_version(), job.status.max_version()});
  }
  send_now_or_drop(std::move(beat));
}

void Control::check_silence(std::uint64_t now) {
  const bool silent = now > heard_ms_ + config_.peer_timeout_ms;
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
  status.coordinator_incarnation = coordinator_incarnation_;
  for (const auto& [id, job] : jobs_) {
    status.jobs.push_back(job.status);
    if (job.log && logs_) status.jobs.back().log = logs_->status(id);
  }
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
  post([this, id, view, status] {
    Job* job = find(id, view);
    if (!job || job->opening == 0) return;
    if (job->opened && !status) job->opened = status;
    if (--job->opening == 0) opened(id, view, job->opened);
  });
}

void Control::lane_snapshot(LaneIndex lane, JobId id, ViewId view, Round round, bool started) {
  if (started) return;
  post([this, lane, id, view, round] {
    Job* job = find(id, view);
    // A job that ends captures every chunk again.
    if (!job || job->status.snapshot_pending != round || job->ending) return;
    snapshotter_->abandon(id, round,
                          "lane " + std::to_string(lane.value) + " is past round " + std::to_string(round.value) +
                              " already, or still captures an earlier one");
  });
}

void Control::lane_parked(LaneIndex, JobId id, ViewId view, bool any, Version min, Version max) {
  post([this, id, view, any, min, max] {
    const auto found = parked_.find(id);
    if (found == parked_.end() || found->second.view != view || found->second.parking == 0) return;
    Parked& state = found->second;
    state.all = state.all && any;
    state.min_version = std::min(state.min_version, min);
    state.max_version = std::max(state.max_version, max);
    if (--state.parking == 0) parked(id, state);
  });
}

void Control::lane_stopped(LaneIndex, JobId id, ViewId view, Round round, bool kept) {
  if (kept) return;
  post([this, id, view, round] {
    const Job* job = find(id, view);
    if (!job || !job->ending) return;
    snapshotter_->abandon(id, round,
                          "not every chunk was at round " + std::to_string(round.value) + " when the job stopped");
  });
}

// On the lane's thread: chunks that nobody expects any more are dropped by the snapshotter.
void Control::lane_captured(ChunkSnapshot snapshot) {
  snapshotter_->captured(std::move(snapshot));
}

// On the lane's thread.
void Control::lane_logged(LoggedStep step) {
  if (logs_) logs_->append(std::move(step));
}

void Control::snapshot_finished(const SnapshotDone& done) {
  post([this, done] {
    const Job* job = find(done.job, done.view);
    if (!job) {  // dropped in the meantime; what is durable can still be resumed from, so the coordinator should know
      if (done.ok) send(done);
      return;
    }
    if (job->status.snapshot_pending != done.round) return;
    reply_done(*job, done.round, done.ok, done.bytes, done.message);
    if (job->ending) finish(done.job);
  });
}

}  // namespace tributary
