// The C interface over tributary::Session. Everything that a caller can do wrong is a status with a sentence: nothing
// here asserts, and no exception leaves.
#include "session/tributary.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/utf8.h"
#include "common/base/version.h"
#include "common/base/weight.h"
#include "session/c_attach.h"
#include "session/c_boundary.h"
#include "session/c_device.h"
#include "session/group_settings.h"
#include "session/session.h"

using tributary::ErrorCode;
using tributary::fail;
using tributary::Result;
using tributary::Session;
using tributary::Status;
using tributary::StepState;
using tributary::c::fenced;
using tributary::c::fenced_pointer;
using tributary::c::not_null;

struct tributary_parameter_memory {
  std::shared_ptr<const void> share;
};

struct tributary_session {
  std::unique_ptr<Session> session;
  std::unique_ptr<tributary::c::SessionDevice> device;  // ends before the session; null: tributary_options has none
  std::vector<std::uint64_t> readies;                   // per tensor: how often it was said to be ready
  std::optional<tributary::GroupSettings> settings;
  std::vector<unsigned char> awaiting;  // per tensor, a byte, because threads write several: ready, and not waited for
  bool start_called = false, started = false, finished = false;
  std::string reason;
  std::vector<tributary_value> values;  // of the last tributary_gather()
};

