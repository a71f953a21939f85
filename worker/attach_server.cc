#include "worker/attach_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/clock.h"
#include "common/daemon/daemon_thread.h"
#include "common/system/private_folder.h"

namespace tributary {
namespace {

constexpr int kBacklog = 128;
constexpr std::chrono::milliseconds kNoPatience{0};

// Removes a socket file that a dead process left. kUnavailable if the path is in use.
Status clear_path(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return {};
  if (!S_ISSOCK(info.st_mode)) {
    return fail(
        ErrorCode::kUnavailable,
        "cannot listen on " + path + ": there is a file of that name that is no socket; set another [worker] socket");
  }
  const auto listening = AttachSocket::connect(path);
  if (listening || listening.error().code != ErrorCode::kUnavailable) {
    return fail(ErrorCode::kUnavailable,
                "cannot listen on " + path + ": " +
                    (listening ? "another worker daemon is listening there; stop it"
                               : "somebody else listens there (" + listening.error().message + "); remove it") +
                    ", or set another [worker] socket");
  }
  if (::unlink(path.c_str()) != 0) {
    return fail(ErrorCode::kUnavailable, "cannot remove the stale socket " + path + ": " + std::strerror(errno));
  }
  return {};
}

Result<FileDescriptor> listen_on(const std::string& path) {
  const auto address = unix_address(path);
  if (!address) return tl::unexpected(address.error());
  if (Status made = prepare_socket_folder(path); !made) return tl::unexpected(made.error());
  if (Status clear = clear_path(path); !clear) return tl::unexpected(clear.error());
  FileDescriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // The path gets the socket's own mode, less the umask: there is no moment in which somebody else could connect.
  if (!fd || ::fchmod(fd.get(), 0600) != 0 ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(address->storage), address->length) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    return fail(ErrorCode::kUnavailable,
                "cannot listen on " + path + ": " + std::strerror(errno) +
                    "; set a [worker] socket in a directory that exists and may be written to");
  }
  return fd;
}

}  // namespace

Result<std::unique_ptr<AttachServer>> AttachServer::create(AttachServerOptions options, CoordinatorPort& coordinator,
                                                           LanePort& lanes, Logger logger) {
  auto wake = EventFd::create();
  if (!wake) return tl::unexpected(wake.error());
  auto listener = listen_on(options.socket);
  if (!listener) return tl::unexpected(listener.error());
  return std::unique_ptr<AttachServer>(new AttachServer(std::move(options), std::move(*listener), std::move(*wake),
                                                        coordinator, lanes, std::move(logger)));
}

AttachServer::AttachServer(AttachServerOptions options, FileDescriptor listener, EventFd wake,
                           CoordinatorPort& coordinator, LanePort& lanes, Logger logger)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      commands_(std::move(wake)),
      logger_(logger),
      noise_(logger),
      jobs_(std::make_unique<NodeJobs>(options_.jobs, static_cast<TrainerPort&>(*this), coordinator, lanes,
                                       std::move(logger))) {}

AttachServer::~AttachServer() {
  stop();
}

void AttachServer::run() {
  thread_ = start_thread("attach", logger_, [this] { loop(); });
}

void AttachServer::stop() {
  if (stopping_.exchange(true)) return;
  commands_.rouse();
  if (thread_.joinable()) thread_.join();
  jobs_.reset();  // closes what is open on the lanes
  connections_.clear();
  listener_.reset();
  ::unlink(options_.socket.c_str());
}

void AttachServer::lane_failed(std::shared_ptr<NodeJob> job, LaneFailure failure) {
  post([job = std::move(job), failure = std::move(failure)](NodeJobs& jobs, std::uint64_t now) {
    jobs.lane_failed(job, failure, now);
  });
}

void AttachServer::checkpointed(const SnapshotDone& done) {
  post([done](NodeJobs& jobs, std::uint64_t now) { jobs.checkpointed(done, now); });
}

void AttachServer::publish(const PeerAddress& address) {
  post([address](NodeJobs& jobs, std::uint64_t now) { jobs.publish(address, now); });
}

void AttachServer::on_control(ControlMessage message) {
  post([message = std::move(message)](NodeJobs& jobs, std::uint64_t now) { jobs.on_control(message, now); });
}

void AttachServer::on_coordinator_restarted() {
  post([](NodeJobs& jobs, std::uint64_t now) { jobs.coordinator_restarted(now); });
}

Heartbeat AttachServer::heartbeat() const {
  const std::vector<NodeJobSummary> jobs = summaries();
  const NodeTraffic bytes = traffic();
  Heartbeat beat{.progress = progress_of(jobs), .bytes_in = bytes.pulled, .bytes_out = bytes.pushed};
  for (const NodeJobSummary& summary : jobs) {
    if (!summary.job) continue;
    NodePace pace = summary.job->pace();
    pace.node = NodeRank(summary.node);  // as the coordinator knows it, whatever it is in this view
    pace.figures = summary.figures;
    if (!summary.job->plan().on_servers()) pace.rounds = 0;
    beat.paces.push_back(std::move(pace));
  }
  return beat;
}

