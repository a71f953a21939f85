#include "server/coordinator/coordinator.h"

#include <unistd.h>

#include <chrono>
#include <future>
#include <utility>

#include "common/base/clock.h"
#include "common/config/job_json.h"
#include "common/daemon/daemon_thread.h"
#include "common/security/socket_keys.h"
#include "common/system/host_port.h"
#include "common/system/incarnation.h"
#include "common/wire/codec.h"
#include "common/wire/zmq_util.h"
#include "server/coordinator/cluster/lane_address.h"

namespace tributary {
namespace {

constexpr std::chrono::seconds kOrderPatience{5};

// So that its trainers hear of it.
std::string job_named_in(const ControlMessage& message) {
  const auto* join = std::get_if<JoinJob>(&message);
  if (!join) return "";
  const auto config = job_from_json(join->job_json);
  return config ? config->name : "";
}

Error elsewhere(const CoordinatorSeat& seat) {
  const std::string holder = seat.holder_in_words();
  return {ErrorCode::kUnavailable, holder.empty()
                                       ? "no server has the coordinator now; try again in a moment"
                                       : "this server does not have the coordinator: " + holder + " has it; ask there"};
}

}  // namespace

Result<std::unique_ptr<Coordinator>> Coordinator::start(const CoordinatorSettings& settings, JobRegistry* registry,
                                                        Logger logger) {
  Result<EventFd> wake = EventFd::create(), written = EventFd::create();
  if (!wake || !written) return tl::unexpected((wake ? written : wake).error());
  const bool alone = settings.places.size() < 2;
  std::vector<JobRecord> records;
  SeatTerms kept;
  if (registry) {
    const Result<SeatTerms> terms = registry->terms();
    if (!terms) return tl::unexpected(terms.error());
    kept = *terms;
  }
  if (registry && alone) {
    Result<std::vector<JobRecord>> stored = registry->records();
    if (!stored) return tl::unexpected(stored.error());
    records = std::move(*stored);
  }
  std::unique_ptr<Coordinator> self(
      new Coordinator(registry, std::move(logger), std::move(*wake), std::move(*written)));
  if (Status bound = self->bind(settings); !bound) return tl::unexpected(bound.error());
  self->options_.servers = settings.servers;
  self->options_.peer_timeout_ms = settings.peer_timeout_ms;
  self->options_.home = settings.home;
  // The list may have had other servers before.
  self->options_.moved = alone && kept.owned != kept.promised;
  self->own_term_ = kept.promised;
  if (registry) {
    self->records_ = std::make_unique<OrderThread>(
        "registry", kMaxRecords, [logger = self->logger_](const std::string& line) { logger->critical(line); });
  }
  if (alone) {
    self->begin(std::move(records));
  } else {
    auto links = SeatLinks::open(self->context_, settings.places, settings.home, settings.credentials, self->logger_);
    if (!links) return tl::unexpected(links.error());
    self->links_ = std::move(*links);
    self->heartbeat_ms_ = settings.heartbeat_ms;
    const auto places = static_cast<std::uint16_t>(settings.places.size());
    self->seat_.emplace(CoordinatorSeat::Options{settings.home, places, settings.peer_timeout_ms}, kept.promised,
                        self->now_ms());
  }
  self->thread_ = start_thread("coordinator", self->logger_, [&coordinator = *self] { coordinator.run(); });
  return self;
}

Coordinator::Coordinator(JobRegistry* registry, Logger logger, EventFd wake, EventFd written)
    : registry_(registry),
      logger_(logger),
      noise_(std::move(logger)),
      orders_(std::move(wake), kMaxOrders),
      written_(std::move(written)),
      context_(1),
      socket_(context_, zmq::socket_type::router) {}

// With another incarnation: whoever knows the core before takes this one for a new process, and says hello.
void Coordinator::begin(std::vector<JobRecord> records) {
  name_core();
  options_.job_id_seed = random_incarnation();
  core_ = std::make_unique<CoordinatorCore>(options_, std::move(records), static_cast<CoordinatorOutput&>(*this));
  holds_.store(true, std::memory_order_release);
}

void Coordinator::name_core() {
  options_.incarnation = random_incarnation();
  current_.store(options_.incarnation, std::memory_order_release);
}

Status Coordinator::bind(const CoordinatorSettings& settings) {
  const Credentials& credentials = settings.credentials;
  if (Status free = check_ipc_free(settings.address); !free) return free;
  set_common_options(socket_, kMaxControlBytes, kHighWater);
  if (credentials.own) {
    // The first server's key is the coordinator's by name, and in nobody's folder.
    auto keys =
        AuthorizedKeys::open(credentials.authorized, {credentials.own->identity, credentials.coordinators.front()},
                             [logger = logger_](const std::string& line) { logger->warn(line); });
    if (!keys) return tl::unexpected(keys.error());
    authorized_ = std::move(*keys);
    const auto decide = [this](const Admission::Shown& shown) -> Result<std::string> {
      if (authorized_->find(shown.key)) return shown.key;
      return fail(ErrorCode::kInvalidArgument, "its key " + shown.key + " is not among the authorized ones");
    };
    accept_with(socket_, *credentials.own);
    ConnectionLimits limits;
    limits.of_key = [](const std::string&) { return static_cast<std::size_t>(2 * Peers::kMaxProcessesOfKey); };
    auto admission = Admission::start(context_, socket_, "the coordinator", decide, limits, logger_);
    if (!admission) return tl::unexpected(admission.error());
    admission_ = std::move(*admission);
  }
  const Result<std::string> bound = bind_endpoint(socket_, settings.address);
  if (!bound) return tl::unexpected(bound.error());
  endpoint_ = *bound;
  local_endpoint_ = advertised_endpoint(*bound, "");
  ipc_path_ = ipc_path(*bound).value_or("");
  return {};
}

Coordinator::~Coordinator() {
  if (thread_.joinable()) {
    stopping_.store(true, std::memory_order_release);
    orders_.rouse();
    thread_.join();
  }
  records_.reset();
  admission_.reset();
  links_.reset();
  socket_.close();
  context_.close();
  if (!ipc_path_.empty()) ::unlink(ipc_path_.c_str());
}

void Coordinator::run() {
  std::uint64_t next_tick = 0;
  while (!stopping_.load(std::memory_order_acquire)) {
    zmq::pollitem_t items[3] = {{socket_.handle(), 0, ZMQ_POLLIN, 0},
                                {nullptr, orders_.fd(), ZMQ_POLLIN, 0},
                                {nullptr, written_.fd(), ZMQ_POLLIN, 0}};
    const std::uint64_t before = steady_ms();
    const long wait = next_tick > before ? static_cast<long>(next_tick - before) : 0;
    zmq_poll(items, 3, wait);
    receive_batch();
    orders_.run();
    written_.run();
    const std::uint64_t now = steady_ms();
    if (now >= next_tick) {
      const std::lock_guard lock(mutex_);
      refresh_keys(now_ms());
      tick_seat(now_ms());
      if (core_) core_->tick(now_ms());
      noise_.tick(now);
      if (draining_.load(std::memory_order_acquire)) {
        if (core_) core_->drain(now_ms());  // again in every tick: a job may have been opening when the order came
        drained_.store(!core_ || core_->idle(), std::memory_order_release);
      }
      next_tick = now + kTickMs;
    }
  }
}

std::uint64_t Coordinator::now_ms() {
  const std::uint64_t steady = steady_ms(), waking = clock_.at(steady);
  missed_ms_.store(steady - waking, std::memory_order_relaxed);
  return waking;
}

void Coordinator::receive_batch() {
  for (int i = 0; i < kBatch; ++i) {
    zmq::message_t received[2];  // routing id, message
    const int frames = receive_frames(socket_, received) - 1;
    if (frames < 1) return;
    if (admission_) admission_->heard(std::span(received).subspan(1, 1));
    messages_.add();
    const std::uint64_t now = now_ms();
    const Result<PeerId> from = peer_from_routing_id(bytes_of(received[0]));
    if (!from) {
      malformed_.add();
      noise_.warn(from.error().message, now);
      continue;
    }
    Result<ControlMessage> message = decode_control(bytes_of(received[1]));
    if (frames != 1) {
      message = fail(ErrorCode::kMalformed,
                     "a control message has 1 frame, this one had " + std::to_string(frames) +
                         "; the coordinator's port takes control messages only, gradients go to the lanes");
    }
    const std::lock_guard lock(mutex_);
    std::string job;
    if (message) {
      if (Status permitted = permit(*from, received[1], *message); !permitted) {
        job = job_named_in(*message);
        message = tl::unexpected(permitted.error());
      }
    }
    if (!message) {
      malformed_.add();
      noise_.warn("refused a control message: " + message.error().message, now);
      send(*from, ControlError{message.error().code, message.error().message, job});
    } else if (!report_instead(*from, *message, now)) {
      core_->on_message(*from, *message, now);
    }
  }
}

// A key may have been revoked since its connection was made.
Status Coordinator::permit(PeerId from, const zmq::message_t& frame, const ControlMessage& message) {
  if (!authorized_) return {};
  const std::string key = key_of(frame);
  const std::optional<Identity> who = authorized_->find(key);
  if (!who) return fail(ErrorCode::kInvalidArgument, "the key " + key + " is no longer authorized");
  if (!core_) return check_permitted(*who, message, {});
  const std::optional<std::uint64_t> process = process_in(message);
  return check_permitted(*who, message,
                         {core_->key_at(from), process ? core_->key_of(*process) : std::optional<std::string>()});
}

void Coordinator::refresh_keys(std::uint64_t now_ms) {
  if (!authorized_ || steady_ms() < refresh_ms_ + kRefreshKeysMs) return;
  refresh_ms_ = steady_ms();
  for (const Identity& gone : authorized_->refresh()) {
    const std::string reason = "the key of " + in_words(gone) + " was revoked";
    logger_->warn("{}", reason);
    if (core_) core_->expel(gone.key, reason, now_ms);
  }
}

// ---- Which server has the coordinator ----

void Coordinator::tick_seat(std::uint64_t now) {
  if (!seat_) return;
  links_->tick(now);
  for (const SeatReport& m : links_->receive()) hear(m, now);
  if (now >= report_ms_ + heartbeat_ms_) {
    report_ms_ = now;
    links_->send(report(now));
  }
  if (draining_.load(std::memory_order_acquire)) return;
  if (const auto term = seat_->stand(now)) take(*term);
}

SeatReport Coordinator::report(std::uint64_t now) const {
  SeatReport report = seat_->report(now);
  if (seat_->holds()) report.admin = admin_;
  return report;
}

void Coordinator::hear(const SeatReport& m, std::uint64_t now) {
  seat_->on(m, now);
  if (core_ && !seat_->holds()) leave();
}

// Another server has taken the coordinator, which this one could not know: orders for the disk that wait are void.
void Coordinator::leave() {
  failures_ = 0;
  holds_.store(false, std::memory_order_release);
  name_core();
  core_.reset();
  log("this server does not have the coordinator any more", LogLevel::kWarning);
}

// Returns whether this server answers by telling who has the coordinator.
bool Coordinator::report_instead(PeerId from, const ControlMessage& message, std::uint64_t now) {
  if (const auto* m = std::get_if<SeatReport>(&message)) {
    if (!seat_) return true;
    hear(*m, now);
    send(from, report(now));  // this server's own connection to the other one may not be there
    return true;
  }
  const auto* hello = std::get_if<ServerHello>(&message);
  if (hello && seat_ && hello->servers == options_.servers && hello->shard.value < options_.servers) {
    seat_->learn(hello->promised);
    if (core_ && !seat_->holds()) leave();
  }
  if (core_) return false;
  send(from, report(now));
  return true;
}

// The registry belongs to this server's next core as it is, unless another server had the coordinator since.
void Coordinator::take(Term term) {
  struct Taken {
    bool moved = false;
    std::vector<JobRecord> records;
    std::vector<std::string> flaws;
  };
  const auto taken = std::make_shared<Taken>();
  on_disk(
      [this, term, taken, known = seat_->term(), unaware = seat_->unaware(), home = options_.home]() -> Status {
        const Result<SeatTerms> before = registry_->terms();
        if (!before) return tl::unexpected(before.error());
        taken->moved = unaware || CoordinatorSeat::moved(*before, known, home);
        if (before->promised > term) return fail(ErrorCode::kStopped, "this server has obeyed a later one");
        if (Status promised = registry_->promise(term); !promised) return promised;
        if (Status owned = taken->moved ? Status() : registry_->own(term); !owned) return owned;
        return registry_->each([&](Result<JobRecord> record) {
          if (record) {
            taken->records.push_back(std::move(*record));
          } else {  // another server may have a copy
            taken->moved = true;
            taken->flaws.push_back(record.error().message);
          }
        });
      },
      [this, term, taken](const Status& saved, std::uint64_t now) {
        if (!saved) {
          log("this server cannot take the coordinator: " + saved.error().message, LogLevel::kError);
          return seat_->failed(now);
        }
        options_.known = {.heard_ms = seat_->last_heard(now), .since_ms = now, .given_up = {}};
        if (!seat_->took(term, taken->moved)) return;
        options_.moved = taken->moved;
        options_.term = own_term_ = term;
        for (const std::string& flaw : taken->flaws) log("a record is left out: " + flaw, LogLevel::kWarning);
        begin(std::move(taken->records));
        log("this server has the coordinator now, in term " + std::to_string(term.value), LogLevel::kWarning);
        report_ms_ = 0;
      });
}

std::string Coordinator::holder_in_words() const {
  const std::lock_guard lock(mutex_);
  return seat_ ? seat_->holder_in_words() : std::string();
}

void Coordinator::tell_admin(std::string address) {
  const std::lock_guard lock(mutex_);
  admin_ = std::move(address);
}

void Coordinator::send(PeerId to, const ControlMessage& message) {
  const std::vector<std::byte> bytes = encode_control(message);
  zmq::message_t id = routing_id_of(to);
  if (!send_now(socket_, id, true)) {
    // The peer is gone or takes nothing: its heartbeats will be missed, and the core then acts on that. While
    // everything is being stopped it is what one expects.
    noise_.log(draining_.load(std::memory_order_acquire) ? spdlog::level::debug : spdlog::level::warn,
               "dropped a control message: its receiver is gone", steady_ms());
    return;
  }
  zmq::message_t body(bytes.data(), bytes.size());
  send_now(socket_, body, false);
}

void Coordinator::save(const JobRecord& record) {
  on_disk([this, record] { return registry_->save(record); },
          [this, job = record.job](const Status& saved, std::uint64_t now) { core_->saved(job, saved, now); });
}

void Coordinator::remove(JobId job) {
  on_disk([this, job] { return registry_->remove(job); },
          [this, job](const Status& removed, std::uint64_t now) { core_->removed(job, removed, now); });
}

void Coordinator::adopt(std::vector<JobRecord> records) {
  const auto all = std::make_shared<std::vector<JobRecord>>(std::move(records));
  const auto save = [this, all, term = own_term_]() -> Status {
    if (const Status saved = registry_->save_all(*all); !saved) return saved;
    if (const Status owned = term == Term() ? Status() : registry_->own(term); !owned) return owned;
    Result<std::vector<JobRecord>> read = registry_->records();
    if (!read) return tl::unexpected(read.error());
    *all = std::move(*read);
    return {};
  };
  on_disk(save, [this, all](const Status& saved, std::uint64_t now) {
    if (!saved && seat_ && ++failures_ >= kMaxFailures) {
      log("cannot save the registry, and leaves the coordinator to another server: " + saved.error().message,
          LogLevel::kError);
      seat_->give_up(now);
      return leave();
    }
    if (!saved) return core_->not_adopted(saved.error());
    options_.moved = false;
    options_.known = core_->known_servers();
    begin(std::move(*all));
  });
}

void Coordinator::on_disk(Work work, Done done) {
  const std::uint64_t core = options_.incarnation;
  const auto begin_it = [this, core, work = std::move(work)]() -> Status {
    if (core != current_.load(std::memory_order_acquire)) return fail(ErrorCode::kStopped, "its core is gone");
    return work();
  };
  const auto end = [this, core, done = std::move(done)](const Status& status) {
    written_.push([this, core, done, status] {
      const std::lock_guard lock(mutex_);
      if (core == options_.incarnation) done(status, now_ms());  // else the core that ordered it is gone
    });
  };
  const Status taken = records_ ? records_->order(begin_it, end) : Status();
  if (!records_ || !taken) end(taken);
}

void Coordinator::log(const std::string& line, LogLevel level) {
  static constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::info, spdlog::level::warn, spdlog::level::err};
  logger_->log(kLevels[static_cast<std::size_t>(level)], "coordinator: {}", line);
  events_.add({utc_now(), level, line, steady_ms()});
}