namespace {

static_assert(TRIBUTARY_CONFIGURED == tributary::StepSettings::kConfigured);
static_assert(TRIBUTARY_SCHEDULED_RATE == tributary::StepSettings::kConfigured);

// Up to the last member that the first release had and that has no value of its own when absent.
#define TRIBUTARY_UP_TO(type, member) (offsetof(type, member) + sizeof(type::member))
constexpr std::size_t kLeastView = TRIBUTARY_UP_TO(tributary_view, fresh);
constexpr std::size_t kLeastGate = TRIBUTARY_UP_TO(tributary_gate, known);
constexpr std::size_t kLeastStats = TRIBUTARY_UP_TO(tributary_stats, reduce_ns);
#undef TRIBUTARY_UP_TO

Status invalid(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

std::size_t count(const tributary_session& session) {
  return session.readies.size();
}

Status check_tensor(const tributary_session* session, std::size_t tensor) {
  if (Status there = not_null(session, "the session"); !there) return there;
  if (tensor >= count(*session)) {
    return invalid("there is no tensor " + std::to_string(tensor) + ": the session has " +
                   std::to_string(count(*session)) + ", which count from 0");
  }
  if (session->session->holds(tensor)) return {};
  return invalid("tensor " + std::to_string(tensor) +
                 " is not held by this rank: its holders do not have tributary_options.model_rank");
}

// For what only a session that is started and not finished can do.
Status check_running(const tributary_session* session, const char* call) {
  if (Status there = not_null(session, "the session"); !there) return there;
  if (!session->started) return invalid(std::string(call) + " came before tributary_start(), which goes first");
  if (session->finished) {
    return invalid(std::string(call) +
                   " came after tributary_finish(); only tributary_saved() and "
                   "tributary_destroy() can follow that");
  }
  return {};
}

Status write_kept(const Result<Session::Kept>& given, tributary_kept_state* kept) {
  if (!given) return tl::unexpected(given.error());
  const tributary_kept_state values{.size = 0,
                                    .state = given->bytes.data(),
                                    .state_size = given->bytes.size(),
                                    .large = given->large.data(),
                                    .large_size = given->large.size(),
                                    .whole = given->whole ? 1 : 0};
  return tributary::c::write_struct(values, sizeof values, "tributary_kept_state", kept);
}

// REQUIRES: this rank holds it.
const std::string& name_of_tensor(const tributary_session& session, std::size_t tensor) {
  const tributary::Layout& layout = session.session->layout();
  return layout.tensors()[layout.tensor_in_part(tensor).value()].name;
}

Status check_ready(const tributary_session* session, std::size_t tensor, std::uint64_t weight, double rate) {
  if (Status fits = check_tensor(session, tensor); !fits) return fits;
  if (Status running = check_running(session, "tributary_ready()"); !running) return running;
  const auto about = [&] { return "tensor '" + name_of_tensor(*session, tensor) + "': "; };
  if (weight > tributary::kMaxWeight) {
    return invalid(about() + "weight " + std::to_string(weight) + " is over the limit of " +
                   std::to_string(tributary::kMaxWeight) + "; the weight is the number of samples in the gradient");
  }
  if (!tributary::StepSettings{.lr = rate}.sound()) {
    return invalid(about() + "the rate is " + std::to_string(rate) +
                   "; give a finite one of at least 0, or TRIBUTARY_SCHEDULED_RATE");
  }
  if (session->awaiting[tensor]) {
    return fail(ErrorCode::kWrongRound, about() +
                                            "tributary_ready() came twice in a round; call it once per tensor and "
                                            "round, and tributary_wait() before the next round");
  }
  return {};
}

// Waits for ready_after() calls that streams have not made yet; no answer comes before them.
Status await_streams(const tributary_session& session, std::size_t tensor) {
  if (!session.device) return {};
  return tensor == TRIBUTARY_ALL_TENSORS ? session.device->all_said() : session.device->said(tensor);
}

// A wait for all while only some are ready could last forever.
Status check_all_ready(const tributary_session& session) {
  auto held = std::views::iota(std::size_t{0}, count(session)) |
              std::views::filter([&](std::size_t tensor) { return session.session->holds(tensor); });
  const auto [low, high] =
      std::ranges::minmax_element(held, {}, [&](std::size_t tensor) { return session.readies[tensor]; });
  const std::size_t behind = *low;
  if (session.readies[behind] == session.readies[*high]) return {};
  return fail(ErrorCode::kWrongRound,
              "tributary_wait() for all tensors came before tributary_ready() of tensor '" +
                  name_of_tensor(session, behind) +
                  "', which others of this round were ready before; say so of every tensor of a round");
}

tributary_step step_of(StepState state) {
  switch (state) {
    case StepState::kContinue:
      return TRIBUTARY_CONTINUE;
    case StepState::kStopRequested:
      return TRIBUTARY_STOP_REQUESTED;
    case StepState::kStopped:
      return TRIBUTARY_VIEW_STOPPED;
    case StepState::kFinished:
      return TRIBUTARY_TRAINED;
    case StepState::kRestart:
      break;
  }
  return TRIBUTARY_RESTART;
}

}  // namespace

const char* tributary_version(void) {
  return tributary::kVersion;
}

const char* tributary_last_error(void) {
  return tributary::c::last_error();
}

const char* tributary_status_name(tributary_status status) {
  return tributary::c::name_of(status);
}

tributary_recovery_handle* tributary_recovery_handle_create(void) {
  return fenced_pointer([]() -> Result<tributary_recovery_handle*> { return new tributary_recovery_handle; });
}

void tributary_recovery_handle_destroy(tributary_recovery_handle* recovery) {
  delete recovery;
}

tributary_status tributary_retry(tributary_recovery_handle* recovery, tributary_status why, const char* reason,
                                 uint32_t round_done, uint32_t* pause_ms) {
  return fenced([&]() -> Status {
    if (Status there = not_null(recovery, "the recovery handle"); !there) return there;
    if (Status there = not_null(pause_ms, "where tributary_retry() is to put the pause"); !there) return there;
    if (why <= TRIBUTARY_OK || why > 1 + std::numeric_limits<uint16_t>::max()) {
      return invalid("tributary_retry() asks after an error, and " + std::to_string(why) + " is none");
    }
    const auto code = static_cast<ErrorCode>(why - 1);
    const std::string words = reason ? reason : tributary_last_error();
    if (!tributary::may_come_back(code)) return fail(code, words);
    tributary::AttachRetries& retries = recovery->kept->retries;
    const auto pause = retries.next(round_done != 0, tributary::AttachRetries::Clock::now());
    if (!pause) return fail(ErrorCode::kUnavailable, retries.gave_up(words));
    *pause_ms = static_cast<uint32_t>(pause->count());
    return {};
  });
}

tributary_status tributary_attach(const tributary_options* options, tributary_session** session) {
  if (session) *session = nullptr;
  return fenced([&]() -> Status {
    if (Status there = not_null(session, "where tributary_attach() is to put the session"); !there) return there;
    auto arguments = tributary::c::arguments_of(options);
    if (!arguments) return tl::unexpected(arguments.error());
    auto& [session_options, tensors] = *arguments;
    auto made = std::make_unique<tributary_session>();
    made->readies.assign(tensors.size(), 0);
    made->awaiting.assign(tensors.size(), 0);
    made->settings.emplace(session_options.job, tensors);
    auto attached = Session::attach(session_options, std::move(tensors));
    if (!attached) return tl::unexpected(attached.error());
    made->session = std::move(*attached);
    if (session_options.device) {
      made->device = std::make_unique<tributary::c::SessionDevice>(session_options.device, made->readies.size());
      if (!made->session->on_device()) {
        const Status pinned = made->device->pin(made->session->host_memory());
        if (!pinned && session_options.note) session_options.note("copies are slower: " + pinned.error().message);
      }
    }
    *session = made.release();
    return {};
  });
}

void tributary_destroy(tributary_session* session) {
  fenced([&]() -> Status {
    delete session;
    return {};
  });
}

tributary_status tributary_get_view(const tributary_session* session, tributary_view* view) {
  return fenced([&]() -> Status {
    if (Status there = not_null(session, "the session"); !there) return there;
    const Session& s = *session->session;
    const tributary::Topology& place = s.topology();
    const tributary_view values{.size = 0,
                                .rank = place.rank,
                                .world_size = place.world_size,
                                .local_rank = place.local_rank,
                                .local_world_size = place.local_world_size,
                                .node_rank = place.node_rank,
                                .fresh = s.fresh(),
                                .on_device = s.on_device(),
                                .resume_round = s.resume_round().value,
                                .job = s.job().value,
                                .first_state = static_cast<uint32_t>(s.first_state())};
    return tributary::c::write_struct(values, kLeastView, "tributary_view", view);
  });
}

float* tributary_initial(tributary_session* session, size_t tensor) {
  return fenced_pointer([&]() -> Result<float*> {
    if (Status fits = check_tensor(session, tensor); !fits) return tl::unexpected(fits.error());
    const char* why = nullptr;
    if (session->start_called) {
      why = "tributary_start() has been called";
    } else if (!session->session->fresh()) {
      why = "the job has parameters already (tributary_view.fresh is 0)";
    } else if (!session->session->gives_values(tensor)) {
      why = "another rank gives them";
    }
    if (why) {
      return fail(ErrorCode::kInvalidArgument, std::string("there are no initial values to give: ") + why +
                                                   "; in a fresh job the first rank that holds a tensor gives them, "
                                                   "between tributary_attach() and tributary_start()");
    }
    return session->session->initial(tensor).data();
  });
}

tributary_status tributary_start(tributary_session* session) {
  return fenced([&]() -> Status {
    if (Status there = not_null(session, "the session"); !there) return there;
    if (session->start_called || session->finished) {
      return invalid("tributary_start() came a second time, or after tributary_finish(); a session starts once");
    }
    session->start_called = true;
    const Status done = session->session->start();
    session->started = done.has_value();
    return done;
  });
}

float* tributary_gradient(tributary_session* session, size_t tensor) {
  return fenced_pointer([&]() -> Result<float*> {
    if (Status fits = check_tensor(session, tensor); !fits) return tl::unexpected(fits.error());
    Session& s = *session->session;
    return s.on_device() ? s.gradient_device(tensor) : s.gradient(tensor).data();
  });
}

const float* tributary_parameters(const tributary_session* session, size_t tensor) {
  return fenced_pointer([&]() -> Result<const float*> {
    if (Status fits = check_tensor(session, tensor); !fits) return tl::unexpected(fits.error());
    const Session& s = *session->session;
    return s.on_device() ? s.parameters_device(tensor) : s.parameters(tensor).data();
  });
}

tributary_parameter_memory* tributary_hold_parameters(tributary_session* session) {
  return fenced_pointer([&]() -> Result<tributary_parameter_memory*> {
    if (Status there = not_null(session, "the session"); !there) return tl::unexpected(there.error());
    if (session->session->on_device()) {
      return fail(ErrorCode::kInvalidArgument,
                  "the parameters are memory of a device, which ends with the session; copy them before");
    }
    auto share = session->session->hold_parameters();
    if (!share) return tl::unexpected(share.error());
    return new tributary_parameter_memory{std::move(*share)};
  });
}

void tributary_release_parameters(tributary_parameter_memory* memory) {
  delete memory;
}

tributary_status tributary_keep(tributary_session* session, uint64_t round, const void* state, size_t size) {
  return tributary_keep_large(session, round, state, size, nullptr, 0, 1);
}

tributary_status tributary_keep_large(tributary_session* session, uint64_t round, const void* state, size_t size,
                                      const tributary_piece* pieces, size_t count, int32_t whole) {
  return fenced([&]() -> Status {
    if (Status running = check_running(session, "tributary_keep()"); !running) return running;
    if (state == nullptr && size > 0) {
      return invalid("the state to keep is NULL, and its size " + std::to_string(size) + "; give a pointer to it");
    }
    if (pieces == nullptr && count > 0) {
      return invalid("the pieces to keep are NULL, and their number is " + std::to_string(count));
    }
    std::vector<std::span<const std::byte>> large;
    for (const tributary_piece& piece : std::span(pieces, count)) {
      if (piece.data == nullptr && piece.size > 0) {
        return invalid("piece " + std::to_string(large.size()) + " of the state to keep is NULL, and its size " +
                       std::to_string(piece.size));
      }
      large.emplace_back(static_cast<const std::byte*>(piece.data), piece.size);
    }
    return session->session->keep(tributary::Round(round),
                                  {{static_cast<const std::byte*>(state), size}, large, whole != 0});
  });
}

uint64_t tributary_wanted_round(const tributary_session* session) {
  return session ? session->session->wanted_round().value : 0;
}

tributary_status tributary_kept(const tributary_session* session, const void** state, size_t* size) {
  return fenced([&]() -> Status {
    if (Status there = not_null(session, "the session"); !there) return there;
    if (Status there = not_null(state, "where tributary_kept() is to put the state"); !there) return there;
    if (Status there = not_null(size, "where tributary_kept() is to put the state's size"); !there) return there;
    const Result<Session::Kept> given = session->session->kept();
    if (!given) return tl::unexpected(given.error());
    *state = given->bytes.data();
    *size = given->bytes.size();
    return {};
  });
}

tributary_status tributary_get_kept(const tributary_session* session, tributary_kept_state* kept) {
  return fenced([&]() -> Status {
    if (Status there = not_null(session, "the session"); !there) return there;
    return write_kept(session->session->kept(), kept);
  });
}

tributary_status tributary_get_kept_of_first(const tributary_session* session, tributary_kept_state* kept) {
  return fenced([&]() -> Status {
    if (Status there = not_null(session, "the session"); !there) return there;
    if (session->session->first_state() == tributary::FirstState::kGiven) {
      return invalid(
          "tributary_get_kept_of_first() is for the other ranks: this one gives it "
          "(tributary_view.first_state)");
    }
    return write_kept(session->session->kept_of_first(), kept);
  });
}

tributary_status tributary_last_round(tributary_session* session, uint64_t round) {
  return fenced([&]() -> Status {
    if (Status running = check_running(session, "tributary_last_round()"); !running) return running;
    session->session->last_round(tributary::Round(round));
    return {};
  });
}

tributary_status tributary_log(tributary_session* session, uint64_t round, const char* name, double mean,
                               uint64_t samples) {
  return fenced([&]() -> Status {
    if (Status running = check_running(session, "tributary_log()"); !running) return running;
    if (Status there = not_null(name, "the figure's name"); !there) return there;
    const std::string_view text(name, strnlen(name, tributary::kMaxFigureNameBytes + 1));
    return session->session->log(tributary::Round(round), text, mean, samples);
  });
}

tributary_status tributary_ready(tributary_session* session, size_t tensor, uint64_t weight, double rate) {
  return fenced([&]() -> Status {
    if (Status right = check_ready(session, tensor, weight, rate); !right) return right;
    session->awaiting[tensor] = 1;
    ++session->readies[tensor];
    session->session->ready(tensor, weight, session->settings->of(tensor, rate));
    return {};
  });
}

tributary_status tributary_group_settings(tributary_session* session, uint32_t group, double weight_decay,
                                          double momentum) {
  return fenced([&]() -> Status {
    if (Status running = check_running(session, "tributary_group_settings()"); !running) return running;
    return session->settings->set(group, weight_decay, momentum);
  });
}

tributary_status tributary_ready_after(tributary_session* session, size_t tensor, uint64_t weight, double rate,
                                       void* stream) {
  return fenced([&]() -> Status {
    if (Status right = check_ready(session, tensor, weight, rate); !right) return right;
    if (!session->device) {
      return invalid(
          "tributary_ready_after() in a session without a device; set tributary_options.device, or call "
          "tributary_ready() when the gradient is there");
    }
    session->awaiting[tensor] = 1;
    ++session->readies[tensor];
    Status put = session->device->ready_after(
        stream, tensor, [&s = *session->session, tensor, weight, said = session->settings->of(tensor, rate)] {
          s.ready(tensor, weight, said);
        });
    if (put) return put;
    session->awaiting[tensor] = 0;
    --session->readies[tensor];
    return put;
  });
}

tributary_status tributary_wait(tributary_session* session, size_t tensor, tributary_step* step) {
  return fenced([&]() -> Status {
    const bool all = tensor == TRIBUTARY_ALL_TENSORS;
    if (Status fits = all ? not_null(session, "the session") : check_tensor(session, tensor); !fits) return fits;
    if (Status there = not_null(step, "where tributary_wait() is to put the step"); !there) return there;
    if (Status running = check_running(session, "tributary_wait()"); !running) return running;
    if (all) {
      if (Status right = check_all_ready(*session); !right) return right;
    }
    if (Status said = await_streams(*session, tensor); !said) return said;
    const auto state = all ? session->session->wait() : session->session->wait(tensor);
    if (!state) return tl::unexpected(state.error());
    *step = step_of(*state);
    // In a view that is over no tensor can be ready any more.
    if (*step != TRIBUTARY_CONTINUE && *step != TRIBUTARY_STOP_REQUESTED) return {};
    if (all) {
      std::ranges::fill(session->awaiting, 0);
    } else {
      session->awaiting[tensor] = 0;
    }
    return {};
  });
}

tributary_status tributary_gather(tributary_session* session, uint64_t round, uint32_t index, const void* data,
                                  size_t size, const tributary_value** values, size_t* count, tributary_step* step) {
  return fenced([&]() -> Status {
    if (Status running = check_running(session, "tributary_gather()"); !running) return running;
    if (Status there = not_null(values, "where tributary_gather() is to put the values"); !there) return there;
    if (Status there = not_null(count, "where tributary_gather() is to put how many there are"); !there) return there;
    if (Status there = not_null(step, "where tributary_gather() is to put the step"); !there) return there;
    if (data == nullptr && size > 0) {
      return invalid("the value to give is NULL, and its size " + std::to_string(size) + "; give a pointer to it");
    }
    const auto gathered =
        session->session->gather(tributary::Round(round), index, {static_cast<const std::byte*>(data), size});
    if (!gathered) return tl::unexpected(gathered.error());
    session->values.clear();
    for (const tributary::RankValue& value : gathered->values) {
      session->values.push_back({value.data.data(), value.data.size()});
    }
    *values = session->values.data();
    *count = session->values.size();
    *step = step_of(gathered->step);
    return {};
  });
}

tributary_status tributary_gathered(tributary_session* session, uint64_t round, uint32_t index,
                                    const tributary_value* values, size_t count) {
  return fenced([&]() -> Status {
    if (Status running = check_running(session, "tributary_gathered()"); !running) return running;
    if (values == nullptr || count == 0 || count > tributary::kMaxValues) {
      return invalid("what a gather came to has " + std::to_string(count) +
                     " values; give an array with one for each rank, at most " + std::to_string(tributary::kMaxValues));
    }
    tributary::SharedValues answer{tributary::Round(round), index, true, {}};
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      const auto& [data, size] = values[rank];
      if (size > tributary::kMaxValueBytes || (data == nullptr && size > 0)) {
        return invalid("the value of rank " + std::to_string(rank) + " is NULL, or has more than " +
                       std::to_string(tributary::kMaxValueBytes) + " bytes (" + std::to_string(size) + ")");
      }
      const auto* bytes = static_cast<const std::byte*>(data);
      answer.values.push_back({rank, {bytes, bytes + size}});
    }
    return session->session->gathered(std::move(answer));
  });
}

