#include "session/session.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <thread>

#include "common/base/assert.h"
#include "common/base/shared_memory.h"
#include "common/config/job_json.h"
#include "session/attach_region.h"
#include "session/attach_socket.h"
#include "session/futex.h"
#include "session/held_tensors.h"

namespace tributary {
namespace {

// How long a sleeping wait() goes without asking whether the worker still lives.
constexpr std::chrono::milliseconds kLivenessInterval{50};
// How long the worker may take to say why the view ended, or that it has taken note of a detach.
constexpr std::chrono::milliseconds kReplyTimeout{10'000};
constexpr std::chrono::milliseconds kConnectPause{100};  // between tries to reach a worker that does not listen yet
constexpr std::chrono::milliseconds kQuietWait{3'000};   // before it is said that others are waited for
// Of keep(): the open round, and those before it that a stop may be after or a snapshot may still be named for.
constexpr std::size_t kRoundsKept = 3;
constexpr std::size_t kRoundsOfStop = 2;  // a stop is after the last one of them that is complete

using Clock = std::chrono::steady_clock;

}  // namespace

struct Session::Impl {
  Impl(AttachSocket attach_socket, std::string path) : socket(std::move(attach_socket)), socket_path(std::move(path)) {}

  AttachSocket socket;
  std::string socket_path;
  Topology topology;
  AttachReply reply;
  std::optional<HeldTensors> held;  // set by attach()
  const Layout& layout() const { return held->layout(); }
  SharedMemory node_memory, rank_memory;
  SharedMemory ring_memory;               // of AttachReply::ring
  std::vector<FileDescriptor> doorbells;  // one a worker lane
  NodeHeader* node = nullptr;
  ChunkWord* chunk_words = nullptr;
  float* parameters = nullptr;
  TensorWord* tensor_words = nullptr;
  float* gradients = nullptr;
  // By tensor as in the node's layout:
  std::vector<std::vector<std::uint16_t>> lanes_of;  // per tensor: which doorbells to ring
  std::vector<Round> rounds;                         // per tensor: of the last ready()
  // What the worker said when the view ended, read from the socket.
  std::optional<AttachStopped> stopped;
  std::optional<Error> failure;
  std::shared_ptr<DeviceMemoryOpener> opener;
  float* device_gradients = nullptr;  // null: host memory
  float* device_parameters = nullptr;
  std::shared_ptr<SessionKeepsake> keepsake;
  std::vector<RankState> kept;  // of the last rounds, oldest first
  std::vector<Round> given;     // of these, what the worker has: a stop may be after an earlier round than a snapshot
  bool gone = false;            // the worker closed the socket
  bool detach_acknowledged = false;
  bool told_end = false;  // the worker has said, after the detach, what came of the job's state

  // What was lent is closed before the socket is: the worker frees it after that.
  ~Impl() {
    if (device_gradients) opener->close(device_gradients);
    if (device_parameters) opener->close(device_parameters);
  }
  Status map(std::vector<FileDescriptor> fds);
  Status map_ring(FileDescriptor fd);
  Status open_device();
  std::span<const std::byte> state_at_start() const;
  RegionState state() const { return static_cast<RegionState>(node->state.load(std::memory_order_acquire)); }
  Status give(const RankState& state);
  Status give_for_snapshot();
  void read_socket();
  Status wait_chunks(std::uint32_t begin, std::uint32_t end, Round round);
  bool all_complete() const;
  Result<StepState> after(const Status& waited);
  StepState when_over();
  Error unavailable() const {
    return {ErrorCode::kUnavailable,
            "worker daemon at " + socket_path + " is gone; start it again, then start the trainers again"};
  }
};

Status Session::Impl::map(std::vector<FileDescriptor> fds) {
  const auto bad = [&](const std::string& what) {
    return fail(ErrorCode::kMalformed, "worker daemon at " + socket_path + " sent an attach reply with " + what +
                                           "; worker and trainer must be of the same release");
  };
  const std::size_t lanes = reply.lanes;
  if (lanes == 0 || fds.size() != 2 + lanes + (reply.redo ? 1 : 0))
    return bad(std::to_string(fds.size()) + " descriptors for its lanes");
  const bool in_ring = reply.ring.slots != 0;
  if (in_ring) {
    if (!reply.redo) return bad("gradients in a ring that it has not sent");
    if (Status mapped = map_ring(std::move(fds.back())); !mapped) return mapped;
    fds.back() = ring_memory.take_fd();
  }
  if (keepsake) keepsake->memory = reply.redo ? std::move(fds.back()) : FileDescriptor();
  fds.resize(2 + lanes);
  const std::size_t parameters_at = node_parameters_offset(layout().chunks());
  const std::size_t gradients_at = rank_gradients_offset(layout().tensors().size());
  const std::size_t flat_bytes = layout().flat_elements() * sizeof(float);
  const bool on_device = !reply.device.empty();
  if (reply.node_region_bytes != parameters_at + flat_bytes ||
      reply.gradient_region_bytes != gradients_at + (on_device || in_ring ? 0 : flat_bytes)) {
    return bad("regions of another size than this model needs");
  }
  if (on_device && (!opener || reply.device != opener->uuid() || reply.device_bytes < flat_bytes)) {
    return bad("memory of device '" + reply.device + "' that this rank did not ask for");
  }
  auto node_region = SharedMemory::map(std::move(fds[0]), reply.node_region_bytes, "the job's parameters");
  if (!node_region) return tl::unexpected(node_region.error());
  auto rank_region = SharedMemory::map(std::move(fds[1]), reply.gradient_region_bytes, "this rank's gradients");
  if (!rank_region) return tl::unexpected(rank_region.error());
  node_memory = std::move(*node_region);
  rank_memory = std::move(*rank_region);
  node_memory.close_fd();
  rank_memory.close_fd();
  doorbells.assign(std::make_move_iterator(fds.begin() + 2), std::make_move_iterator(fds.end()));

  node = reinterpret_cast<NodeHeader*>(node_memory.data());
  auto* header = reinterpret_cast<RankHeader*>(rank_memory.data());
  if (node->magic != kNodeRegionMagic || header->magic != kRankRegionMagic || node->chunks != layout().chunks() ||
      header->tensors != layout().tensors().size()) {
    return bad("regions that are none of ours");
  }
  chunk_words = reinterpret_cast<ChunkWord*>(node + 1);
  parameters = reinterpret_cast<float*>(node_memory.data() + parameters_at);
  tensor_words = reinterpret_cast<TensorWord*>(header + 1);
  gradients = reinterpret_cast<float*>(rank_memory.data() + gradients_at);

  lanes_of.resize(layout().tensors().size());
  for (std::size_t t = 0; t < lanes_of.size(); ++t) {
    const auto [begin, end] = layout().chunks_of(t);
    for (std::uint32_t c = begin; c < end && lanes_of[t].size() < lanes; ++c) {
      const auto lane = static_cast<std::uint16_t>(layout().owner(ChunkIndex(c)).lane.value % lanes);
      if (std::ranges::find(lanes_of[t], lane) == lanes_of[t].end()) lanes_of[t].push_back(lane);
    }
  }
  rounds.assign(layout().tensors().size(), reply.resume_round);
  return {};
}

Status Session::Impl::map_ring(FileDescriptor fd) {
  auto memory = SharedMemory::map_kept(std::move(fd), "this rank's gradients of the last rounds");
  if (!memory) return tl::unexpected(memory.error());
  const auto& [offset, slot_bytes, slots] = reply.ring;
  const std::uint64_t size = memory->size();
  if (offset > size || slot_bytes < layout().flat_elements() * sizeof(float) || slot_bytes > (size - offset) / slots ||
      offset % alignof(float) != 0 || slot_bytes % alignof(float) != 0) {
    return fail(ErrorCode::kMalformed, "worker daemon at " + socket_path + " gave this rank " + std::to_string(slots) +
                                           " places of " + std::to_string(slot_bytes) +
                                           " bytes for its gradients, in memory that has " + std::to_string(size) +
                                           "; worker and trainer must be of the same release");
  }
  ring_memory = std::move(*memory);
  return {};
}

Status Session::Impl::open_device() {
  if (reply.device.empty()) return {};
  const auto opened_gradients = opener->open(reply.gradient_handle);
  if (!opened_gradients) return tl::unexpected(opened_gradients.error());
  device_gradients = static_cast<float*>(*opened_gradients);
  const auto opened_parameters = opener->open(reply.parameter_handle);
  if (!opened_parameters) return tl::unexpected(opened_parameters.error());
  device_parameters = static_cast<float*>(*opened_parameters);
  return {};
}

std::span<const std::byte> Session::Impl::state_at_start() const {
  if (!reply.state.empty() || !keepsake) return reply.state;
  const auto mine = std::ranges::find(keepsake->states, reply.resume_round, &RankState::round);
  return mine == keepsake->states.end() ? std::span<const std::byte>() : std::span<const std::byte>(mine->state);
}

Status Session::Impl::give(const RankState& state) {
  if (std::ranges::find(given, state.round) != given.end()) return {};
  std::erase_if(given, [this](Round round) { return round < kept.front().round; });
  given.push_back(state.round);
  if (auto sent = socket.send(state); !sent) return tl::unexpected(unavailable());
  return {};
}

// The snapshot may be named for a round that this rank has kept already, so that this is asked for again and again.
Status Session::Impl::give_for_snapshot() {
  const std::uint64_t round = node->snapshot_round.load(std::memory_order_relaxed);
  if (round == 0 || state() > RegionState::kStopRequested) return {};
  const auto wanted = std::ranges::find(kept, Round(round), &RankState::round);
  return wanted == kept.end() ? Status{} : give(*wanted);
}

// Takes what the worker has sent, without waiting.
void Session::Impl::read_socket() {
  while (!gone) {
    auto got = socket.receive_now();
    if (!got) {
      gone = true;
      return;
    }
    if (!*got) return;
    if (auto* message = std::get_if<AttachStopped>(&(*got)->message)) {
      stopped = std::move(*message);
      told_end = detach_acknowledged;
    }
    if (auto* message = std::get_if<AttachError>(&(*got)->message)) failure = Error{message->code, message->message};
    if (std::holds_alternative<DetachReply>((*got)->message)) detach_acknowledged = true;
  }
}

// Sleeps until some chunk is published, the state changes or the liveness interval is over. The caller looks again.
// waiters is raised before the word is compared, and the worker raises the word before it looks at waiters, so no
// wake-up is lost.
Status Session::Impl::wait_chunks(std::uint32_t begin, std::uint32_t end, Round round) {
  for (std::uint32_t c = begin; c < end; ++c) {
    const auto there = [&] { return chunk_words[c].version_plus_one.load(std::memory_order_acquire) > round.value; };
    while (!there()) {
      const std::uint32_t seen = node->progress.load(std::memory_order_seq_cst);
      if (there()) break;
      if (state() > RegionState::kStopRequested) return fail(ErrorCode::kStopped, {});
      node->waiters.fetch_add(1, std::memory_order_seq_cst);
      const bool woken = futex_wait(node->progress, seen, kLivenessInterval);
      node->waiters.fetch_sub(1, std::memory_order_seq_cst);
      if (woken) continue;
      // A round may wait for the very snapshot that was named meanwhile. (A worker that is gone is found below.)
      [[maybe_unused]] const Status sent = give_for_snapshot();
      read_socket();
      if (gone) return tl::unexpected(failure ? *failure : unavailable());
    }
  }
  return {};
}

// Every tensor is at the same round, and its answers are in: a boundary at which a rank may stop.
bool Session::Impl::all_complete() const {
  const Round round = rounds[held->tensors().front()];
  return std::ranges::all_of(held->tensors(), [&](std::size_t t) {
    const auto [begin, end] = layout().chunks_of(t);
    const auto answered = [&](const ChunkWord& word) {
      return word.version_plus_one.load(std::memory_order_acquire) > round.value;
    };
    return rounds[t] == round && std::all_of(chunk_words + begin, chunk_words + end, answered);
  });
}

// The reason of an ended view was sent before its state was set, so it is in the socket already; the wait is for slow
// machines.
StepState Session::Impl::when_over() {
  const auto deadline = Clock::now() + kReplyTimeout;
  while (!stopped && !failure && !gone && Clock::now() < deadline) {
    read_socket();
    if (stopped || failure || gone) break;
    pollfd item{socket.fd(), POLLIN, 0};
    ::poll(&item, 1, static_cast<int>(kLivenessInterval.count()));
  }
  return state() == RegionState::kRestart ? StepState::kRestart : StepState::kStopped;
}

Result<StepState> Session::Impl::after(const Status& waited) {
  [[maybe_unused]] const Status sent = give_for_snapshot();  // a worker that is gone is found by the next wait
  const RegionState now = state();
  if (now == RegionState::kFailed || (waited && now == RegionState::kRestart) ||
      (!waited && waited.error().code == ErrorCode::kStopped)) {
    const StepState over = when_over();
    if (failure) return tl::unexpected(*failure);
    if (now == RegionState::kFailed) return tl::unexpected(unavailable());
    return over;
  }
  if (!waited) return tl::unexpected(waited.error());
  if (now == RegionState::kRunning || !all_complete()) return StepState::kContinue;
  if (now == RegionState::kStopRequested) return StepState::kStopRequested;
  // The view ended in good order at this very round. If everybody finished, this rank is about to; otherwise it should
  // stop here.
  when_over();
  return stopped && stopped->kind == StopKind::kFinished ? StepState::kContinue : StepState::kStopRequested;
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
// Closing the socket tells the worker.
Session::~Session() {
  if (impl_->keepsake && !impl_->kept.empty()) impl_->keepsake->states = std::move(impl_->kept);
}

namespace {

// Daemons and trainers may be started in any order.
Result<AttachSocket> connect_by(Clock::time_point deadline, const SessionOptions& options) {
  for (bool told = false;; told = true) {
    auto socket = AttachSocket::connect(options.socket);
    if (socket || socket.error().code != ErrorCode::kUnavailable || !options.await_worker || Clock::now() >= deadline) {
      return socket;
    }
    if (!told && options.note) options.note("waiting for the worker daemon: " + socket.error().message);
    std::this_thread::sleep_for(kConnectPause);
  }
}

}  // namespace

Result<std::unique_ptr<Session>> Session::attach(const SessionOptions& options, std::vector<TensorSpec> tensors) {
  if (auto status = options.topology.validate(); !status) return tl::unexpected(status.error());
  const Clock::time_point deadline = Clock::now() + options.attach_timeout;
  auto socket = connect_by(deadline, options);
  if (!socket) return tl::unexpected(socket.error());
  auto impl = std::make_unique<Impl>(std::move(*socket), options.socket);

  AttachRequest request;
  request.job_json = to_canonical_json(options.job);
  request.rank = options.topology.rank;
  request.local_rank = options.topology.local_rank;
  request.world_size = options.topology.world_size;
  request.local_world_size = options.topology.local_world_size;
  request.node_rank = options.topology.node_rank;
  request.pid = ::getpid();
  request.tensors = std::move(tensors);
  impl->opener = options.device;
  impl->keepsake = options.keepsake;
  if (options.device) request.device = options.device->uuid();
  request.gradients_move = options.gradients_move;
  request.computes_with = options.computes_with;
  request.model_rank = options.model_rank;
  // A worker that refuses at once may have closed already: its words are worth more than the failed send.
  std::vector<int> kept;
  if (options.keepsake && options.keepsake->memory) kept.push_back(options.keepsake->memory.get());
  const Status sent = impl->socket.send(request, kept);
  auto got = impl->socket.receive(std::min(deadline, Clock::now() + kQuietWait));
  if (!got && got.error().code == ErrorCode::kTimeout && Clock::now() < deadline) {
    if (options.note) {
      options.note("waiting for the other ranks, nodes and servers of job '" + options.job.name +
                   "'; `tributary status` and the worker's /status show who is there");
    }
    got = impl->socket.receive(deadline);
  }
  if (!got) {
    if (got.error().code == ErrorCode::kTimeout) {
      return fail(ErrorCode::kTimeout,
                  "job '" + options.job.name + "' did not come together within " +
                      std::to_string(options.attach_timeout.count()) +
                      " ms; see on the worker's /status and `tributary status` which ranks, nodes or servers "
                      "are missing");
    }
    if (!sent && sent.error().code != ErrorCode::kUnavailable) return tl::unexpected(sent.error());
    if (got.error().code == ErrorCode::kUnavailable) return tl::unexpected(impl->unavailable());
    return tl::unexpected(got.error());
  }
  if (auto* error = std::get_if<AttachError>(&got->message)) return fail(error->code, std::move(error->message));
  auto* reply = std::get_if<AttachReply>(&got->message);
  if (!reply) {
    return fail(ErrorCode::kMalformed,
                "worker daemon at " + options.socket + " answered the attach with another message");
  }
  impl->reply = std::move(*reply);
  impl->topology = {impl->reply.rank, impl->reply.world_size, options.topology.local_rank,
                    options.topology.local_world_size, impl->reply.node_rank};
  if (Status told = impl->topology.validate(); !told) {
    return fail(ErrorCode::kMalformed,
                "worker daemon at " + options.socket + " gave this rank an impossible place: " + told.error().message);
  }
  auto held = HeldTensors::of(impl->reply, impl->topology.world_size / impl->topology.local_world_size,
                              impl->topology.local_rank, std::move(request.tensors));
  if (!held) {
    return fail(held.error().code, "worker daemon at " + options.socket + " sent an attach reply that cannot be: " +
                                       held.error().message + "; worker and trainer must be of the same release");
  }
  impl->held = std::move(*held);
  if (auto status = impl->map(std::move(got->fds)); !status) return tl::unexpected(status.error());
  const Status opened = impl->open_device();
  // It is still wanted if the view ends before its first round is complete, or a snapshot is named for where it begins.
  if (const std::span<const std::byte> begun = impl->state_at_start(); !begun.empty()) {
    impl->kept.push_back({impl->reply.resume_round, {begun.begin(), begun.end()}});
    // The snapshot lacks what this rank has in memory: it was slower than the snapshot, or its worker was lost first.
    if (impl->reply.state.empty()) [[maybe_unused]]
      const Status given = impl->give(impl->kept.back());
  }
  std::unique_ptr<Session> session(new Session(std::move(impl)));
  if (opened) return session;
  // The worker has taken note when this returns: the same rank can attach again at once, without a device.
  [[maybe_unused]] const Status told = session->finish(LeaveKind::kFailed, opened.error().message);
  return tl::unexpected(opened.error());
}

bool Session::fresh() const {
  return !impl_->reply.resume;
}
Round Session::resume_round() const {
  return impl_->reply.resume_round;
}
JobId Session::job() const {
  return impl_->reply.job;
}
const Topology& Session::topology() const {
  return impl_->topology;
}
const Layout& Session::layout() const {
  return impl_->layout();
}

bool Session::holds(std::size_t tensor) const {
  return impl_->held->find(tensor).has_value();
}
bool Session::gives_values(std::size_t tensor) const {
  const std::optional<std::size_t> mine = impl_->held->find(tensor);
  return mine && impl_->held->gives_values(*mine);
}

std::span<float> Session::initial(std::size_t declared) {
  const std::size_t tensor = impl_->held->at(declared);
  TRIB_ASSERT(impl_->held->gives_values(tensor));
  return {impl_->parameters + impl_->layout().tensor_offset(tensor), impl_->layout().tensors()[tensor].elements()};
}

Status Session::start() {
  if (std::ranges::any_of(impl_->held->tensors(),
                          [this](std::size_t tensor) { return impl_->held->gives_values(tensor); })) {
    if (auto sent = impl_->socket.send(InitialValues{}); !sent) return tl::unexpected(impl_->unavailable());
  }
  const Status waited = impl_->wait_chunks(0, static_cast<std::uint32_t>(impl_->layout().chunks()), resume_round());
  if (waited) return {};
  if (waited.error().code != ErrorCode::kStopped) return tl::unexpected(waited.error());
  const StepState over = impl_->when_over();
  if (impl_->failure) return tl::unexpected(*impl_->failure);
  if (impl_->state() == RegionState::kFailed) return tl::unexpected(impl_->unavailable());
  return fail(over == StepState::kStopped ? ErrorCode::kStopped : ErrorCode::kUnavailable,
              "the job ended before its first round: " + stop_reason());
}

bool Session::on_device() const {
  return impl_->device_gradients != nullptr;
}

float* Session::gradient_device(std::size_t tensor) {
  TRIB_ASSERT(on_device());
  return impl_->device_gradients + impl_->layout().tensor_offset(impl_->held->at(tensor));
}

const float* Session::parameters_device(std::size_t tensor) const {
  TRIB_ASSERT(on_device());
  return impl_->device_parameters + impl_->layout().tensor_offset(impl_->held->at(tensor));
}

std::span<float> Session::gradient(std::size_t declared) {
  TRIB_ASSERT(!on_device());
  const std::size_t tensor = impl_->held->at(declared);
  float* flat = impl_->gradients;
  if (const auto& [offset, slot_bytes, slots] = impl_->reply.ring; slots != 0) {
    const std::uint64_t slot = impl_->rounds[tensor].next().value % slots;
    flat = reinterpret_cast<float*>(impl_->ring_memory.data() + offset + slot * slot_bytes);
  }
  return {flat + impl_->layout().tensor_offset(tensor), impl_->layout().tensors()[tensor].elements()};
}

std::span<const float> Session::parameters(std::size_t declared) const {
  TRIB_ASSERT(!on_device());
  const std::size_t tensor = impl_->held->at(declared);
  return {impl_->parameters + impl_->layout().tensor_offset(tensor), impl_->layout().tensors()[tensor].elements()};
}

Status Session::keep(Round round, std::span<const std::byte> state) {
  if (state.size() > kMaxRankState) {
    return fail(ErrorCode::kLimit, "a rank wants to keep " + std::to_string(state.size()) +
                                       " bytes beside its parameters; at most " + std::to_string(kMaxRankState) +
                                       " are kept with a snapshot");
  }
  std::vector<RankState>& kept = impl_->kept;
  if (kept.size() >= kRoundsKept) std::rotate(kept.begin(), kept.begin() + 1, kept.end());
  if (kept.size() < kRoundsKept) kept.emplace_back();
  kept.back().round = round;
  kept.back().state.assign(state.begin(), state.end());
  return impl_->give_for_snapshot();
}

std::span<const std::byte> Session::kept() const {
  return impl_->state_at_start();
}

void Session::last_round(Round round) {
  impl_->node->last_round.store(round.value, std::memory_order_relaxed);
}

void Session::ready(std::size_t declared, std::uint64_t weight, double rate) {
  const std::size_t tensor = impl_->held->at(declared);
  Round& round = impl_->rounds[tensor];
  round = round.next();
  TensorWord& word = impl_->tensor_words[tensor];
  word.weight.store(weight, std::memory_order_relaxed);
  word.rate.store(rate, std::memory_order_relaxed);
  word.round.store(round.value, std::memory_order_release);
  for (const std::uint16_t lane : impl_->lanes_of[tensor]) {
    const std::uint64_t one = 1;
    // A full counter (EAGAIN) means that the lane is about to look anyway.
    [[maybe_unused]] const auto written = ::write(impl_->doorbells[lane].get(), &one, sizeof one);
  }
}

Result<StepState> Session::wait(std::size_t declared) {
  const std::size_t tensor = impl_->held->at(declared);
  const auto [begin, end] = impl_->layout().chunks_of(tensor);
  return impl_->after(impl_->wait_chunks(begin, end, impl_->rounds[tensor]));
}

Result<StepState> Session::wait() {
  Status waited;
  for (const std::size_t t : impl_->held->tensors()) {
    const auto [begin, end] = impl_->layout().chunks_of(t);
    if (waited) waited = impl_->wait_chunks(begin, end, impl_->rounds[t]);
  }
  return impl_->after(waited);
}

GateDecision Session::gate(Round round) const {
  return impl_->node->gate[round.value % kGateWords].read(round.value);
}

std::string Session::stop_reason() const {
  return impl_->stopped ? impl_->stopped->reason : std::string();
}

SessionStats Session::stats() const {
  const NodeHeader& node = *impl_->node;
  const auto get = [](const std::atomic<std::uint64_t>& total) { return total.load(std::memory_order_relaxed); };
  return {get(node.reduce_ns), get(node.bytes_pushed),  get(node.bytes_pulled),
          get(node.pulls),     get(node.staleness_sum), get(node.staleness_max)};
}

Status Session::finish(LeaveKind kind, const std::string& message) {
  const std::size_t kept = kind == LeaveKind::kFailed ? 0 : impl_->kept.size();
  for (std::size_t i = kept - std::min(kept, kRoundsOfStop); i < kept; ++i) {
    if (Status given = impl_->give(impl_->kept[i]); !given) return given;
  }
  if (auto sent = impl_->socket.send(Detach{kind, message}); !sent) return tl::unexpected(impl_->unavailable());
  const auto deadline = Clock::now() + kReplyTimeout;
  while (true) {
    impl_->read_socket();
    if (impl_->detach_acknowledged) return {};
    if (impl_->gone) return tl::unexpected(impl_->unavailable());
    if (Clock::now() >= deadline) {
      return fail(ErrorCode::kTimeout, "worker daemon at " + impl_->socket_path +
                                           " did not take note of the detach within " +
                                           std::to_string(kReplyTimeout.count()) + " ms");
    }
    pollfd item{impl_->socket.fd(), POLLIN, 0};
    ::poll(&item, 1, static_cast<int>(kLivenessInterval.count()));
  }
}

// No deadline: writing takes as long as it takes. The worker ends the wait if nothing will come any more.
Status Session::saved() {
  if (!impl_->detach_acknowledged) {
    return fail(ErrorCode::kInvalidArgument,
                "the worker daemon has not taken note that this rank left; finish() first");
  }
  while (true) {
    impl_->read_socket();
    if (impl_->told_end) return impl_->failure ? tl::unexpected(*impl_->failure) : Status();
    if (impl_->gone) return tl::unexpected(impl_->unavailable());
    pollfd item{impl_->socket.fd(), POLLIN, 0};
    ::poll(&item, 1, static_cast<int>(kLivenessInterval.count()));
  }
}

}  // namespace tributary
