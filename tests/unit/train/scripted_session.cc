#include "tests/unit/train/scripted_session.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "common/config/schedule.h"
#include "common/math/encoding.h"
#include "common/math/fused_step.h"
#include "kernels/step/optimizer.h"
#include "tests/unit/required.h"

namespace tributary {

struct Session::Impl {
  JobConfig job;
  Topology topology;
  std::vector<TensorSpec> tensors;
  std::optional<Layout> layout;
  bool fresh = false;
  Round resume;
  Tensors parameters, gradients;
  std::vector<bool> is_ready;
  std::uint64_t weight = 0;
  std::vector<std::size_t> waited;  // of the open round
  std::function<bool()> stops;

  bool pending() const {
    return std::all_of(is_ready.begin(), is_ready.end(), [](bool r) { return r; });
  }

  Result<StepState> complete() {
    World& world = *World::current;
    const Round round = world.round.next();
    if (const auto error = world.errors.find(round.value); error != world.errors.end()) {
      const Error what = error->second;
      world.errors.erase(error);
      world.lose_what_is_not_in_the_snapshot();
      return tl::unexpected(what);
    }
    const auto state = world.states.find(round.value);
    if (state != world.states.end() && (state->second == StepState::kRestart || state->second == StepState::kStopped)) {
      const StepState what = state->second;
      world.states.erase(state);
      if (what == StepState::kRestart) world.lose_what_is_not_in_the_snapshot();
      return what;
    }
    const auto optimizer =
        kernels::make_optimizer("sgd", kernels::options_of("sgd", {{"momentum", job.optimizer["momentum"]}}));
    const auto scalars =
        optimizer->scalars(round.value, scheduled_lr(server_schedule(job), job.optimizer.lr, round.value));
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const PushFrame frame{reinterpret_cast<const std::byte*>(gradients[t].data())};
      FusedArgs args;
      args.elements = tensors[t].elements();
      args.frames = {&frame, 1};
      args.push = args.pull = &encoding_for(EncodingId::kFp32);
      args.scale = static_cast<float>(1.0 / static_cast<double>(weight));
      args.param_in = args.param_out = world.parameters[t].data();
      args.state_in[0] = args.state_out[0] = world.momentum[t].data();
      fused_step(*optimizer, scalars, args);
      std::fill(gradients[t].begin(), gradients[t].end(), 1e30f);  // nobody may count on old contents
    }
    world.round = round;
    parameters = world.parameters;
    is_ready.assign(tensors.size(), false);
    if (round.value % world.snapshot_every == 0) {
      world.snapshot = round;
      world.snapshot_parameters = world.parameters;
      world.snapshot_momentum = world.momentum;
    }
    return state == world.states.end() ? StepState::kContinue : state->second;
  }
};

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;

Result<std::unique_ptr<Session>> Session::attach(SessionOptions options, std::vector<TensorSpec> tensors) {
  World& world = *World::current;
  ++world.attaches;
  world.waited_for_worker += options.await_worker ? 1 : 0;
  if (world.on_attach) world.on_attach();
  if (options.stops && options.stops()) return fail(ErrorCode::kStopped, "told to stop while it waited for node 1");
  if (!world.attach_errors.empty()) {
    const Error error = world.attach_errors.back();
    world.attach_errors.pop_back();
    return tl::unexpected(error);
  }
  auto impl = std::make_unique<Impl>();
  impl->job = options.job;
  impl->stops = options.stops;
  impl->topology = options.topology;
  impl->tensors = std::move(tensors);
  auto layout = required(Layout::unowned(impl->tensors));
  impl->layout = std::move(layout);
  impl->fresh = world.round.value == 0;
  impl->resume = world.round;
  for (const TensorSpec& tensor : impl->tensors) {
    impl->parameters.emplace_back(tensor.elements());
    impl->gradients.emplace_back(tensor.elements());
  }
  impl->is_ready.assign(impl->tensors.size(), false);
  return std::unique_ptr<Session>(new Session(std::move(impl)));
}

bool Session::fresh() const {
  return impl_->fresh;
}
Round Session::resume_round() const {
  return impl_->resume;
}
const Topology& Session::topology() const {
  return impl_->topology;
}
std::span<float> Session::initial(std::size_t tensor) {
  return impl_->parameters[tensor];
}
std::span<float> Session::gradient(std::size_t tensor) {
  return impl_->gradients[tensor];
}
std::span<const float> Session::parameters(std::size_t tensor) const {
  return impl_->parameters[tensor];
}
std::string Session::stop_reason() const {
  return "as scripted";
}
SessionStats Session::stats() const {
  return {.reduce_ns = 0, .bytes_pushed = 7, .bytes_pulled = 9};
}

Status Session::start() {
  World& world = *World::current;
  if (!world.start_errors.empty()) {
    const Error error = world.start_errors.back();
    world.start_errors.pop_back();
    return tl::unexpected(error);
  }
  if (impl_->fresh) {
    world.parameters = world.snapshot_parameters = impl_->parameters;
    world.momentum.clear();
    for (const auto& tensor : world.parameters) world.momentum.emplace_back(tensor.size(), 0.0f);
    world.snapshot_momentum = world.momentum;
  }
  impl_->parameters = world.parameters;
  return {};
}

Status Session::log(Round, std::string_view, double, std::uint64_t) {
  return {};
}

void Session::last_round(Round) {}

const Layout& Session::layout() const {
  return *impl_->layout;
}

GateDecision Session::gate(Round) const {
  return {};
}

void Session::ready(std::size_t tensor, std::uint64_t weight, const StepSettings&) {
  REQUIRE_FALSE(impl_->is_ready[tensor]);
  const bool first = std::none_of(impl_->is_ready.begin(), impl_->is_ready.end(), [](bool r) { return r; });
  impl_->is_ready[tensor] = true;
  impl_->weight = weight;
  if (first && World::current->on_round) World::current->on_round(World::current->round.next());
}
Result<StepState> Session::wait(std::size_t) {
  return wait();
}
Result<StepState> Session::wait() {
  if (!impl_->pending()) return StepState::kContinue;
  if (impl_->stops) impl_->stops();
  return impl_->complete();
}

Status Session::finish(LeaveKind kind, const std::string& message) {
  World::current->finish_message = message;
  if (World::current->on_finish) World::current->on_finish();
  const bool nothing_open = std::none_of(impl_->is_ready.begin(), impl_->is_ready.end(), [](bool r) { return r; });
  if (kind == LeaveKind::kFinished) CHECK(nothing_open);
  World::current->finishes.emplace_back(kind, World::current->round.value);
  return {};
}

Status Session::saved() {
  if (impl_->stops) impl_->stops();
  if (World::current->saved_errors.empty()) return {};
  const Error error = World::current->saved_errors.back();
  World::current->saved_errors.pop_back();
  return tl::unexpected(error);
}

}  // namespace tributary