tributary_status tributary_get_gate(const tributary_session* session, uint64_t round, tributary_gate* gate) {
  return fenced([&]() -> Status {
    if (Status there = not_null(session, "the session"); !there) return there;
    tributary_gate values{};
    const tributary::GateDecision decision = session->session->gate(tributary::Round(round));
    if (decision.known()) {
      values.known = 1;
      values.skipped = decision.verdict == tributary::GateVerdict::kSkipped;
      values.norm = decision.norm;
      values.coefficient = decision.coefficient;
      values.loss_scale = decision.loss_scale;
    }
    return tributary::c::write_struct(values, kLeastGate, "tributary_gate", gate);
  });
}

const char* tributary_stop_reason(tributary_session* session) {
  const char* reason = "";
  fenced([&]() -> Status {
    if (Status there = not_null(session, "the session"); !there) return there;
    session->reason = session->session->stop_reason();
    reason = session->reason.c_str();
    return {};
  });
  return reason;
}

tributary_status tributary_get_stats(const tributary_session* session, tributary_stats* stats) {
  return fenced([&]() -> Status {
    if (Status there = not_null(session, "the session"); !there) return there;
    const tributary::SessionStats now = session->session->stats();
    const tributary_stats values{
        .size = 0, .reduce_ns = now.reduce_ns, .bytes_pushed = now.bytes_pushed, .bytes_pulled = now.bytes_pulled};
    return tributary::c::write_struct(values, kLeastStats, "tributary_stats", stats);
  });
}