void Coordinator::drain() {
  draining_.store(true, std::memory_order_release);
  orders_.rouse();
}

bool Coordinator::drained() const {
  return drained_.load(std::memory_order_acquire);
}

std::vector<CoordinatorCore::JobStatus> Coordinator::jobs() const {
  const std::lock_guard lock(mutex_);
  return core_ ? core_->jobs() : std::vector<CoordinatorCore::JobStatus>();
}

std::vector<CoordinatorCore::PeerStatus> Coordinator::peers() const {
  const std::lock_guard lock(mutex_);
  std::vector<CoordinatorCore::PeerStatus> peers;
  if (core_) peers = core_->peers();
  for (auto& peer : peers) peer.last_heard_ms += missed_ms_.load(std::memory_order_relaxed);  // for steady_ms()
  return peers;
}

LossCounts Coordinator::losses() const {
  const std::lock_guard lock(mutex_);
  return core_ ? core_->losses() : LossCounts();
}

std::vector<EventList::Event> Coordinator::events() const {
  const std::lock_guard lock(mutex_);
  return events_.recent(steady_ms());
}

Error Coordinator::not_here() const {
  const std::lock_guard lock(mutex_);
  return elsewhere(*seat_);
}

Result<std::uint64_t> Coordinator::give(std::function<Result<std::uint64_t>(std::uint64_t now_ms)> order) {
  // Outlives the caller's patience, so that the answer always has a place.
  const auto answer = std::make_shared<std::promise<Result<std::uint64_t>>>();
  std::future<Result<std::uint64_t>> ready = answer->get_future();
  const bool given = orders_.try_push([this, answer, order = std::move(order)] {
    const std::lock_guard lock(mutex_);
    answer->set_value(core_ ? order(now_ms()) : tl::unexpected(elsewhere(*seat_)));
  });
  if (!given) {
    return fail(ErrorCode::kLimit, std::to_string(kMaxOrders) + " orders wait already; try again in a moment");
  }
  if (ready.wait_for(kOrderPatience) != std::future_status::ready) {
    return fail(ErrorCode::kTimeout,
                "the coordinator is busy and has not acted on the order yet; look at the state of "
                "its jobs before you give it again");
  }
  return ready.get();
}

