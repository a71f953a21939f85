#include "bench/staleness_rank.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/digest.h"

namespace tributary::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kHistogram = 65;
constexpr int kCountPolls = 2000;

// SplitMix64 (Steele, Lea & Flood 2014).
std::uint64_t mixed(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

class StalenessRank {
 public:
  StalenessRank(const StalenessRankOptions& options, std::vector<TensorSpec> tensors, std::unique_ptr<Session> session)
      : options_(options),
        nodes_(options.topology.world_size / options.topology.local_world_size),
        own_(options.topology.node_rank),
        tensors_(std::move(tensors)),
        session_(std::move(session)),
        histogram_(kHistogram) {}

  Result<Json> run() {
    if (!session_->fresh()) {
      return fail(ErrorCode::kInvalidArgument, "the job has a history; use a fresh base folder or another job.name");
    }
    if (options_.topology.rank == 0) {
      for (std::size_t t = 0; t < tensors_.size(); ++t) std::ranges::fill(session_->initial(t), 0.0f);
    }
    if (auto ok = session_->start(); !ok) return tl::unexpected(ok.error());
    session_->last_round(Round(options_.clocks));
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const std::span<float> gradient = session_->gradient(t);
      for (std::size_t e = 0; e < gradient.size(); ++e) gradient[e] = e % nodes_ == own_ ? -1.0f : 0.0f;
      session_->ready(t, 1);
    }
    for (std::uint64_t clock = 1; clock <= options_.clocks; ++clock) {
      for (std::size_t t = 0; t < tensors_.size(); ++t) {
        const auto state = session_->wait(t);
        if (!state) return tl::unexpected(state.error());
        if (*state != StepState::kContinue) return fail(ErrorCode::kStopped, "stopped: " + session_->stop_reason());
        look_at(t, clock);
        if (clock == options_.clocks) continue;
        dawdle(clock, t);
        session_->ready(t, 1);
      }
    }
    ParameterDigest digest;
    for (std::size_t t = 0; t < tensors_.size(); ++t) digest.add(tensors_[t], session_->parameters(t));
    Json result = report(digest.hex());
    if (auto ok = session_->finish(LeaveKind::kFinished); !ok) return tl::unexpected(ok.error());
    return result;
  }

 private:
  // The slow node changes, so that every node is waited for now and then, and waits.
  void dawdle(std::uint64_t clock, std::size_t tensor) const {
    if (options_.slow_us == 0) return;
    if (mixed(options_.seed * 1000003 + clock / options_.period) % nodes_ != own_) return;
    const std::uint64_t draw = mixed(options_.seed ^ (clock << 20) ^ (tensor << 8) ^ own_);
    std::this_thread::sleep_for(std::chrono::microseconds(draw % (options_.slow_us + 1)));
  }

  void look_at(std::size_t tensor, std::uint64_t clock) {
    const std::span<const float> values = session_->parameters(tensor);
    ++pulls_;
    bool torn = false;
    for (std::size_t e = nodes_; e < values.size(); ++e) torn |= values[e] != values[e - nodes_];
    std::uint64_t slowest = clock;
    const bool bounded = options_.job.mode == "ssp";
    const std::uint64_t s = options_.job.ssp.staleness;
    for (std::uint32_t node = 0; node < nodes_; ++node) {
      const float value = values[node];
      if (!(value >= 0.0f) || value != std::floor(value)) {
        torn = true;
        continue;
      }
      const auto applied = static_cast<std::uint64_t>(value);
      slowest = std::min(slowest, applied);
      if (node == own_ && applied != clock) violated(own_missing_, tensor, clock, node, value);
      if (bounded && applied + s < clock) violated(stale_, tensor, clock, node, value);
      if (bounded && applied > clock + s + 1) violated(ahead_, tensor, clock, node, value);
      if (clock == options_.clocks && applied != clock) violated(end_, tensor, clock, node, value);
    }
    if (torn) violated(torn_, tensor, clock, own_, values[own_]);
    const std::uint64_t staleness = clock - slowest;
    staleness_sum_ += staleness;
    max_staleness_ = std::max(max_staleness_, staleness);
    ++histogram_[std::min<std::uint64_t>(staleness, kHistogram - 1)];
  }

  void violated(std::uint64_t& count, std::size_t tensor, std::uint64_t clock, std::uint32_t node, float value) {
    ++count;
    if (!first_.empty()) return;
    first_ = "chunk " + std::to_string(tensor) + " after clock " + std::to_string(clock) + ": node " +
             std::to_string(node) + " is at " + std::to_string(value);
  }

  // What the worker counts is there a moment after the parameters.
  SessionStats told() const {
    SessionStats stats = session_->stats();
    for (int i = 0; i < kCountPolls && stats.pulls < pulls_ + tensors_.size(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      stats = session_->stats();
    }
    return stats;
  }

  Json report(const std::string& digest) const {
    const SessionStats said = told();
    return {
        {"rank", options_.topology.rank},
        {"node", own_},
        {"pulls", pulls_},
        {"violations", {{"own", own_missing_}, {"stale", stale_}, {"ahead", ahead_}, {"torn", torn_}, {"end", end_}}},
        {"max_staleness", max_staleness_},
        {"staleness_sum", staleness_sum_},
        {"told_sum", said.staleness_sum},
        {"told_max", said.staleness_max},
        {"histogram", histogram_},
        {"first_violation", first_},
        {"digest", digest},
    };
  }

  const StalenessRankOptions& options_;
  const std::uint32_t nodes_, own_;
  const std::vector<TensorSpec> tensors_;
  const std::unique_ptr<Session> session_;
  std::uint64_t pulls_ = 0, own_missing_ = 0, stale_ = 0, ahead_ = 0, torn_ = 0, end_ = 0;
  std::uint64_t max_staleness_ = 0, staleness_sum_ = 0;
  std::vector<std::uint64_t> histogram_;
  std::string first_;
};

}  // namespace

Result<Json> run_staleness_rank(const StalenessRankOptions& options) {
  if (!has_clocks(options.job)) {
    return fail(ErrorCode::kInvalidArgument, "job.mode = \"" + options.job.mode + "\": must be ssp or async");
  }
  if (options.chunks == 0 || options.clocks == 0 || options.period == 0) {
    return fail(ErrorCode::kInvalidArgument, "chunks, clocks and period must be at least 1");
  }
  std::vector<TensorSpec> tensors;
  for (std::uint32_t t = 0; t < options.chunks; ++t)
    tensors.push_back({"chunk" + std::to_string(t), {kStalenessChunk}});
  auto session = Session::attach({.socket = options.socket, .job = options.job, .topology = options.topology}, tensors);
  if (!session) return tl::unexpected(session.error());
  return StalenessRank(options, std::move(tensors), std::move(*session)).run();
}

}  // namespace tributary::bench
