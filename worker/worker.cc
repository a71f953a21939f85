#include "worker/worker.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/doctor/machine_facts.h"
#include "common/security/exposure.h"
#include "common/system/host_identity.h"
#include "common/system/incarnation.h"
#include "common/system/machine_memory.h"
#include "server/coordinator/show/coordinator_page.h"
#include "server/coordinator/show/coordinator_status.h"
#include "server/orders/diagnosis_http.h"
#include "worker/allreduce/replica_checkpoints.h"
#include "worker/diagnosis.h"
#include "worker/local_address.h"
#include "worker/status.h"

namespace tributary {
namespace {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "worker";
}

}  // namespace

Result<std::unique_ptr<Worker>> Worker::start(WorkerConfig config, Logger logger) {
  std::unique_ptr<Worker> worker(new Worker(std::move(config), std::move(logger)));
  if (Status started = worker->start_parts(); !started) return tl::unexpected(started.error());
  return worker;
}

Worker::Worker(WorkerConfig config, Logger logger)
    : config_(config), configured_(std::move(config)), logger_(std::move(logger)) {
  if (config_.max_shared_memory == 0) config_.max_shared_memory = usable_memory() / 2;
  if (config_.lanes == 0) config_.lanes = default_lanes(std::thread::hardware_concurrency());
  config_.lanes = std::min(config_.lanes, kMaxLanes);
}

Status Worker::start_parts() {
  const std::uint64_t incarnation = random_incarnation();
  auto credentials = credentials_of(config_);
  if (!credentials) return tl::unexpected(credentials.error());
  credentials_ = std::move(*credentials);
  if (config_.name.empty()) config_.name = credentials_.own ? credentials_.own->identity.name : host_name();
  if (config_.security.insecure && !credentials_.own) logger_->warn("{}", kInsecureWarning);
  if (config_.serve_coordinator) {
    if (Status started = start_coordinator(); !started) return started;
  }
  AttachServerOptions attach;
  attach.socket = config_.socket;
  attach.jobs.incarnation = incarnation;
  attach.jobs.max_memory = config_.max_shared_memory;
  attach.jobs.peer_timeout_ms = config_.peer_timeout_ms;
  attach.jobs.stop_timeout_ms = config_.stop_timeout_s * 1000ull;
  if (credentials_.own && config_.security.network != "trusted" &&
      (!std::ranges::all_of(config_.coordinators, stays_on_machine) || !stays_on_machine(config_.address))) {
    attach.jobs.no_allreduce =
        "Gloo and NCCL neither encrypt nor know keys, and this cluster has keys. In a network that is private (a "
        "VPN such as WireGuard makes one) say so: [security] network = \"trusted\"";
  }
  auto devices = NodeDevices::of_this_machine(config_, logger_);
  if (!devices) return tl::unexpected(devices.error());
  attach.jobs.devices = devices_ = std::move(*devices);
  auto server = AttachServer::create(attach, *this, *this, logger_);
  if (!server) return tl::unexpected(server.error());
  attach_ = std::move(*server);
  if (Status started = start_lanes(); !started) return started;
  if (Status started = start_control(incarnation); !started) return started;
  attach_->run();
  return config_.admin.empty() ? Status{} : start_admin();
}

Status Worker::start_coordinator() {
  auto coordinator = Coordinator::start({.address = config_.coordinators.front(),
                                         .servers = 0,
                                         .peer_timeout_ms = config_.peer_timeout_ms,
                                         .credentials = credentials_},
                                        nullptr, logger_);
  if (!coordinator) {
    return fail(coordinator.error().code,
                coordinator.error().message +
                    "; with [worker] serve_coordinator = true this worker binds [worker] coordinator itself, so it "
                    "must be an address of this machine, and only one worker of the cluster may do so");
  }
  coordinator_ = std::move(*coordinator);
  logger_->info("serving the coordinator at {}, for all-reduce jobs (no servers)", coordinator_->endpoint());
  return {};
}

