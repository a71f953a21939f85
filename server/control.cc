// The control thread's loop; control_jobs.cc acts on jobs.
#include "server/control.h"

#include <utility>

#include "common/base/clock.h"
#include "common/daemon/daemon_thread.h"
#include "common/system/host_identity.h"
#include "common/system/incarnation.h"
#include "server/copies/copy_port.h"
#include "server/diagnosis.h"
#include "server/store/checkpoint_service.h"

namespace tributary {
namespace {

constexpr std::uint32_t kControlNoiseLines = 5;

}  // namespace

Result<std::unique_ptr<Control>> Control::create(const ServerConfig& config, const Credentials& credentials,
                                                 const std::string& own_coordinator, Store* store, Logger logger) {
  Result<EventFd> wake = EventFd::create();
  if (!wake) return tl::unexpected(wake.error());
  Term promised;
  if (store) {
    const Result<SeatTerms> terms = store->terms();
    if (!terms) return tl::unexpected(terms.error());
    promised = terms->promised;
  }
  const bool several = config.coordinators.size() > 1;
  std::vector<std::string> coordinators = config.coordinators;
  if (!own_coordinator.empty()) coordinators[config.index] = own_coordinator;
  std::unique_ptr<Control> control(
      new Control(config, credentials.own, !own_coordinator.empty(), store, logger, std::move(*wake)));
  auto link = CoordinatorLink::open({.section = "[server]",
                                     .coordinators = std::move(coordinators),
                                     .coordinator_keys = credentials.coordinator_keys(),
                                     .promised = several ? std::optional(promised) : std::nullopt,
                                     .silence = "still trying",
                                     .incarnation = control->incarnation_,
                                     .heartbeat_ms = config.heartbeat_ms,
                                     .peer_timeout_ms = config.peer_timeout_ms,
                                     .own = credentials.own},
                                    *control, std::move(logger));
  if (!link) return tl::unexpected(link.error());
  control->link_ = std::move(*link);
  return control;
}

Control::Control(const ServerConfig& config, std::shared_ptr<const KeyPair> own, bool coordinates, Store* store,
                 Logger logger, EventFd wake)
    : config_(config),
      key_(own ? own->identity.key : std::string()),
      store_(store),
      logger_(logger),
      noise_(std::move(logger), kControlNoiseLines),
      incarnation_(random_incarnation()),
      admitted_(std::move(own)),
      roots_(config.checkpoint_roots, !key_.empty()),
      events_(std::move(wake)),
      jobs_(config_, store, logger_, static_cast<ControlJobsOutput&>(*this)),
      coordinates_(coordinates),
      self_diagnosis_([config](const Diagnose& order,
                               const std::atomic<bool>& stopping) { return diagnose(config, order, stopping); },
                      [this](const Diagnosed& found) { link_->send(found); }, logger_) {}

Control::~Control() {
  stop();
}

void Control::start(std::vector<Lane*> lanes, const Parts& parts) {
  parts_ = parts;
  jobs_.start({lanes.begin(), lanes.end()}, {parts.snapshotter, parts.store, parts.records, parts.fetches});
  lanes_ = std::move(lanes);
  link_->excuse_silence();
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
  while (!stopping_.load(std::memory_order_acquire)) {
    link_->turn();
    jobs_.tick();
    link_->flush();
    const std::uint64_t now = steady_ms();
    admitted_.keep([this](JobId job) { return jobs_.contains(job); });
    if (!link_->connected()) admitted_.measure_no_more();  // no message would report the end
    check_drain(now);
    noise_.tick(now);
    publish();
    link_->wait(events_.fd());
    events_.run();
  }
}

void Control::on_met(bool another) {
  if (another) jobs_.park_all("the coordinator came back as a new process");
  admitted_.measure_no_more();
  if (draining_.load(std::memory_order_acquire)) send(DrainRequest{incarnation_});
}

// Ordered before anything of this coordinator is: its records are saved by the same thread, in order.
void Control::on_term(Term term) {
  if (!store_ || !parts_.records) return;
  parts_.records->run([store = store_, term] { return store->promise(term); },
                      [this](const Status& promised) {
                        if (!promised) logger_->error("cannot keep the term: {}", promised.error().message);
                      });
}

void Control::on_forgotten() {
  jobs_.park_all("the coordinator does not know this server any more");
  link_->drop_waiting();
  admitted_.measure_no_more();
}

void Control::on_control(ControlMessage message) {
  std::visit(
      [&](const auto& m) {
        using M = std::decay_t<decltype(m)>;
        if constexpr (requires { this->on(m); }) {
          on(m);
        } else if constexpr (std::is_same_v<M, DrainDone>) {
          if (draining_.load(std::memory_order_acquire)) end_drain();
        } else if constexpr (std::is_same_v<M, ControlError>) {
          if (!link_->ever_joined() && m.code == ErrorCode::kTopology) {
            link_->refuse("the coordinator refused: " + m.message);
          } else {
            noise_.log(spdlog::level::err, "the coordinator refused: " + m.message, steady_ms());
          }
        } else {
          noise_.warn("the coordinator sent a message that is not for servers", steady_ms());
        }
      },
      message);
}

// Before the coordinator welcomes the nodes.
void Control::on(const OpenJob& m) {
  admitted_.set(m.job, m.view, m.worker_keys);
  jobs_.on(m);
}

// Workers measure before any job is open.
void Control::on(const Diagnose& m) {
  m.measure && !m.over ? admitted_.measure(m.diagnosis, m.worker_keys) : admitted_.measure_no_more();
  self_diagnosis_.on(m);
}

void Control::on(const ServerBook& m) {
  if (parts_.copy_port) parts_.copy_port->admit(m);
  jobs_.on(m);
}

ControlMessage Control::hello_message() {
  ServerHello hello;
  hello.shard = ShardIndex(config_.index);
  hello.servers = config_.servers;
  hello.incarnation = incarnation_;
  hello.bandwidth = config_.bandwidth;
  hello.host = host_identity(config_.host);
  for (const Lane* lane : lanes_) {
    hello.lane_endpoints.push_back(lane->endpoint());
    hello.lane_locals.push_back(lane->link_name());
  }
  if (store_) hello.exclusive = file_identity(config_.store_path);
  hello.key = key_;
  if (parts_.copy_port) hello.copy_endpoint = parts_.copy_port->endpoint();
  hello.plain = config_.security.payload == PayloadSecurity::kPlain;
  hello.promised = link_->promised();
  jobs_.coordinator_is_here(coordinates_ && link_->place() == config_.index);
  jobs_.describe(hello);
  return hello;
}

Heartbeat Control::heartbeat_message() {
  Heartbeat beat;
  beat.progress = jobs_.progress();
  if (parts_.checkpoints) beat.moved = parts_.checkpoints->moved() + parts_.snapshotter->moved();
  if (parts_.fetches) beat.moved += parts_.fetches->dealt();
  for (const Lane* lane : lanes_) {
    beat.bytes_in += lane->counters().push_bytes.value();
    beat.bytes_out += lane->counters().answer_bytes.value();
  }
  return beat;
}

void Control::check_drain(std::uint64_t now) {
  if (!draining_.load(std::memory_order_acquire) || drained()) return;
  if (drain_ms_ == 0) drain_ms_ = now;
  if (now >= drain_due_ms_) {  // again: either message may be lost with a connection
    drain_due_ms_ = now + kDrainAgainMs;
    send(DrainRequest{incarnation_});
  }
  // The coordinator says when nothing is wanted of this server any more: memory may have the only copy of a state until
  // that is a snapshot, and a checkpoint of it may follow.
  if (jobs_.empty() && !link_->connected() && now >= drain_ms_ + kDrainAloneMs) end_drain();
}

// Reports the state that is not saved before the process ends.
void Control::end_drain() {
  jobs_.give_up_parked();
  publish();
  drained_.store(true, std::memory_order_release);
}

void Control::publish() {
  ControlStatus status;
  status.coordinator_incarnation = link_->coordinator();
  status.joined = status.coordinator_incarnation != 0;
  status.refused = link_->refused();
  status.jobs = jobs_.statuses();
  status.not_saved = jobs_.not_saved();
  const std::lock_guard lock(status_mutex_);
  published_ = std::move(status);
}

ControlStatus Control::status() const {
  const std::lock_guard lock(status_mutex_);
  ControlStatus status = published_;
  status.silent_ms = link_->silent_ms();
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

// On the lane's thread: the snapshotter drops chunks that are not expected any more.
void Control::lane_captured(ChunkSnapshot snapshot) {
  parts_.snapshotter->captured(std::move(snapshot));
}

void Control::snapshot_finished(const SnapshotDone& done) {
  post([this, done] { jobs_.snapshot_finished(done); });
}

}  // namespace tributary