Result<std::uint64_t> Coordinator::save_checkpoint(SaveOrder order) {
  return give([this, order = std::move(order)](std::uint64_t now) { return core_->save_checkpoint(order, now); });
}

Result<std::uint64_t> Coordinator::restore_checkpoint(RestoreOrder order) {
  return give([this, order = std::move(order)](std::uint64_t now) { return core_->restore_checkpoint(order, now); });
}

Result<std::uint64_t> Coordinator::stop_job(std::string name) {
  return give([this, name = std::move(name)](std::uint64_t) {
    return core_->stop_job(name, "an operator asked for it (tributary job stop)");
  });
}

Result<std::uint64_t> Coordinator::deal_job(std::string name, std::set<std::uint16_t> without) {
  return give([this, name = std::move(name), without = std::move(without)](std::uint64_t now) {
    return core_->deal_job(name, without, now);
  });
}

Result<std::uint64_t> Coordinator::remove_job(std::string name) {
  return give([this, name = std::move(name)](std::uint64_t) { return core_->remove_job(name); });
}

std::optional<CheckpointStatus> Coordinator::checkpoint(std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  return core_ ? core_->checkpoint(id) : std::nullopt;
}

Result<std::uint64_t> Coordinator::trace_job(std::string name, std::uint64_t rounds) {
  return give(
      [this, rounds, name = std::move(name)](std::uint64_t now) { return core_->trace_job(name, rounds, now); });
}

Result<std::uint64_t> Coordinator::diagnose(DiagnosisOrder order) {
  return give([this, order = std::move(order)](std::uint64_t now) { return core_->diagnose(order, now); });
}

std::optional<DiagnosisStatus> Coordinator::diagnosis(std::uint32_t id) const {
  const std::lock_guard lock(mutex_);
  return core_ ? core_->diagnosis(id) : std::nullopt;
}

std::optional<TraceStatus> Coordinator::trace(std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  return core_ ? core_->trace(id) : std::nullopt;
}

std::optional<TracePiece> Coordinator::trace_piece(std::uint64_t id, std::size_t number) const {
  const std::lock_guard lock(mutex_);
  return core_ ? core_->trace_piece(id, number) : std::nullopt;
}

}  // namespace tributary