Status Worker::start_lanes() {
  for (std::uint16_t i = 0; i < config_.lanes; ++i) {
    WorkerLaneOptions options{.index = i, .lanes = config_.lanes};
    options.stop_timeout_ms = config_.stop_timeout_s * 1000ull;
    options.own = credentials_.own;
    options.local_links = config_.local_transport == LocalTransport::kAuto;
    if (config_.window_bytes != 0) options.window_cap_bytes = config_.window_bytes;
    auto lane = WorkerLane::start(options, *attach_, logger_);
    if (!lane) return tl::unexpected(lane.error());
    lanes_.push_back(std::move(*lane));
  }
  WorkerConfig config = config_;
  if (config.address.empty()) {
    const Result<std::string> found = local_address_towards(config.coordinators.front());
    config.address = found ? *found : host_name();
    if (!found) {
      logger_->warn(
          "{}; other workers of all-reduce jobs are told to reach this one as {}: set [worker] address if that "
          "is wrong",
          found.error().message, config.address);
    }
  }
  auto lane = AllreduceLane::start(std::move(config), *attach_, *this, logger_);
  if (!lane) return tl::unexpected(lane.error());
  allreduce_ = std::move(*lane);
  return {};
}

Status Worker::start_control(std::uint64_t incarnation) {
  WorkerHello hello;
  hello.name = config_.name;
  hello.incarnation = incarnation;
  hello.host = host_identity(config_.host);
  hello.bandwidth = config_.bandwidth;
  hello.exclusive = file_identity(config_.socket);
  if (credentials_.own) hello.key = credentials_.own->identity.key;
  auto control = WorkerControl::start(
      std::move(hello),
      {.section = "[worker]",
       .coordinators = coordinator_ ? std::vector{coordinator_->local_endpoint()} : config_.coordinators,
       .coordinator_keys = credentials_.coordinator_keys(),
       .silence = "running jobs go on, new ones wait for it",
       .incarnation = incarnation,
       .heartbeat_ms = config_.heartbeat_ms,
       .peer_timeout_ms = config_.peer_timeout_ms,
       .own = credentials_.own},
      *attach_,
      [self = DiagnosedWorker{config_, configured_, credentials_.own}](
          const Diagnose& order, const std::atomic<bool>& stopping) { return diagnose(self, order, stopping); },
      logger_);
  if (!control) return tl::unexpected(control.error());
  control_ = std::move(*control);
  return {};
}

Status Worker::start_admin() {
  WorkerParts parts;
  parts.config = &config_;
  parts.started_ms = steady_ms();
  parts.max_memory = config_.max_shared_memory;
  parts.attach = attach_.get();
  parts.control = control_.get();
  parts.coordinator = coordinator_.get();
  parts.devices = devices_.get();
  if (const auto own = local_address_towards(config_.coordinators.front()))
    parts.link_bytes_per_s = stated_bytes_per_s(network_interfaces(), *own).value_or(0.0);
  for (const auto& lane : lanes_) parts.lanes.push_back(lane.get());
  register_metrics(metrics_, parts);
  metrics_.identify(config_.security.insecure);
  AdminHttp::Handlers handlers;
  handlers.status_json = [parts] { return status_json(parts); };
  handlers.log = [logger = logger_](const std::string& line) { logger->critical(line); };
  handlers.metrics_text = [this] { return metrics_.render(); };
  handlers.healthy = [this] { return control_->connected() && broken().empty(); };
  if (coordinator_) {
    handlers.page = [coordinator = coordinator_.get()](const std::string& nonce) {
      return coordinator_page(coordinator_json(*coordinator), nonce);
    };
    handlers.order = [coordinator = coordinator_.get()](const std::string& path, const std::string* body) {
      return answer_diagnosis(*coordinator, path, body);
    };
  }
  auto admin = AdminHttp::start(config_.admin,
                                admin_policy(config_.admin, credentials_.admin_token, config_.security.admin_hosts),
                                std::move(handlers));
  if (!admin) return tl::unexpected(admin.error());
  admin_ = std::move(*admin);
  return {};
}

