#include "bench/pushpull/pushpull_ranks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "common/files/digest.h"

namespace tributary::bench {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr double kGateSeconds = 120.0;  // for all ranks to come together
constexpr milliseconds kLapPoll{5};

std::size_t nodes_of(const std::vector<SessionOptions>& sessions) {
  return sessions.at(0).topology.world_size / sessions.at(0).topology.local_world_size;
}

// Some values of a rank's gradients, which are repeated over all of them.
std::vector<float> gradient_pattern(std::size_t rank) {
  std::vector<float> values(1024);
  float value = 1e-3f * static_cast<float>(rank + 1);
  for (float& g : values) g = value = -value;
  return values;
}

void tile(std::span<const float> pattern, std::span<float> to) {
  for (std::size_t at = 0; at < to.size(); at += pattern.size()) {
    const std::size_t count = std::min(pattern.size(), to.size() - at);
    std::memcpy(to.data() + at, pattern.data(), count * sizeof(float));
  }
}

}  // namespace

Ranks::Ranks(std::vector<SessionOptions> sessions, std::vector<TensorSpec> tensors, std::optional<RankDevice> device)
    : sessions_(std::move(sessions)),
      tensors_(std::move(tensors)),
      device_(std::move(device)),
      results_(nodes_of(sessions_)),
      node_sessions_(nodes_of(sessions_)) {
  for (std::size_t rank = 0; rank < sessions_.size(); ++rank) {
    threads_.emplace_back([this, rank] { run(rank); });
  }
}

Ranks::~Ranks() {
  end();
}

void Ranks::end() {
  pause_ = true;
  const std::lock_guard lock(mutex_);
  over_ = true;
  changed_.notify_all();
}

void Ranks::run(std::size_t rank) {
  const auto ok = train(rank);
  if (ok) return;
  const std::lock_guard lock(mutex_);
  if (error_.empty()) error_ = "rank " + std::to_string(rank) + ": " + ok.error().message;
  over_ = true;
  changed_.notify_all();
}

Status Ranks::train(std::size_t rank) {
  SessionOptions options = sessions_[rank];
  const auto attach_timeout = attach_timeout_of_environment();
  if (!attach_timeout) return tl::unexpected(attach_timeout.error());
  options.attach_timeout = *attach_timeout;
  if (device_) options.device = device_->opener;
  auto attached = Session::attach(options, tensors_);
  if (!attached) return tl::unexpected(attached.error());
  Session& session = **attached;
  const bool leads = rank == 0, first_of_node = options.topology.local_rank == 0;
  if (leads && session.fresh()) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) std::ranges::fill(session.initial(t), kInitial);
  }
  if (auto ok = session.start(); !ok) return ok;
  // Where a backward pass would write them: in every round, and from what is in the first cache.
  const bool writes = options.gradients_move && !device_;
  const std::vector<float> pattern = gradient_pattern(rank);
  if (!writes) {
    if (auto ok = fill_gradients(session, pattern); !ok) return ok;
  }
  if (leads) chunk_bytes_ = session.layout().chunk_elements() * sizeof(float);
  if (first_of_node) node_sessions_[options.topology.node_rank] = &session;

  std::uint64_t slice = 0;
  bool more = gate(++slice);
  for (std::uint64_t round = 1; more; ++round) {
    for (std::size_t t = 0; t < tensors_.size() && more; ++t) {
      if (round > 1) {
        const auto state = session.wait(t);
        if (!state) return tl::unexpected(state.error());
        if (*state != StepState::kContinue) return fail(ErrorCode::kStopped, "stopped: " + session.stop_reason());
      }
      if (t == 0) {
        if (leads && pause_.exchange(false)) last_round_ = round;
        if (round > last_round_) {
          if (auto all = session.wait(); !all) return tl::unexpected(all.error());
          more = gate(++slice);
          if (!more) break;
        }
        if (leads) rounds_ = round;
      }
      if (writes) tile(pattern, session.gradient(t));
      session.ready(t, 1);
    }
  }
  if (first_of_node) {
    if (auto ok = examine(session, results_[options.topology.node_rank]); !ok) return ok;
  }
  return session.finish(LeaveKind::kFinished);
}

// All ranks wait here between slices. False: that was the last.
bool Ranks::gate(std::uint64_t slice) {
  std::unique_lock lock(mutex_);
  ++paused_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return slice_ >= slice || over_; });
  return !over_;
}

Status Ranks::fill_gradients(Session& session, std::span<const float> pattern) const {
  if (device_ && !session.on_device()) {
    return fail(ErrorCode::kUnavailable, "the worker lent no device memory; its log says why");
  }
  std::vector<float> values;
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    if (!device_) {
      tile(pattern, session.gradient(t));
      continue;
    }
    values.resize(tensors_[t].elements());
    tile(pattern, values);
    if (auto ok = device_->write(session.gradient_device(t), values.data(), values.size() * sizeof(float)); !ok) {
      return ok;
    }
  }
  return {};
}

Status Ranks::examine(const Session& session, NodeResult& result) const {
  ParameterDigest digest;
  std::vector<float> values;
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    std::span<const float> parameters;
    if (device_) {
      values.resize(tensors_[t].elements());
      const Status read = device_->read(values.data(), session.parameters_device(t), values.size() * sizeof(float));
      if (!read) return read;
      parameters = values;
    } else {
      parameters = session.parameters(t);
    }
    for (const float p : parameters) {
      result.finite = result.finite && std::isfinite(p);
      result.moved = result.moved && p != kInitial;
    }
    digest.add(tensors_[t], parameters);
  }
  result.digest = digest.hex();
  return {};
}

Status Ranks::wait_until(const std::function<bool()>& condition, double seconds, const Healthy& healthy) {
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (!condition()) {
    if (auto ok = healthy(); !ok) return ok;
    {
      const std::lock_guard lock(mutex_);
      if (!error_.empty()) return fail(ErrorCode::kUnavailable, error_);
    }
    if (Clock::now() > until) return fail(ErrorCode::kTimeout, "the ranks make no progress");
    std::this_thread::sleep_for(kLapPoll);
  }
  return {};
}

Status Ranks::wait_paused(const Healthy& healthy) {
  const auto all = [this] {
    const std::lock_guard lock(mutex_);
    return paused_ == sessions_.size();
  };
  return wait_until(all, kGateSeconds, healthy);
}

void Ranks::resume() {
  const std::lock_guard lock(mutex_);
  last_round_ = kNever;
  paused_ = 0;
  ++slice_;
  changed_.notify_all();
}

Status Ranks::pause(const Healthy& healthy) {
  pause_ = true;
  return wait_paused(healthy);
}

Result<std::vector<NodeResult>> Ranks::finish() {
  end();
  threads_.clear();
  if (!error_.empty()) return fail(ErrorCode::kUnavailable, error_);
  return results_;
}

SessionStats Ranks::totals() const {
  SessionStats sum;
  for (const auto& session : node_sessions_) {
    const SessionStats one = session.load()->stats();
    sum.reduce_ns += one.reduce_ns;
    sum.bytes_pushed += one.bytes_pushed;
    sum.bytes_pulled += one.bytes_pulled;
  }
  return sum;
}

}  // namespace tributary::bench
