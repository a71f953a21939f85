#include "session/session.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <thread>

#include "common/base/assert.h"
#include "common/base/checksum.h"
#include "common/config/job_json.h"
#include "session/attach_wait.h"
#include "session/figure_outbox.h"
#include "session/session_memory.h"
#include "session/shared/attach_socket.h"
#include "session/stop_question.h"

namespace tributary {
namespace {

// How long a sleeping wait() goes without asking whether the worker still lives.
constexpr std::chrono::milliseconds kLivenessInterval{50};
// How long the worker may take to say why the view ended.
constexpr std::chrono::milliseconds kReplyTimeout{10'000};
constexpr std::chrono::milliseconds kConnectPause{100};  // between tries to reach a worker that does not listen yet
// Rounds of keep(): the open one, and those before it that a stop may be after or a snapshot may still be named for.
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
  SessionMemory memory;
  // The worker's messages about the end of the view, read from the socket.
  std::optional<AttachStopped> stopped;
  std::optional<Error> failure;
  std::shared_ptr<RecoveryHandle> recovery;
  MembershipConfig membership;
  std::vector<KeptState> kept;          // of the last rounds, oldest first
  std::optional<KeptState> own, first;  // sent by the worker since the view began
  std::vector<Round> given;             // of these, the worker's: a stop may be after an earlier round than a snapshot
  FigureOutbox figures;
  TraceWriter trace;
  StopQuestion stops;
  std::optional<ValueKey> asked;         // of gather()
  std::optional<SharedValues> gathered;  // the last answer
  bool started = false;
  bool gone = false;  // the worker closed the socket
  bool detach_acknowledged = false;
  bool told_end = false;  // the worker has said, after the detach, what came of the job's state

  KeptState state_at_start() const;
  RegionState state() const { return static_cast<RegionState>(memory.node().state.load(std::memory_order_acquire)); }
  Status hold(const KeptState& state);
  Status give(const RankState& state);
  Result<std::shared_ptr<const SealedBytes>> sealed(const State& state, LargePart& large) const;
  void take_state(std::optional<KeptState>& into, const RankState& state, std::vector<FileDescriptor> fds);
  Status await_state(const std::optional<KeptState>& state);
  Status give_for_snapshot();
  void say_answers();
  void take_answer(SharedValues answer);
  Status await_answer(const SharedValues& value);
  void read_socket();
  void sleep_for_words() const;
  Status wait_chunks(std::uint32_t begin, std::uint32_t end, Round round);
  bool all_complete() const;
  Result<StepState> after(const Status& waited);
  StepState when_over();
  Error unavailable() const {
    return {ErrorCode::kUnavailable,
            "worker daemon at " + socket_path + " is gone; start it again, then start the trainers again"};
  }
};

// This rank's state as known when the attach is answered; its large part may be on its way.
KeptState Session::Impl::state_at_start() const {
  if (!reply.state.empty()) return {{reply.resume_round, reply.state}};
  if (!reply.held_state.empty() || !recovery) return {{reply.resume_round, reply.held_state}};
  const auto mine = std::ranges::find(recovery->states, reply.resume_round, &KeptState::round);
  return mine == recovery->states.end() ? KeptState() : *mine;
}

// Gives the state to the worker, which has it when this trainer is gone; after the view it is not needed. (A worker
// that does not read in time lacks this round's, and has the next one's.)
Status Session::Impl::hold(const KeptState& state) {
  if (this->state() > RegionState::kStopRequested) return {};
  const std::vector<int> fds = state.large ? std::vector{state.large->fd()} : std::vector<int>();
  const Status sent = socket.send(HeldState{state.state}, fds);
  return sent || sent.error().code == ErrorCode::kTimeout ? Status{} : tl::unexpected(unavailable());
}

Status Session::Impl::give(const RankState& state) {
  if (std::ranges::find(given, state.round) != given.end()) return {};
  std::erase_if(given, [this](Round round) { return round < kept.front().round(); });
  given.push_back(state.round);
  if (auto sent = socket.send(state); !sent) return tl::unexpected(unavailable());
  return {};
}

// The snapshot may be named for a round that this rank has kept already, so that this is asked for again and again.
Status Session::Impl::give_for_snapshot() {
  const std::uint64_t round = memory.node().snapshot_round.load(std::memory_order_relaxed);
  if (round == 0 || state() > RegionState::kStopRequested) return {};
  const auto wanted = std::ranges::find(kept, Round(round), &KeptState::round);
  return wanted == kept.end() ? Status{} : give(wanted->state);
}

void Session::Impl::take_state(std::optional<KeptState>& into, const RankState& state,
                               std::vector<FileDescriptor> fds) {
  KeptState came{state, nullptr};
  const LargePart large = came.head().large;
  if (large && !fds.empty()) {
    auto bytes = SealedBytes::received(std::move(fds.front()), large.bytes, "what a rank kept");
    if (bytes) came.large = std::move(*bytes);
  }
  into = std::move(came);
}

// The worker sends it, with or without its large part, or the view ends.
Status Session::Impl::await_state(const std::optional<KeptState>& state) {
  while (!state) {
    read_socket();
    if (state) break;
    if (gone) return tl::unexpected(failure ? *failure : unavailable());
    if (this->state() > RegionState::kStopRequested) {
      when_over();
      if (failure) return tl::unexpected(*failure);
      return fail(ErrorCode::kUnavailable, "the view ended before what was kept had come: " +
                                               (stopped ? stopped->reason : std::string("a member was lost")));
    }
    stops.ask();
    sleep_for_words();
  }
  if (!state->complete()) {
    return fail(ErrorCode::kUnavailable,
                "the large part of what was kept of round " + std::to_string(state->round().value) + " is lost");
  }
  return {};
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
    if (auto* message = std::get_if<AttachError>(&(*got)->message)) {
      if (message->code == ErrorCode::kUnknownKind && !asked) {
        figures.give_up();
      } else {
        failure = Error{message->code, message->message};
      }
    }
    if (std::holds_alternative<DetachReply>((*got)->message)) detach_acknowledged = true;
    if (const auto* mine = std::get_if<HeldState>(&(*got)->message)) {
      take_state(own, mine->held, std::move((*got)->fds));
    } else if (const auto* other = std::get_if<RankState>(&(*got)->message)) {
      take_state(first, *other, std::move((*got)->fds));
    }
    if (auto* answer = std::get_if<SharedValues>(&(*got)->message)) take_answer(std::move(*answer));
  }
}

// Sends all answers that this rank knows to the worker: in a view all ranks get the answers of keys that any rank has
// passed, before it gives another value.
void Session::Impl::say_answers() {
  if (!recovery) return;
  recovery->answers.begin(reply.job, reply.resume_round);
  for (const SharedValues* answer : recovery->answers.all()) {
    if (!socket.send(*answer)) return;  // the worker is gone, which the next wait finds
  }
}

void Session::Impl::take_answer(SharedValues answer) {
  if (!answer.complete || asked != answer.key()) return;
  asked.reset();
  if (recovery) recovery->answers.add(answer);
  gathered = std::move(answer);
}

Status Session::Impl::await_answer(const SharedValues& value) {
  bool sent = false;
  while (asked) {
    if (!sent) {
      const Status said = socket.send(value);
      if (!said && said.error().code != ErrorCode::kTimeout) return tl::unexpected(failure ? *failure : unavailable());
      sent = said.has_value();
    }
    read_socket();
    if (!asked) break;
    if (state() > RegionState::kStopRequested) return fail(ErrorCode::kStopped, {});
    if (gone || failure) return tl::unexpected(failure ? *failure : unavailable());
    // Others may wait for a snapshot that waits for what this rank keeps.
    if (Status told = give_for_snapshot(); !told) return told;
    stops.ask();
    sleep_for_words();
  }
  return {};
}

// Sleeps until the worker has sent something, or the liveness interval is over. The caller reads.
void Session::Impl::sleep_for_words() const {
  pollfd item{socket.fd(), POLLIN, 0};
  ::poll(&item, 1, static_cast<int>(kLivenessInterval.count()));
}

// Returns when these chunks have the round's parameters, or with an error.
Status Session::Impl::wait_chunks(std::uint32_t begin, std::uint32_t end, Round round) {
  for (std::uint32_t c = begin; c < end; ++c) {
    const ChunkWord& word = memory.chunk_words()[c];
    while (!word.has(round)) {
      const std::uint32_t seen = memory.node().progress.load(std::memory_order_seq_cst);
      if (word.has(round)) break;
      if (state() > RegionState::kStopRequested) return fail(ErrorCode::kStopped, {});
      const bool woken = memory.node().sleep(seen, kLivenessInterval);
      stops.ask();  // the callback may print; the wait for a round continues in any case
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
  const Round round = memory.round_of(memory.held().front());
  return std::ranges::all_of(memory.held(), [&](const HeldTensor& tensor) {
    const std::span words(memory.chunk_words() + tensor.first_chunk, tensor.end_chunk - tensor.first_chunk);
    return memory.round_of(tensor) == round &&
           std::ranges::all_of(words, [&](const ChunkWord& word) { return word.has(round); });
  });
}

// The reason of an ended view was sent before its state was set, so it is in the socket already; the wait is for slow
// machines.
StepState Session::Impl::when_over() {
  const auto deadline = Clock::now() + kReplyTimeout;
  while (!stopped && !failure && !gone && Clock::now() < deadline) {
    read_socket();
    if (stopped || failure || gone) break;
    sleep_for_words();
  }
  if (state() == RegionState::kRestart) return StepState::kRestart;
  return stopped && stopped->kind == StopKind::kFinished ? StepState::kFinished : StepState::kStopped;
}

Result<StepState> Session::Impl::after(const Status& waited) {
  trace.waited();
  [[maybe_unused]] const Status sent = give_for_snapshot();  // a worker that is gone is found by the next wait
  if (figures.due()) figures.send(socket);
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
  // The view ended cleanly at this very round. If training is complete this rank is about to finish, or its next wait
  // says so; otherwise it should stop here.
  return when_over() == StepState::kFinished ? StepState::kContinue : StepState::kStopRequested;
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
// The closed socket shows the worker the session's end.
Session::~Session() {
  if (!impl_->recovery) return;
  if (!impl_->kept.empty()) impl_->recovery->states = std::move(impl_->kept);
  if (impl_->started) impl_->recovery->lived_in = impl_->reply.job;
  const bool cut = impl_->state() == RegionState::kRestart;
  impl_->recovery->retries.ended(cut, impl_->membership);
}

namespace {

// Daemons and trainers may be started in any order.
Result<AttachSocket> connect_by(Clock::time_point deadline, const SessionOptions& options) {
  StopQuestion stops(options.stops);
  for (bool told = false;; told = true) {
    auto socket = AttachSocket::connect(options.socket);
    if (socket || socket.error().code != ErrorCode::kUnavailable || !options.await_worker || Clock::now() >= deadline) {
      return socket;
    }
    if (stops.ask()) {
      return fail(ErrorCode::kStopped, "told to stop while job '" + options.job.name +
                                           "' waited for the worker daemon: " + socket.error().message);
    }
    if (!told && options.note) options.note("waiting for the worker daemon: " + socket.error().message);
    std::this_thread::sleep_for(kConnectPause);
  }
}

}  // namespace

Result<std::unique_ptr<Session>> Session::attach(SessionOptions options, std::vector<TensorSpec> tensors) {
  if (options.recovery && !options.recovery->opens_device_memory) options.device.reset();
  bool opened = true;
  Result<std::unique_ptr<Session>> attached = attach_once(options, tensors, opened);
  if (opened) return attached;
  const std::string why = "the device memory that the worker lends cannot be opened: " + attached.error().message;
  if (options.note) options.note(why + "; attaching again, with gradients in host memory");
  if (options.recovery) options.recovery->opens_device_memory = false;
  options.device.reset();
  attached = attach_once(options, std::move(tensors), opened);
  if (!attached) return fail(attached.error().code, attached.error().message + " (" + why + ")");
  return attached;
}

Result<std::unique_ptr<Session>> Session::attach_once(const SessionOptions& options, std::vector<TensorSpec> tensors,
                                                      bool& opened) {
  if (auto status = options.topology.validate(); !status) return tl::unexpected(status.error());
  const Clock::time_point began = Clock::now();
  auto socket = connect_by(began + options.attach_timeout, options);
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
  impl->recovery = options.recovery;
  impl->membership = options.job.membership;
  impl->stops = StopQuestion(options.stops);
  if (options.device) request.device = options.device->uuid();
  request.gradients_move = options.gradients_move;
  request.computes_with = options.computes_with;
  request.model_rank = options.model_rank;
  request.hears_waits = true;
  if (options.recovery) request.lived_in = options.recovery->lived_in;
  // A worker that refuses at once may have closed already: its words are worth more than the failed send.
  std::vector<int> kept;
  if (options.recovery && options.recovery->memory) kept.push_back(options.recovery->memory.get());
  const Status sent = impl->socket.send(request, kept);
  AttachWait awaited(options, began);
  auto got = awaited.reply(impl->socket);
  if (!got) {
    if (got.error().code == ErrorCode::kTimeout) return tl::unexpected(awaited.timed_out());
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
  const std::uint32_t nodes = impl->topology.world_size / impl->topology.local_world_size;
  Status held = impl->memory.hold(impl->reply, nodes, impl->topology.local_rank, std::move(request.tensors));
  if (!held) {
    return fail(held.error().code, "worker daemon at " + options.socket + " sent an attach reply that cannot be: " +
                                       held.error().message + "; worker and trainer must be of the same release");
  }
  Status mapped = impl->memory.map(impl->reply, std::move(got->fds), options.device,
                                   options.recovery ? &options.recovery->memory : nullptr, options.socket);
  if (!mapped) return tl::unexpected(mapped.error());
  const Status device = impl->memory.open_device(impl->reply);
  opened = device.has_value();
  // It is still wanted if the view ends before its first round is complete, or a snapshot is named for where it begins.
  if (KeptState begun = impl->state_at_start(); begun.complete()) {
    impl->kept.push_back(std::move(begun));
    // The worker, or the snapshot, lacks what this rank has in memory: either was lost, or the rank was slower.
    if (impl->reply.held_state.empty()) [[maybe_unused]]
      const Status told = impl->hold(impl->kept.back());
    if (impl->reply.state.empty()) [[maybe_unused]]
      const Status given = impl->give(impl->kept.back().state);
  }
  impl->say_answers();
  std::unique_ptr<Session> session(new Session(std::move(impl)));
  if (device) return session;
  // The worker has taken note when this returns: the same rank can attach again at once, without a device.
  [[maybe_unused]] const Status told = session->finish(LeaveKind::kFailed, device.error().message);
  return tl::unexpected(device.error());
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
  return impl_->memory.layout();
}

bool Session::holds(std::size_t tensor) const {
  return impl_->memory.find(tensor) != nullptr;
}
bool Session::gives_values(std::size_t tensor) const {
  const HeldTensor* const mine = impl_->memory.find(tensor);
  return mine && mine->gives_values;
}

std::span<float> Session::initial(std::size_t declared) {
  const HeldTensor& tensor = impl_->memory.at(declared);
  TRIB_ASSERT(tensor.gives_values);
  return impl_->memory.initial(tensor);
}

Status Session::start() {
  if (std::ranges::any_of(impl_->memory.held(), &HeldTensor::gives_values)) {
    if (auto sent = impl_->socket.send(InitialValues{}); !sent) return tl::unexpected(impl_->unavailable());
  }
  const Status waited =
      impl_->wait_chunks(0, static_cast<std::uint32_t>(impl_->memory.layout().chunks()), resume_round());
  impl_->started = waited.has_value();
  if (waited) return {};
  if (waited.error().code != ErrorCode::kStopped) return tl::unexpected(waited.error());
  const StepState over = impl_->when_over();
  if (impl_->failure) return tl::unexpected(*impl_->failure);
  if (impl_->state() == RegionState::kFailed) return tl::unexpected(impl_->unavailable());
  return fail(over == StepState::kRestart ? ErrorCode::kUnavailable : ErrorCode::kStopped,
              "the job ended before its first round: " + stop_reason());
}

bool Session::on_device() const {
  return impl_->memory.on_device();
}

float* Session::gradient_device(std::size_t tensor) {
  TRIB_ASSERT(on_device());
  return impl_->memory.device_gradient(impl_->memory.at(tensor));
}

const float* Session::parameters_device(std::size_t tensor) const {
  TRIB_ASSERT(on_device());
  return impl_->memory.device_parameters(impl_->memory.at(tensor));
}

std::span<float> Session::gradient(std::size_t declared) {
  TRIB_ASSERT(!on_device());
  const HeldTensor& tensor = impl_->memory.at(declared);
  return impl_->memory.gradient(tensor, impl_->memory.round_of(tensor).next());
}

std::span<const float> Session::parameters(std::size_t declared) const {
  TRIB_ASSERT(!on_device());
  return impl_->memory.parameters(impl_->memory.at(declared));
}

Result<std::shared_ptr<const void>> Session::hold_parameters() {
  TRIB_ASSERT(!on_device());
  return impl_->memory.hold_parameters();
}

std::vector<std::span<std::byte>> Session::host_memory() const {
  TRIB_ASSERT(!on_device());
  return impl_->memory.host_memory();
}

// The state's large part, and what it is known by. Bytes that the last state has as well are not copied again.
Result<std::shared_ptr<const SealedBytes>> Session::Impl::sealed(const State& state, LargePart& large) const {
  Checksum128 checksum;
  for (const auto& part : state.large) {
    checksum.add(part.data(), part.size());
    large.bytes += part.size();
  }
  if (!large) return nullptr;
  const auto [high, low] = checksum.value();
  large.high = high;
  large.low = low;
  const auto same =
      std::ranges::find_if(kept, [&](const KeptState& one) { return one.large && one.head().large == large; });
  return same == kept.end() ? SealedBytes::of(state.large, "what this rank keeps") : same->large;
}

Status Session::keep(Round round, const State& state) {
  constexpr std::size_t kMost = kMaxRankState - StateHead::kBytes;
  if (state.bytes.size() > kMost) {
    return fail(ErrorCode::kLimit, "a rank wants to keep " + std::to_string(state.bytes.size()) +
                                       " bytes beside its parameters; at most " + std::to_string(kMost) +
                                       " are kept with a snapshot, and more as its large part");
  }
  StateHead head{{}, state.whole};
  auto large = impl_->sealed(state, head.large);
  if (!large) return tl::unexpected(large.error());
  KeptState next{{round, head.before(state.bytes)}, std::move(*large)};
  std::vector<KeptState>& kept = impl_->kept;
  if (!kept.empty() && kept.back().round() == round) {
    std::erase(impl_->given, round);  // what was given is not the last of it
    kept.pop_back();
  }
  if (kept.size() >= kRoundsKept) kept.erase(kept.begin());
  kept.push_back(std::move(next));
  // A view begins at the last round or the one before: older large parts are of no use but to a snapshot that has them.
  const auto recent = kept.end() - static_cast<std::ptrdiff_t>(std::min(kept.size(), kRoundsOfStop));
  kept.erase(std::remove_if(kept.begin(), recent, [](const KeptState& one) { return one.large != nullptr; }), recent);
  if (Status held = impl_->hold(kept.back()); !held) return held;
  // Ranks without a state wait for it.
  if (first_state() == FirstState::kGiven && round == resume_round()) return impl_->give(kept.back().state);
  return impl_->give_for_snapshot();
}

Round Session::wanted_round() const {
  return Round(impl_->memory.node().snapshot_round.load(std::memory_order_relaxed));
}

FirstState Session::first_state() const {
  return impl_->reply.first;
}

namespace {

Session::Kept kept_of(const KeptState& state) {
  return {state.body(), state.large ? state.large->bytes() : std::span<const std::byte>(), state.head().whole};
}

}  // namespace

Result<Session::Kept> Session::kept() {
  if (!impl_->own) {
    KeptState mine = impl_->state_at_start();
    if (!mine.state.state.empty() && !mine.complete()) {
      if (Status came = impl_->await_state(impl_->own); !came) return tl::unexpected(came.error());
      if (impl_->kept.empty()) impl_->kept.push_back(*impl_->own);
    } else {
      impl_->own = std::move(mine);
    }
  }
  return kept_of(*impl_->own);
}

Result<Session::Kept> Session::kept_of_first() {
  TRIB_ASSERT(first_state() != FirstState::kGiven);
  if (first_state() == FirstState::kNone) return Kept{};
  if (Status came = impl_->await_state(impl_->first); !came) return tl::unexpected(came.error());
  return kept_of(*impl_->first);
}

Status Session::log(Round round, std::string_view name, double mean, std::uint64_t samples) {
  return impl_->figures.add(round, name, mean, samples);
}

void Session::last_round(Round round) {
  impl_->memory.node().last_round.store(round.value, std::memory_order_relaxed);
}

void Session::ready(std::size_t declared, std::uint64_t weight, const StepSettings& settings) {
  const HeldTensor& tensor = impl_->memory.at(declared);
  const Round round = impl_->memory.round_of(tensor).next();
  impl_->trace.ready(impl_->memory.trace(), round);
  impl_->memory.ready(tensor, round, weight, settings);
}

Result<StepState> Session::wait(std::size_t declared) {
  const HeldTensor& tensor = impl_->memory.at(declared);
  return impl_->after(impl_->wait_chunks(tensor.first_chunk, tensor.end_chunk, impl_->memory.round_of(tensor)));
}

Result<StepState> Session::wait() {
  Status waited;
  for (const HeldTensor& tensor : impl_->memory.held()) {
    if (waited) waited = impl_->wait_chunks(tensor.first_chunk, tensor.end_chunk, impl_->memory.round_of(tensor));
  }
  return impl_->after(waited);
}

GateDecision Session::gate(Round round) const {
  return impl_->memory.node().gate[round.value % kGateWords].read(round.value);
}

Result<Session::Gathered> Session::gather(Round round, std::uint32_t index, std::span<const std::byte> value) {
  if (value.size() > kMaxValueBytes) {
    return fail(ErrorCode::kLimit, "a rank gives a value of " + std::to_string(value.size()) + " bytes; at most " +
                                       std::to_string(kMaxValueBytes) + " can be given at once");
  }
  const SharedValues mine{round, index, false, {{topology().rank, {value.begin(), value.end()}}}};
  impl_->gathered.reset();
  impl_->asked = mine.key();
  const Status waited = impl_->await_answer(mine);
  impl_->asked.reset();
  if (impl_->gathered) return Gathered{StepState::kContinue, impl_->gathered->values};
  const Result<StepState> over = impl_->after(waited);
  if (!over) return tl::unexpected(over.error());
  return Gathered{*over, {}};
}

Status Session::gathered(SharedValues answer) {
  answer.complete = true;
  if (answer.bytes() > kMaxAnswerBytes) {
    return fail(ErrorCode::kLimit, answer.key().in_words() + " has " + std::to_string(answer.bytes()) +
                                       " bytes; at most " + std::to_string(kMaxAnswerBytes) + " of all ranks are kept");
  }
  if (!impl_->socket.send(answer)) return tl::unexpected(impl_->unavailable());
  if (impl_->recovery) impl_->recovery->answers.add(std::move(answer));
  return {};
}

std::string Session::stop_reason() const {
  return impl_->stopped ? impl_->stopped->reason : std::string();
}

SessionStats Session::stats() const {
  const NodeHeader& node = impl_->memory.node();
  const auto get = [](const std::atomic<std::uint64_t>& total) { return total.load(std::memory_order_relaxed); };
  return {get(node.reduce_ns), get(node.bytes_pushed),  get(node.bytes_pulled),
          get(node.pulls),     get(node.staleness_sum), get(node.staleness_max)};
}

Status Session::finish(LeaveKind kind, const std::string& message) {
  const std::size_t kept = kind == LeaveKind::kFailed ? 0 : impl_->kept.size();
  for (std::size_t i = kept - std::min(kept, kRoundsOfStop); i < kept; ++i) {
    const KeptState& state = impl_->kept[i];
    // The worker does not have state that was kept after the view had ended.
    if (state.large && impl_->state() > RegionState::kStopRequested) {
      if (!impl_->socket.send(HeldState{state.state}, std::vector{state.large->fd()})) {
        return tl::unexpected(impl_->unavailable());
      }
    }
    if (Status given = impl_->give(state.state); !given) return given;
  }
  impl_->figures.send(impl_->socket);
  if (auto sent = impl_->socket.send(Detach{kind, message}); !sent) return tl::unexpected(impl_->unavailable());
  // No deadline, here and in saved(): a worker that makes room for another job may be busy for long, and writing takes
  // as long as it takes. The worker ends the wait if nothing will come any more.
  while (true) {
    impl_->read_socket();
    if (impl_->detach_acknowledged) return {};
    if (impl_->gone) return tl::unexpected(impl_->unavailable());
    impl_->stops.ask();
    impl_->sleep_for_words();
  }
}

Status Session::saved() {
  if (!impl_->detach_acknowledged) {
    return fail(ErrorCode::kInvalidArgument,
                "the worker daemon has not taken note that this rank left; finish() first");
  }
  while (true) {
    impl_->read_socket();
    if (impl_->told_end) return impl_->failure ? tl::unexpected(*impl_->failure) : Status();
    if (impl_->gone) return tl::unexpected(impl_->unavailable());
    impl_->stops.ask();
    impl_->sleep_for_words();
  }
}

}  // namespace tributary
