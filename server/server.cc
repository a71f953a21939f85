#include "server/server.h"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/base/printed.h"
#include "common/security/exposure.h"
#include "common/system/host_port.h"
#include "common/system/machine_memory.h"
#include "server/coordinator/cluster/lane_address.h"
#include "server/coordinator/show/coordinator_page.h"
#include "server/coordinator/show/coordinator_status.h"
#include "server/orders/checkpoint_http.h"
#include "server/orders/diagnosis_http.h"
#include "server/orders/order_http.h"
#include "server/orders/trace_http.h"
#include "server/status.h"

namespace tributary {

Result<std::unique_ptr<Server>> Server::start(ServerConfig config, Logger logger) {
  std::unique_ptr<Server> server(new Server(std::move(config), std::move(logger)));
  if (Status started = server->start_parts(); !started) return tl::unexpected(started.error());
  return server;
}

Server::Server(ServerConfig config, Logger logger)
    : config_(std::move(config)), logger_(std::move(logger)), started_ms_(steady_ms()) {
  if (config_.max_memory == 0) config_.max_memory = usable_memory() / 4 * 3;
}

Status Server::start_parts() {
  const Result<Credentials> credentials = credentials_of(config_);
  if (!credentials) return tl::unexpected(credentials.error());
  if (config_.security.insecure && !credentials->own) logger_->warn("{}", kInsecureWarning);
  const auto warn = [logger = logger_](const std::string& line) { logger->warn(line); };
  if (!config_.store_path.empty()) {
    Result<std::unique_ptr<Store>> store = Store::open(config_.store_path, config_.index, warn);
    if (!store) return tl::unexpected(store.error());
    store_ = std::move(*store);
  } else {
    logger_->warn("no store is configured: parameters live as long as this process; set [store] path to keep them");
  }

  if (Status started = start_coordinator(*credentials); !started) return started;
  Result<std::unique_ptr<Control>> control =
      Control::create(config_, *credentials, coordinator_ ? coordinator_->local_endpoint() : "", store_.get(), logger_);
  if (!control) return tl::unexpected(control.error());
  control_ = std::move(*control);

  const std::uint16_t lanes = config_.lanes != 0 ? config_.lanes : default_lanes(std::thread::hardware_concurrency());
  std::vector<Lane*> lane_pointers;
  for (std::uint16_t i = 0; i < lanes; ++i) {
    LaneOptions options{{ShardIndex(config_.index), LaneIndex(i)}, lanes_bind(config_), config_.advertise};
    options.jobs.stop_timeout_ms = config_.stop_timeout_s * 1000ull;
    options.own = credentials->own;
    options.admitted = &control_->admitted();
    options.payload = config_.security.payload;
    Result<std::unique_ptr<Lane>> lane = Lane::start(std::move(options), *control_, logger_);
    if (!lane) return tl::unexpected(lane.error());
    lane_pointers.push_back(lane->get());
    lanes_.push_back(std::move(*lane));
  }

  if (store_) {
    Snapshotter::Options options;
    options.io_bytes_per_s = std::uint64_t{config_.store_io_mb_per_s} * 1'000'000;
    options.shard = ShardIndex(config_.index);
    options.roots = control_->checkpoint_roots();
    snapshotter_ = std::make_unique<Snapshotter>(
        *store_, options, [this](const SnapshotDone& done) { control_->snapshot_finished(done); },
        [this](const WriteCheckpoint& order, const CheckpointDone& done) { control_->checkpoint_written(order, done); },
        [logger = logger_](const std::string& line) { logger->info(line); });
    const auto store_thread = [this](const std::string& name) {
      return std::make_unique<StoreThread>(
          name, *store_, [this](std::function<void()> event) { control_->post(std::move(event)); },
          [logger = logger_](const std::string& line) { logger->critical(line); });
    };
    store_thread_ = store_thread("store");
    record_thread_ = store_thread("records");
    checkpoints_ = std::make_unique<CheckpointService>(
        *store_,
        CheckpointService::Options{ShardIndex(config_.index), options.io_bytes_per_s, control_->checkpoint_roots(),
                                   [snapshotter = snapshotter_.get()](const std::string& directory) {
                                     return snapshotter->writes_into(directory);
                                   }},
        [this](const CheckpointDone& done) { control_->checkpoint_finished(done); },
        [logger = logger_](const std::string& line) { logger->info(line); });
  }
  if (Status readable = start_copies(*credentials, lanes); !readable) {
    logger_->error("other servers cannot have copies of this one's snapshots, nor this one of theirs: {}",
                   readable.error().message);
  }
  control_->start(lane_pointers, {.snapshotter = snapshotter_.get(),
                                  .store = store_thread_.get(),
                                  .records = record_thread_.get(),
                                  .checkpoints = checkpoints_.get(),
                                  .fetches = copy_fetcher_.get(),
                                  .copy_port = copy_port_.get()});

  if (!config_.admin.empty()) {
    ServerParts parts;
    parts.config = &config_;
    parts.started_ms = started_ms_;
    parts.lanes.assign(lane_pointers.begin(), lane_pointers.end());
    parts.control = control_.get();
    parts.coordinator = coordinator_.get();
    parts.snapshotter = snapshotter_.get();
    parts.fetcher = copy_fetcher_.get();
    register_metrics(metrics_, parts);
    metrics_.identify(config_.security.insecure);
    AdminHttp::Handlers handlers;
    handlers.status_json = [parts] { return status_json(parts); };
    handlers.log = [logger = logger_](const std::string& line) { logger->critical(line); };
    handlers.metrics_text = [this] { return metrics_.render(); };
    handlers.healthy = [this] {
      const ControlStatus status = control_->status();
      return status.joined && status.not_saved.empty();
    };
    if (coordinator_) {
      handlers.page = [coordinator = coordinator_.get()](const std::string& nonce) {
        if (!coordinator->holds()) return standby_page(coordinator->not_here().message, nonce);
        return coordinator_page(coordinator_json(*coordinator), nonce);
      };
      handlers.order = [this](const std::string& path, const std::string* body) -> std::optional<AdminHttp::Answer> {
        if (!coordinator_->holds()) return refusal(coordinator_->not_here());
        if (auto traced = answer_trace(*coordinator_, path, body)) return traced;
        if (auto diagnosed = answer_diagnosis(*coordinator_, path, body)) return diagnosed;
        return answer_order(*coordinator_, control_->checkpoint_roots(), path, body);
      };
    }
    Result<std::unique_ptr<AdminHttp>> admin = AdminHttp::start(
        config_.admin, admin_policy(config_.admin, credentials->admin_token, config_.security.admin_hosts),
        std::move(handlers));
    if (!admin) return tl::unexpected(admin.error());
    admin_ = std::move(*admin);
    // Others cannot reach an address of this machine alone, and "everywhere" is none.
    const std::string at = admin_->address();
    if (coordinator_ && !stays_on_machine(at) && !is_everywhere(host_port(at).host)) coordinator_->tell_admin(at);
  }
  return {};
}

Status Server::start_coordinator(const Credentials& credentials) {
  if (!may_coordinate(config_)) return {};
  const std::string& address = config_.coordinators[config_.index];
  // A server on another machine than the list says, because that one was lost.
  if (config_.coordinators.size() > 1 && is_elsewhere(address)) {
    logger_->warn("{} is no address of this machine: this server cannot have the coordinator", address);
    return {};
  }
  Result<std::unique_ptr<Coordinator>> started = Coordinator::start({.address = address,
                                                                     .servers = config_.servers,
                                                                     .peer_timeout_ms = config_.peer_timeout_ms,
                                                                     .credentials = credentials,
                                                                     .home = ShardIndex(config_.index),
                                                                     .places = config_.coordinators,
                                                                     .heartbeat_ms = config_.heartbeat_ms},
                                                                    store_.get(), logger_);
  if (!started) return tl::unexpected(started.error());
  coordinator_ = std::move(*started);
  return {};
}

// Other servers read this one's snapshots, and this one theirs. The port's address follows the lanes'.
Status Server::start_copies(const Credentials& credentials, std::uint16_t lanes) {
  if (!store_ || config_.servers < 2) return {};
  const Result<std::string> address = lane_bind_address(lanes_bind(config_), LaneIndex(lanes));
  if (!address) return tl::unexpected(address.error());
  auto port = CopyPort::start(*store_, {*address, config_.advertise, credentials.own}, logger_);
  if (!port) return tl::unexpected(port.error());
  copy_port_ = std::move(*port);
  CopyFetcher::Options options;
  options.own = credentials.own;
  options.io_bytes_per_s = std::uint64_t{config_.store_io_mb_per_s} * 1'000'000;
  options.trained = [this] {
    std::uint64_t bytes = 0;
    for (const auto& lane : lanes_)
      bytes += lane->counters().push_bytes.value() + lane->counters().answer_bytes.value();
    return bytes;
  };
  copy_fetcher_ = std::make_unique<CopyFetcher>(
      *store_, std::move(options), [this](std::function<void()> event) { control_->post(std::move(event)); },
      [logger = logger_](const std::string& line) { logger->info(line); });
  return {};
}

// The admin port goes first, then the control thread; the store's thread, which waits for lanes to take its loads, before
// the lanes' threads; these before the snapshotter that they hand chunks to, and the lanes themselves, whose pools own
// those chunks' memory, after it.
Server::~Server() {
  admin_.reset();
  if (control_) control_->stop();
  copy_fetcher_.reset();
  store_thread_.reset();
  record_thread_.reset();
  checkpoints_.reset();
  for (const auto& lane : lanes_) lane->stop();
  snapshotter_.reset();
  lanes_.clear();
  coordinator_.reset();
  control_.reset();
  copy_port_.reset();
  store_.reset();
}

std::string Server::ready_line() const {
  nlohmann::ordered_json ready;
  ready["admin"] = admin_ ? admin_->address() : "";
  ready["pid"] = ::getpid();
  ready["lanes"] = nlohmann::ordered_json::array();
  for (const auto& lane : lanes_) ready["lanes"].push_back(lane->endpoint());
  ready["coordinator"] =
      coordinator_ ? advertised_endpoint(coordinator_->endpoint(), config_.advertise) : config_.coordinators.front();
  return "ready " + ready.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Server::waits_for() const {
  if (config_.coordinators.size() == 1) return "the coordinator at " + config_.coordinators.front() + " (server 0)";
  return "the coordinator at one of " + listed(config_.coordinators, " and ");
}

Result<bool> Server::serving() const {
  const ControlStatus status = control_->status();
  if (status.refused) return fail(ErrorCode::kConfig, *status.refused);
  // Its address may come late, or be a mistake: then nobody may have the coordinator.
  const bool aside = !coordinator_ && may_coordinate(config_);
  if (aside && !status.joined && steady_ms() > started_ms_ + kAsideTimeouts * config_.peer_timeout_ms) {
    return fail(ErrorCode::kUnavailable, "[server] coordinator = \"" + config_.coordinators[config_.index] +
                                             "\" is no address of this machine, and no other server of the list has "
                                             "the coordinator; the list is the same, in the same order, everywhere");
  }
  return status.joined;
}

void Server::drain() {
  if (coordinator_) coordinator_->drain();
  control_->drain();
}

// Progress is bytes from nodes and to the disk. A server whose own part is done waits for the others as long as the
// coordinator, which waits for them, is heard.
std::uint64_t Server::progress() const {
  const ControlStatus status = control_->status();
  const bool others = status.jobs.empty() && status.joined && status.silent_ms < config_.peer_timeout_ms;
  if (others || (snapshotter_ && snapshotter_->at_disk())) return steady_ms();
  std::uint64_t moved = snapshotter_ ? snapshotter_->written() : 0;
  if (copy_fetcher_) moved += copy_fetcher_->moved();
  for (const auto& lane : lanes_) moved += lane->counters().messages.value();
  return moved;
}

std::string Server::not_saved() const {
  std::string all;
  for (const NotSaved& lost : control_->status().not_saved) {
    all += (all.empty() ? "" : "; ") + ("job '" + lost.job) + "' at round " + std::to_string(lost.round.value) + ": " +
           lost.reason;
  }
  return all;
}

bool Server::drained() {
  if (!control_->drained() || (coordinator_ && !coordinator_->drained())) return false;
  const std::uint64_t now = steady_ms();
  if (drained_ms_ == 0) drained_ms_ = now;
  return !coordinator_ || now >= drained_ms_ + kDrainGraceMs;
}

}  // namespace tributary