void AttachServer::drain() {
  post([](NodeJobs& jobs, std::uint64_t now) { jobs.drain(now); });
}

void AttachServer::abandon(std::string reason) {
  post([reason = std::move(reason)](NodeJobs& jobs, std::uint64_t now) { jobs.abandon(reason, now); });
}

std::vector<NodeJobSummary> AttachServer::summaries() const {
  const std::lock_guard lock(mutex_);
  return summaries_;
}

void NodeTraffic::add(const NodeJob& job) {
  for (std::size_t lane = 0; lane < job.lanes(); ++lane) {
    pushed += job.lane_stats(lane).bytes_pushed.value();
    pulled += job.lane_stats(lane).bytes_pulled.value();
  }
}

NodeTraffic AttachServer::traffic() const {
  const std::lock_guard lock(mutex_);
  NodeTraffic traffic = ended_;
  for (const NodeJobSummary& summary : summaries_) {
    if (summary.job) traffic.add(*summary.job);
  }
  return traffic;
}

void AttachServer::take_commands(std::uint64_t now_ms) {
  drained_.store(false, std::memory_order_release);  // until it has been looked at
  commands_.run(*jobs_, now_ms);
}

void AttachServer::accept_all(std::uint64_t now_ms) {
  while (connections_.size() < kMaxConnections) {
    FileDescriptor fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN) {
        noise_.warn(std::string("cannot accept a trainer: ") + std::strerror(errno) + "; it waits; this process has " +
                        std::to_string(connections_.size()) + " connections: raise its limit of open files (ulimit -n)",
                    now_ms);
        pause_.begin(now_ms);
      }
      return;
    }
    last_trainer_ = last_trainer_.next();
    Connection& connection = connections_.try_emplace(last_trainer_, std::move(fd), now_ms).first->second;
    if (connection.process.had_ended()) connection.socket.hang_up();
  }
}

void AttachServer::receive(TrainerId trainer, Connection& connection, std::uint64_t now_ms) {
  for (int i = 0; i < kBatch && !connection.broken; ++i) {
    auto got = connection.socket.receive_now();
    if (!got) {
      connection.broken = got.error().code != ErrorCode::kUnknownKind;
      if (got.error().code == ErrorCode::kUnavailable) return;
      refused_.fetch_add(1, std::memory_order_relaxed);
      noise_.warn("refused a connection on the attach socket (pid " + std::to_string(connection.socket.peer().pid) +
                      "): " + got.error().message,
                  now_ms);
      connection.socket.send(AttachError{got.error().code, got.error().message}, {}, kNoPatience);
      continue;
    }
    if (!*got) return;
    connection.idle_since_ms = now_ms;
    handle(trainer, connection, std::move(**got), now_ms);
  }
}

// Its process has ended: what it said before counts, and what children of it might say does not.
void AttachServer::receive_last(TrainerId trainer, Connection& connection, std::uint64_t now_ms) {
  connection.process.forget();
  connection.socket.hang_up();
  while (!connection.broken) receive(trainer, connection, now_ms);
}

void AttachServer::handle(TrainerId trainer, Connection& connection, AttachReceived received, std::uint64_t now_ms) {
  const AttachMessage& message = received.message;
  if (!connection.trusted) return turn_away(connection, now_ms);
  if (const auto* request = std::get_if<AttachRequest>(&message)) {
    FileDescriptor kept = received.fds.empty() ? FileDescriptor() : std::move(received.fds.front());
    jobs_->attach(trainer, *request, connection.socket.peer().pid, now_ms, std::move(kept));
  } else if (std::holds_alternative<InitialValues>(message)) {
    jobs_->initial_values(trainer);
  } else if (const auto* state = std::get_if<RankState>(&message)) {
    jobs_->rank_state(trainer, *state);
  } else if (const auto* given = std::get_if<HeldState>(&message)) {
    take_held(trainer, connection, *given, std::move(received.fds), now_ms);
  } else if (const auto* said = std::get_if<RankFigures>(&message)) {
    jobs_->figures(trainer, said->figures);
  } else if (const auto* values = std::get_if<SharedValues>(&message)) {
    jobs_->values(trainer, *values, now_ms);
  } else if (const auto* detach = std::get_if<Detach>(&message)) {
    jobs_->detach(trainer, *detach, now_ms);
  } else {
    send(trainer, AttachError{ErrorCode::kMalformed, "this message is one that only worker daemons send"}, {});
    connection.broken = true;
  }
}