tributary_status tributary_finish(tributary_session* session, tributary_leave leave, const char* message) {
  return fenced([&]() -> Status {
    if (Status there = not_null(session, "the session"); !there) return there;
    if (session->finished) return invalid("tributary_finish() came a second time; a session finishes once");
    tributary::LeaveKind kind;
    switch (leave) {
      case TRIBUTARY_FINISHED:
        kind = tributary::LeaveKind::kFinished;
        break;
      case TRIBUTARY_LEAVES_STOPPED:
        kind = tributary::LeaveKind::kStopped;
        break;
      case TRIBUTARY_LEAVES_FAILED:
        kind = tributary::LeaveKind::kFailed;
        break;
      case TRIBUTARY_FINISHES_ALL:
        kind = tributary::LeaveKind::kFinishesAll;
        break;
      default:
        return invalid(
            "tributary_finish() was told to leave as " + std::to_string(static_cast<int>(leave)) +
            "; give TRIBUTARY_FINISHED, TRIBUTARY_LEAVES_STOPPED, TRIBUTARY_LEAVES_FAILED or TRIBUTARY_FINISHES_ALL");
    }
    const std::string why = message ? message : "";
    if (!tributary::is_utf8(why)) return invalid("the message of tributary_finish() is no UTF-8 text; give it as such");
    const Status done = session->session->finish(kind, why);
    session->finished = done.has_value();
    return done;
  });
}

tributary_status tributary_saved(tributary_session* session) {
  return fenced([&]() -> Status {
    if (Status there = not_null(session, "the session"); !there) return there;
    if (!session->finished) return invalid("tributary_saved() came before tributary_finish(), which goes first");
    return session->session->saved();
  });
}