// The admin endpoint ends first, as it reads the others; then the attach thread, which orders lanes and control. The
// attach server goes last but for the coordinator: lanes and control report to it until their threads have ended.
Worker::~Worker() {
  admin_.reset();
  if (attach_) attach_->stop();
  lanes_.clear();
  allreduce_.reset();
  control_.reset();
}

std::string Worker::ready_line() const {
  nlohmann::ordered_json ready;
  ready["admin"] = admin_ ? admin_->address() : "";
  ready["pid"] = ::getpid();
  ready["socket"] = config_.socket;
  ready["name"] = config_.name;
  ready["lanes"] = lanes_.size();
  if (coordinator_) ready["coordinator"] = coordinator_->endpoint();
  return "ready " + ready.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Worker::waits_for() const {
  return "the coordinator at " + listed(config_.coordinators, " or ") +
         " (server 0; without servers, a worker with [worker] serve_coordinator)";
}

Result<bool> Worker::serving() const {
  if (const auto refused = control_->refused()) return fail(ErrorCode::kConfig, *refused);
  return control_->connected();
}

std::string Worker::broken() const {
  const std::string lost = devices_->lost();
  return lost.empty() ? lost
                      : lost +
                            "; CUDA refuses this process everything from now on: it ends, to be started anew. Its "
                            "trainers attach again when it is back";
}

std::vector<int> Worker::doorbells(bool allreduce) const {
  if (allreduce) return {allreduce_->doorbell()};
  std::vector<int> fds;
  for (const auto& lane : lanes_) fds.push_back(lane->doorbell());
  return fds;
}

void Worker::open(const std::shared_ptr<NodeJob>& job) {
  if (!job->plan().on_servers()) return allreduce_->open(job);
  for (const auto& lane : lanes_) lane->open(job);
}

void Worker::peer_address(const PeerAddress& address) {
  allreduce_->peer_address(address);
}

Result<std::optional<Round>> Worker::newest_checkpoint(const JobConfig& config, const Layout& layout) const {
  if (config_.store_path.empty()) return std::optional<Round>(Round());
  if (allreduce_->jobs_keeping() != 0) return std::optional<Round>();
  const Result<Round> newest = ReplicaCheckpoints(config_.store_path, config, layout).newest();
  if (!newest) return tl::unexpected(newest.error());
  return std::optional<Round>(*newest);
}

void Worker::initial_values(const std::shared_ptr<NodeJob>& job) {
  if (!job->plan().on_servers()) return allreduce_->initial_values(job);
  for (const auto& lane : lanes_) lane->initial_values(job);
}

void Worker::close(const std::shared_ptr<NodeJob>& job, bool keep) {
  if (!job->plan().on_servers()) return allreduce_->close(job, keep);
  for (const auto& lane : lanes_) lane->close(job, keep);
}

void Worker::trace(const std::shared_ptr<NodeJob>& job, const std::vector<std::shared_ptr<TraceBuffer>>& buffers) {
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) lanes_[lane]->trace(job, buffers[lane]);
}

void Worker::drain() {
  attach_->drain();
  if (coordinator_) coordinator_->drain();
}

// Answers; what is owed to servers has its own patience. A node whose part is done waits for the final snapshot as long
// as the coordinator, which waits for that, is heard.
std::uint64_t Worker::progress() const {
  std::uint64_t answers = 0;
  bool running = false;
  for (const NodeJobSummary& summary : attach_->summaries()) {
    if (!summary.job) continue;
    running = true;
    answers += summary.job->answers();
  }
  return running || !control_->connected() ? answers : steady_ms();
}

bool Worker::drained() {
  const bool kept = allreduce_->jobs_keeping() == 0 &&
                    std::ranges::all_of(lanes_, [](const auto& lane) { return lane->jobs_keeping() == 0; });
  if (!attach_->drained() || !kept || (coordinator_ && !coordinator_->drained())) return false;
  const std::uint64_t now = steady_ms();
  if (drained_ms_ == 0) drained_ms_ = now;
  return !coordinator_ || now >= drained_ms_ + kDrainGraceMs;
}

}  // namespace tributary