// The path's folder and mode keep others out already, unless somebody has opened them.
void AttachServer::turn_away(Connection& connection, std::uint64_t now_ms) {
  const std::string who = in_words(connection.socket.peer()), ours = std::to_string(::geteuid());
  refused_.fetch_add(1, std::memory_order_relaxed);
  noise_.warn("refused " + who + " on the attach socket: this worker serves user " + ours + " alone", now_ms);
  connection.socket.send(
      AttachError{ErrorCode::kInvalidArgument, "the worker at " + options_.socket + " serves user " + ours +
                                                   " and root, and this is " + who +
                                                   "; start trainers and tributary-worker as the same user"},
      {}, kNoPatience);
  connection.broken = true;
}

void AttachServer::take_held(TrainerId trainer, Connection& connection, const HeldState& given,
                             std::vector<FileDescriptor> fds, std::uint64_t now_ms) {
  KeptState state{given.held, nullptr};
  if (const LargePart large = state.head().large) {
    auto memory = SealedBytes::received(fds.empty() ? FileDescriptor() : std::move(fds.front()), large.bytes,
                                        "what a rank keeps");
    if (!memory) {
      send(trainer, AttachError{memory.error().code, memory.error().message}, {});
      connection.broken = true;
      return;
    }
    state.large = std::move(*memory);
  }
  jobs_->held_state(trainer, std::move(state), now_ms);
}

void AttachServer::send(TrainerId trainer, const AttachMessage& message, std::span<const int> fds) {
  const auto at = connections_.find(trainer);
  if (at == connections_.end() || at->second.broken) return;
  if (std::holds_alternative<AttachError>(message)) refused_.fetch_add(1, std::memory_order_relaxed);
  // Waiting is for those who train; nobody else may keep the others from this thread.
  const Status sent =
      at->second.socket.send(message, fds, jobs_->known(trainer) ? AttachSocket::kSendTimeout : kNoPatience);
  if (sent || sent.error().code == ErrorCode::kUnavailable) return;  // its end is read behind its last words
  logger_->warn("gave up a trainer: {}", sent.error().message);
  at->second.broken = true;  // NodeJobs hears of it when this event is done
}

void AttachServer::close_broken(std::uint64_t now_ms) {
  for (auto at = connections_.begin(); at != connections_.end();) {
    Connection& connection = at->second;
    const TrainerId trainer = at->first;
    if (!connection.broken && now_ms - connection.idle_since_ms > kIdleTimeoutMs && !jobs_->known(trainer)) {
      connection.broken = true;
    }
    if (!connection.broken) {
      ++at;
      continue;
    }
    at = connections_.erase(at);
    jobs_->gone(trainer, now_ms);
  }
}

void AttachServer::refresh() {
  auto fresh = jobs_->summaries();
  memory_used_.store(jobs_->budget().used(), std::memory_order_relaxed);
  drained_.store(jobs_->drained(), std::memory_order_release);
  const std::lock_guard lock(mutex_);
  for (const NodeJobSummary& old : summaries_) {
    if (old.job && std::ranges::find(fresh, old.job, &NodeJobSummary::job) == fresh.end()) ended_.add(*old.job);
  }
  summaries_.swap(fresh);
}

void AttachServer::loop() {
  std::vector<pollfd> items;
  std::vector<TrainerId> trainers;
  std::uint64_t next_tick = 0;
  while (!stopping_.load(std::memory_order_acquire)) {
    items.clear();
    trainers.clear();
    items.push_back({commands_.fd(), POLLIN, 0});
    // A descriptor below 0 is left out.
    const bool accepting = connections_.size() < kMaxConnections && pause_.over(steady_ms());
    items.push_back({accepting ? listener_.get() : -1, POLLIN, 0});
    const std::size_t first = items.size();
    for (const auto& [trainer, connection] : connections_) {
      items.push_back({connection.socket.fd(), POLLIN, 0});
      items.push_back({connection.process.fd(), POLLIN, 0});
      trainers.push_back(trainer);
    }
    if (::poll(items.data(), items.size(), kTickMs) < 0) continue;
    const std::uint64_t now = steady_ms();
    if (items[0].revents != 0) take_commands(now);
    for (std::size_t i = 0; i < trainers.size(); ++i) {
      const bool said = items[first + 2 * i].revents != 0, ended = items[first + 2 * i + 1].revents != 0;
      if (!said && !ended) continue;
      Connection& connection = connections_.at(trainers[i]);
      ended ? receive_last(trainers[i], connection, now) : receive(trainers[i], connection, now);
      if (connection.broken) jobs_->gone(trainers[i], now);
    }
    if (items[1].revents != 0) accept_all(now);
    close_broken(now);
    if (now >= next_tick) {
      jobs_->tick(now);
      noise_.tick(now);
      next_tick = now + kTickMs;
    }
    refresh();
  }
  take_commands(steady_ms());  // last words of whoever stops the server
}

}  // namespace tributary
