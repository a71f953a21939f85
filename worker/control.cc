#include "worker/control.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/daemon/daemon_thread.h"
#include "common/wire/codec.h"
#include "common/wire/lane_reply.h"
#include "common/wire/zmq_util.h"

namespace tributary {

namespace {

constexpr std::uint32_t kNoiseLines = 10;
constexpr std::uint64_t kNoiseIntervalMs = 10'000;
constexpr std::uint64_t kLongestDelayMs = 250;  // of this thread's turns; more is no silence of the coordinator's

}  // namespace

Result<std::unique_ptr<WorkerControl>> WorkerControl::start(WorkerControlOptions options,
                                                            WorkerControlListener& listener, Logger logger) {
  auto wake = EventFd::create();
  if (!wake) return tl::unexpected(wake.error());
  std::unique_ptr<WorkerControl> self(
      new WorkerControl(std::move(options), listener, std::move(logger), std::move(*wake)));
  set_common_options(self->socket_, kMaxControlBytes, kHighWater);
  // Nothing is queued for a coordinator that is not there: heartbeats of an hour ago help nobody.
  self->socket_.set(zmq::sockopt::immediate, true);
  try {
    self->socket_.connect(self->options_.coordinator);
  } catch (const zmq::error_t& e) {
    return fail(ErrorCode::kConfig, "[worker] coordinator = '" + self->options_.coordinator + "' cannot be used: " +
                                        e.what() + "; it is the address of server 0, such as tcp://10.0.0.1:7070");
  }
  self->thread_ = start_thread("control", self->logger_, [&control = *self] { control.run(); });
  return self;
}

WorkerControl::WorkerControl(WorkerControlOptions options, WorkerControlListener& listener, Logger logger, EventFd wake)
    : options_(std::move(options)),
      listener_(listener),
      logger_(logger),
      noise_(std::move(logger), kNoiseLines, kNoiseIntervalMs),
      wake_(std::move(wake)),
      context_(1),
      socket_(context_, zmq::socket_type::dealer),
      waking_(options_.heartbeat_ms + kLongestDelayMs) {}

WorkerControl::~WorkerControl() {
  stopping_.store(true, std::memory_order_release);
  wake_.notify();
  if (thread_.joinable()) thread_.join();
  socket_.set(zmq::sockopt::linger, kLingerMs);
  socket_.close();
  context_.close();
}

void WorkerControl::send(const ControlMessage& message) {
  {
    const std::lock_guard lock(mutex_);
    if (std::string lost = outbox_.push(message); !lost.empty()) lost_ = std::move(lost);
  }
  wake_.notify();
}

std::optional<std::string> WorkerControl::refused() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

bool WorkerControl::transmit(const ControlMessage& message) {
  const std::vector<std::byte> bytes = encode_control(message);
  zmq::message_t frame(bytes.data(), bytes.size());
  return send_now(socket_, frame, false);
}

void WorkerControl::flush() {
  if (coordinator_ == 0) return;
  while (true) {
    ControlOutbox::Waiting next;
    {
      const std::lock_guard lock(mutex_);
      if (outbox_.next() == nullptr) return;
      next = *outbox_.next();
    }
    // What fails is tried again at the next turn.
    if (!transmit(Heartbeat{options_.incarnation, {}, {}}) || !transmit(next.message)) return;
    const std::lock_guard lock(mutex_);
    outbox_.sent(next.number);
  }
}

void WorkerControl::tell_lost(std::uint64_t now_ms) {
  std::string lost;
  {
    const std::lock_guard lock(mutex_);
    lost.swap(lost_);
  }
  if (lost.empty()) return;
  noise_.warn("too much waits for the coordinator at " + options_.coordinator + "; it will not hear " + lost, now_ms);
}

void WorkerControl::beat(std::uint64_t now_ms) {
  if (coordinator_ == 0) {
    transmit(WorkerHello{options_.name, options_.incarnation, options_.host, options_.bandwidth, options_.exclusive});
  } else {
    transmit(Heartbeat{options_.incarnation, listener_.progress(), listener_.paces()});
  }
  const bool silent = waking_.at(now_ms) > heard_waking_ms_ + options_.peer_timeout_ms;
  if (silent && !warned_) {
    logger_->warn(
        "the coordinator at {} has not been heard for {} ms; running jobs go on, new ones wait for it{}",
        options_.coordinator, now_ms - heard_ms_,
        ever_met_ ? "" : " (server 0 is the coordinator; without servers, a worker with [worker] serve_coordinator)");
  }
  if (!silent && warned_) logger_->info("the coordinator at {} is heard again", options_.coordinator);
  warned_ = silent;
  connected_.store(!silent && coordinator_ != 0, std::memory_order_relaxed);
}

void WorkerControl::handle(ControlMessage message) {
  if (const auto* reply = std::get_if<HelloReply>(&message)) {
    const bool other = coordinator_ != 0 && coordinator_ != reply->coordinator_incarnation;
    if (coordinator_ == 0) logger_->info("the coordinator at {} knows this worker", options_.coordinator);
    coordinator_ = reply->coordinator_incarnation;
    ever_met_ = true;
    connected_.store(true, std::memory_order_relaxed);
    if (other) listener_.on_coordinator_restarted();
    return;
  }
  if (const auto* reply = std::get_if<HeartbeatReply>(&message)) {
    if (coordinator_ == 0 || reply->coordinator_incarnation == coordinator_) return;
    logger_->warn("the coordinator was restarted or had given this worker up; saying hello again");
    coordinator_ = 0;
    transmit(WorkerHello{options_.name, options_.incarnation, options_.host, options_.bandwidth, options_.exclusive});
    listener_.on_coordinator_restarted();
    return;
  }
  const auto* error = std::get_if<ControlError>(&message);
  if (error && error->code == ErrorCode::kUnknownKind) {  // it is older than this program, and does without
    return logger_->warn("the coordinator at {}: {}", options_.coordinator, error->message);
  }
  listener_.on_control(std::move(message));
}

void WorkerControl::receive_batch(std::uint64_t now_ms) {
  for (int i = 0; i < kBatch; ++i) {
    zmq::message_t frame;
    if (receive_frames(socket_, {&frame, 1}) == 0) return;
    heard_ms_ = now_ms;
    heard_waking_ms_ = waking_.at(now_ms);
    if (!ever_met_ && is_lane_reply(bytes_of(frame))) {
      const std::lock_guard lock(mutex_);
      refused_ = lane_as_coordinator("[worker]", options_.coordinator);
      continue;
    }
    Result<ControlMessage> message = decode_control(bytes_of(frame));
    if (message) {
      handle(std::move(*message));
      continue;
    }
    noise_.warn("the coordinator at " + options_.coordinator + ": " + message.error().message, now_ms);
    // Trainers that wait for a coordinator of another release would wait in vain.
    if (message.error().code == ErrorCode::kProtocolVersion) {
      listener_.on_control(ControlError{message.error().code, message.error().message, {}});
    }
  }
}

void WorkerControl::run() {
  heard_ms_ = steady_ms();
  heard_waking_ms_ = waking_.at(heard_ms_);
  std::uint64_t next_beat = 0;
  while (!stopping_.load(std::memory_order_acquire)) {
    const std::uint64_t before = steady_ms();
    if (before >= next_beat) {
      beat(before);
      // A hello is repeated faster: at the start the connection is not there yet.
      next_beat =
          before + (coordinator_ == 0 ? std::min<std::uint64_t>(options_.heartbeat_ms, 100) : options_.heartbeat_ms);
    }
    zmq::pollitem_t items[2] = {{socket_.handle(), 0, ZMQ_POLLIN, 0}, {nullptr, wake_.fd(), ZMQ_POLLIN, 0}};
    const std::uint64_t now = steady_ms();
    zmq_poll(items, 2, next_beat > now ? static_cast<long>(next_beat - now) : 0);
    if (items[1].revents != 0) wake_.drain();
    const std::uint64_t woken = steady_ms();
    waking_.at(woken);
    receive_batch(woken);
    flush();
    tell_lost(steady_ms());
  }
  flush();
}

}  // namespace tributary
