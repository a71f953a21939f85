#include "common/daemon/coordinator_link.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/printed.h"
#include "common/security/socket_keys.h"
#include "common/wire/codec.h"
#include "common/wire/lane_reply.h"
#include "common/wire/zmq_util.h"

namespace tributary {
namespace {

constexpr std::uint64_t kPollMs = 100;
constexpr std::uint64_t kBusyPollMs = 20;  // while something waits to be sent
constexpr const char* kRestarted = "was restarted or had given this daemon up";

}  // namespace

Result<std::unique_ptr<CoordinatorLink>> CoordinatorLink::open(CoordinatorLinkOptions options,
                                                               CoordinatorLinkOwner& owner, Logger logger) {
  Result<EventFd> wake = EventFd::create();
  if (!wake) return tl::unexpected(wake.error());
  std::unique_ptr<CoordinatorLink> link(
      new CoordinatorLink(std::move(options), owner, std::move(logger), std::move(*wake)));
  for (const std::string& address : link->options_.coordinators) {
    try {
      zmq::socket_t(link->context_, zmq::socket_type::dealer).connect(address);
    } catch (const zmq::error_t& e) {
      return fail(ErrorCode::kConfig,
                  link->options_.section + " coordinator = \"" + address + "\" cannot be used: " + e.what() +
                      "; it is the address of server 0, such as tcp://10.0.0.1:7070 or ipc:///PATH");
    }
  }
  link->connect();
  return link;
}

CoordinatorLink::CoordinatorLink(CoordinatorLinkOptions options, CoordinatorLinkOwner& owner, Logger logger,
                                 EventFd wake)
    : options_(std::move(options)),
      owner_(owner),
      logger_(logger),
      noise_(std::move(logger)),
      wake_(std::move(wake)),
      context_(1),
      choice_(options_.coordinators.size(), options_.peer_timeout_ms, options_.promised) {
  heard(steady_ms());
}

// A socket of its own for each: nothing of one that the daemon has left is read any more.
void CoordinatorLink::connect() {
  place_.store(choice_.at(), std::memory_order_relaxed);
  refusals_.reset();
  socket_ = zmq::socket_t(context_, zmq::socket_type::dealer);
  set_common_options(socket_, kMaxControlBytes, kHighWater);
  socket_.set(zmq::sockopt::immediate, true);
  if (options_.own) connect_with(socket_, *options_.own, options_.coordinator_keys.at(choice_.at()));
  refusals_.emplace(context_, socket_);
  socket_.connect(address());
  choice_.begin(steady_ms());
  hello_ms_ = 0;
}

void CoordinatorLink::move() {
  socket_.set(zmq::sockopt::linger, 0);
  refusals_.reset();
  socket_.close();
  connect();
  logger_->debug("asking for the coordinator at {}", address());
}

CoordinatorLink::~CoordinatorLink() {
  refusals_.reset();
  if (socket_) socket_.set(zmq::sockopt::linger, kLingerMs);
  socket_.close();
  context_.close();
}

void CoordinatorLink::send(const ControlMessage& message) {
  {
    const std::lock_guard lock(mutex_);
    if (std::string lost = outbox_.push(message); !lost.empty()) lost_ = std::move(lost);
  }
  wake_.notify();
}

std::uint64_t CoordinatorLink::silent_ms() const {
  const std::uint64_t now = steady_ms(), heard = heard_ms_.load(std::memory_order_relaxed);
  return now > heard ? now - heard : 0;
}

std::optional<std::string> CoordinatorLink::refused() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

void CoordinatorLink::refuse(std::string why) {
  const std::lock_guard lock(mutex_);
  refused_ = std::move(why);
}

bool CoordinatorLink::waits() const {
  const std::lock_guard lock(mutex_);
  return outbox_.size() != 0;
}

void CoordinatorLink::drop_waiting() {
  const std::lock_guard lock(mutex_);
  outbox_ = {};
}

void CoordinatorLink::wait(int also_fd) {
  const std::uint64_t at_most =
      joined() && !waits() ? std::min<std::uint64_t>(kPollMs, options_.heartbeat_ms) : kBusyPollMs;
  zmq::pollitem_t items[3] = {
      {socket_.handle(), 0, ZMQ_POLLIN, 0}, {nullptr, wake_.fd(), ZMQ_POLLIN, 0}, {nullptr, also_fd, ZMQ_POLLIN, 0}};
  zmq_poll(items, also_fd < 0 ? 2 : 3, static_cast<long>(at_most));
  if (items[1].revents != 0) wake_.drain();
}

void CoordinatorLink::turn() {
  receive();
  keep_up();
  check_refusals();
  check_silence();
  flush();
  noise_.tick(steady_ms());
}

void CoordinatorLink::keep_up() {
  const std::uint64_t now = steady_ms();
  if (!joined()) {
    if (choice_.tick(now)) move();
    if (now >= hello_ms_ + kHelloMs) say_hello();
  } else if (now >= beat_ms_ + options_.heartbeat_ms) {
    beat();
  }
}

void CoordinatorLink::excuse_silence() {
  heard(steady_ms());
}

void CoordinatorLink::heard(std::uint64_t now_ms) {
  heard_ms_.store(now_ms, std::memory_order_relaxed);
  heard_waking_ms_ = waking_.at(now_ms);
}

bool CoordinatorLink::send_or_drop(const ControlMessage& message) {
  const std::vector<std::byte> bytes = encode_control(message);
  zmq::message_t frame(bytes.data(), bytes.size());
  return send_now(socket_, frame, false);
}

void CoordinatorLink::say_hello() {
  if ((socket_.get(zmq::sockopt::events) & ZMQ_POLLOUT) == 0) return;  // not connected yet: tried again in a moment
  if (send_or_drop(owner_.hello_message())) hello_ms_ = steady_ms();
}

void CoordinatorLink::beat() {
  Heartbeat beat = owner_.heartbeat_message();
  beat.incarnation = options_.incarnation;
  beat.clock_ms = wall_ms();
  send_or_drop(beat);
  beat_ms_ = steady_ms();
}

void CoordinatorLink::flush() {
  if (joined() && waits()) beat();
  while (joined()) {
    ControlOutbox::Waiting next;
    {
      const std::lock_guard lock(mutex_);
      if (outbox_.next() == nullptr) break;
      next = *outbox_.next();
    }
    if (!send_or_drop(next.message)) break;  // tried again at the next turn
    const std::lock_guard lock(mutex_);
    outbox_.sent(next.number);
  }
  std::string lost;
  {
    const std::lock_guard lock(mutex_);
    lost.swap(lost_);
  }
  if (lost.empty()) return;
  noise_.warn("too much waits for the coordinator at " + address() + "; it will not hear " + lost, steady_ms());
}

// Logs a refusal when it changes.
void CoordinatorLink::check_refusals() {
  const std::optional<std::string> why = refusals_->keep_up(address(), options_.own != nullptr, steady_ms());
  if (refusals_->succeeded()) refusal_.clear();
  if (!why || *why == refusal_) return;
  refusal_ = *why;
  logger_->error("the coordinator at {} refuses this daemon: {}", address(), *why);
}

void CoordinatorLink::check_silence() {
  const bool silent = waking_.at(steady_ms()) > heard_waking_ms_ + options_.peer_timeout_ms;
  if (silent == silent_.load(std::memory_order_relaxed)) return;
  if (silent && joined() && choice_.several()) {
    forgotten("has not been heard for " + std::to_string(silent_ms()) + " ms");
    heard(steady_ms());
    if (choice_.leave(steady_ms())) move();
    return;
  }
  silent_.store(silent, std::memory_order_relaxed);
  if (!silent) return logger_->info("the coordinator at {} is heard again", address());
  logger_->warn(
      "the coordinator at {} has not been heard for {} ms; {}{}", listed(options_.coordinators, " or "), silent_ms(),
      options_.silence,
      ever_joined_ ? "" : " (server 0 is the coordinator; without servers, a worker with [worker] serve_coordinator)");
}

void CoordinatorLink::receive() {
  for (int i = 0; i < kBatch; ++i) {
    zmq::message_t body;
    const int frames = receive_frames(socket_, {&body, 1});
    if (frames == 0) return;
    const std::uint64_t now = steady_ms();
    if (!ever_joined_ && is_lane_reply(bytes_of(body))) {
      refuse(lane_as_coordinator(options_.section, address()));
      continue;
    }
    heard(now);
    Result<ControlMessage> message = decode_control(bytes_of(body));
    if (message && frames == 1) {
      on(std::move(*message));
      continue;
    }
    noise_.warn("ignored a message of the coordinator at " + address() + ": " +
                    (message ? "it has " + std::to_string(frames) + " frames" : message.error().message),
                now);
    // Reports a coordinator of another release to the owner, which would wait for it in vain.
    if (!message && message.error().code == ErrorCode::kProtocolVersion) {
      owner_.on_control(ControlError{message.error().code, message.error().message, {}});
    }
  }
}

// A coordinator that answers with another incarnation than the known one, or with 0, does not know this daemon's jobs.
void CoordinatorLink::on(ControlMessage message) {
  const std::uint64_t known = coordinator();
  if (const auto* reply = std::get_if<HelloReply>(&message)) {
    const std::uint64_t incarnation = reply->coordinator_incarnation;
    const Term promised = choice_.promised();
    if (!choice_.obeys(reply->term)) {
      noise_.warn("the coordinator at " + address() + " was replaced by another, and does not know that yet",
                  steady_ms());
      forgotten("was replaced by another");
      if (choice_.leave(steady_ms())) move();
      return;
    }
    if (incarnation == 0) return forgotten(kRestarted);
    if (choice_.promised() > promised) owner_.on_term(reply->term);
    coordinator_.store(incarnation, std::memory_order_release);
    ever_joined_ = true;
    if (known != incarnation) logger_->info("joined the coordinator at {}", address());
    return owner_.on_met(known != 0 && known != incarnation);
  }
  if (const auto* reply = std::get_if<HeartbeatReply>(&message)) {
    if (reply->coordinator_incarnation != known) forgotten(kRestarted);
    return;
  }
  if (const auto* report = std::get_if<SeatReport>(&message)) {
    if (joined()) forgotten("is not there any more");
    if (report->place.value != choice_.at()) {
      noise_.warn("server " + std::to_string(report->place.value) + " is at " + address() + ", which " +
                      options_.section + " coordinator lists as server " + std::to_string(choice_.at()) +
                      "'s: make the lists the same everywhere",
                  steady_ms());
    }
    if (choice_.elsewhere(*report, steady_ms())) move();
    return;
  }
  const auto* error = std::get_if<ControlError>(&message);
  if (error && error->code == ErrorCode::kUnknownKind) {  // it is older than this program, and does without
    return logger_->warn("the coordinator at {}: {}", address(), error->message);
  }
  owner_.on_control(std::move(message));
}

void CoordinatorLink::forgotten(const std::string& why) {
  if (!joined()) return;
  logger_->warn("the coordinator at {} {}; saying hello again", address(), why);
  coordinator_.store(0, std::memory_order_release);
  choice_.begin(steady_ms());
  owner_.on_forgotten();
  say_hello();
}

}  // namespace tributary
