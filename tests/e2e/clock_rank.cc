// clock_rank: one rank of a job of mode "ssp" or "async" that sees from its parameters alone which pushes they hold, and
// so counts itself what the servers promise.
//
//   clock_rank --job FILE CLOCKS CHUNKS      the rank's place and the worker's socket: in the environment
//
// Plain SGD with learning rate 1. A node's gradient is -1 where the position in the chunk is the node's rank modulo the
// number of nodes, and 0 elsewhere. So a parameter at a position of node j is the number of j's pushes that were
// applied to its chunk. A tensor is a chunk, each with its own clock.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/config/config_toml.h"
#include "common/files/digest.h"
#include "session/session.h"

namespace tributary::e2e {
namespace {

struct Options {
  std::string socket;  // the worker's
  JobConfig job;
  Topology topology;
  std::uint32_t chunks = 0;
  std::uint64_t clocks = 0;
};

// A node is the slow one in a share of 1 / nodes of its periods of so many clocks, drawn from the seed; then it sleeps
// up to kSlowUs before each chunk's push.
constexpr std::uint64_t kPeriod = 20, kSeed = 1;
constexpr std::uint32_t kSlowUs = 200;

// After each clock c of each chunk, with value[j] the parameter at positions of node j, s the staleness of the job:
//   own    value[own node] != c           a push of its own is missing, or was applied twice
//   stale  value[j] < c - s               the bound is broken
//   ahead  value[j] > c + s + 1           j was let go too early
//   torn   values of one node differ within the chunk, or are no whole numbers
// A job that continues from a snapshot begins with values first[j], some of which are ahead of the clock that all nodes
// begin at; until the clock has passed it, first[own node] stands for c in the first and the third line, and first[j]
// bounds the third, too: those pushes are applied, whether their authors have repeated them yet or not.
//   lost   first[j] is below that clock: the snapshot lacks pushes that it is said to have
// A rank that is asked to stop does; one whose view ends attaches again, at most kMaxAttaches times in all.
//
// {rank, node, clock (reached), stopped, attaches, resumed_from (at the first attach), pulls, violations {own, stale,
// ahead, torn, lost, end}, max_staleness (c minus the smallest value), staleness_sum, told_sum, told_max,
// first_violation, digest} told_*: what the answers themselves said. end: chunks that do not hold exactly all pushes
// after the last clock.
constexpr std::uint32_t kMaxAttaches = 50;

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr int kCountPolls = 2000;
constexpr milliseconds kAttachPause{200};
// So often all chunks of a node come together: a node can only stop, and its ranks agree on it, where they do.
constexpr std::uint64_t kBoundary = 4;

// SplitMix64 (Steele, Lea & Flood 2014).
std::uint64_t mixed(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

class ClockRank {
 public:
  ClockRank(const Options& options, std::vector<TensorSpec> tensors)
      : options_(options),
        nodes_(options.topology.world_size / options.topology.local_world_size),
        own_(options.topology.node_rank),
        tensors_(std::move(tensors)) {}

  Result<Json> run() {
    for (std::uint32_t attach = 1;; ++attach) {
      attaches_ = attach;
      const Result<StepState> ended = view();
      if (ended && *ended != StepState::kRestart) break;
      const bool hopeful = ended || (attach > 1 && may_come_back(ended.error()));
      if (!hopeful) return tl::unexpected(ended.error());
      if (attach == kMaxAttaches) return fail(ErrorCode::kUnavailable, "the view ended again and again");
      session_.reset();
      std::this_thread::sleep_for(kAttachPause);
    }
    stopped_ = clock_ < options_.clocks;
    ParameterDigest digest;
    for (std::size_t t = 0; t < tensors_.size(); ++t) digest.add(tensors_[t], session_->parameters(t));
    const Json result = report(digest.hex());
    const Status told = session_->finish(stopped_ ? LeaveKind::kStopped : LeaveKind::kFinished);
    if (!told && !stopped_) return tl::unexpected(told.error());
    return result;
  }

 private:
  // From the attach to the last clock (kContinue), a stop, or the view's end.
  Result<StepState> view() {
    auto attached =
        Session::attach({.socket = options_.socket, .job = options_.job, .topology = options_.topology}, tensors_);
    if (!attached) return tl::unexpected(attached.error());
    session_ = std::move(*attached);
    if (session_->fresh() && options_.topology.rank == 0) {
      for (std::size_t t = 0; t < tensors_.size(); ++t) std::ranges::fill(session_->initial(t), 0.0f);
    }
    if (auto ok = session_->start(); !ok) {
      const bool over = ok.error().code == ErrorCode::kUnavailable && !session_->stop_reason().empty();
      if (over) return StepState::kRestart;
      return tl::unexpected(ok.error());
    }
    const std::uint64_t start = session_->resume_round().value;
    if (attaches_ == 1) resumed_from_ = start;
    clock_ = start;
    session_->last_round(Round(options_.clocks));
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const std::span<float> gradient = session_->gradient(t);
      for (std::size_t e = 0; e < gradient.size(); ++e) gradient[e] = e % nodes_ == own_ ? -1.0f : 0.0f;
    }
    look_at_first(start);
    if (start >= options_.clocks) return StepState::kContinue;
    for (std::size_t t = 0; t < tensors_.size(); ++t) session_->ready(t, 1);
    for (std::uint64_t clock = start + 1; clock <= options_.clocks; ++clock) {
      const bool boundary = clock % kBoundary == 0 || clock == options_.clocks;
      for (std::size_t t = 0; t < tensors_.size(); ++t) {
        const auto state = session_->wait(t);
        if (!state) return tl::unexpected(state.error());
        if (*state == StepState::kRestart || *state == StepState::kStopped) return state;
        look_at(t, clock);
        if (*state == StepState::kStopRequested) {
          clock_ = clock;
          return state;
        }
        dawdle(clock, t);
        if (!boundary) session_->ready(t, 1);
      }
      clock_ = clock;
      if (clock == options_.clocks) break;
      for (std::size_t t = 0; t < tensors_.size() && boundary; ++t) session_->ready(t, 1);
    }
    return StepState::kContinue;
  }

  // The slow node changes, so that every node is waited for now and then, and waits.
  void dawdle(std::uint64_t clock, std::size_t tensor) const {
    if (mixed(kSeed * 1000003 + clock / kPeriod) % nodes_ != own_) return;
    const std::uint64_t draw = mixed(kSeed ^ (clock << 20) ^ (tensor << 8) ^ own_);
    std::this_thread::sleep_for(std::chrono::microseconds(draw % (kSlowUs + 1)));
  }

  // The number of node's pushes in the chunk; nothing if it is none.
  std::optional<std::uint64_t> applied(std::size_t tensor, std::uint32_t node) const {
    const float value = session_->parameters(tensor)[node];
    if (!(value >= 0.0f) || value != std::floor(value)) return std::nullopt;
    return static_cast<std::uint64_t>(value);
  }

  void look_at_first(std::uint64_t start) {
    first_.assign(tensors_.size(), std::vector<std::uint64_t>(nodes_));
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      for (std::uint32_t node = 0; node < nodes_; ++node) {
        first_[t][node] = applied(t, node).value_or(0);
        if (first_[t][node] < start) violated(lost_, t, start, node);
      }
    }
  }

  void look_at(std::size_t tensor, std::uint64_t clock) {
    const std::span<const float> values = session_->parameters(tensor);
    ++pulls_;
    bool torn = false;
    for (std::size_t e = nodes_; e < values.size(); ++e) torn |= values[e] != values[e - nodes_];
    std::uint64_t slowest = clock;
    const bool bounded = options_.job.mode == Mode::kSsp;
    const std::uint64_t s = options_.job.ssp.staleness;
    const std::uint64_t own = std::max(clock, first_[tensor][own_]);
    for (std::uint32_t node = 0; node < nodes_; ++node) {
      const auto pushes = applied(tensor, node);
      if (!pushes) {
        torn = true;
        continue;
      }
      const std::uint64_t first = first_[tensor][node];
      slowest = std::min(slowest, *pushes);
      if (node == own_ && *pushes != own) violated(missing_, tensor, clock, node);
      if (bounded && *pushes + s < clock) violated(stale_, tensor, clock, node);
      if (bounded && *pushes > std::max(own + s + 1, first)) violated(ahead_, tensor, clock, node);
      if (clock == options_.clocks && *pushes != clock) violated(end_, tensor, clock, node);
    }
    if (torn) violated(torn_, tensor, clock, own_);
    const std::uint64_t staleness = clock - slowest;
    staleness_sum_ += staleness;
    max_staleness_ = std::max(max_staleness_, staleness);
  }

  void violated(std::uint64_t& count, std::size_t tensor, std::uint64_t clock, std::uint32_t node) {
    ++count;
    if (!first_violation_.empty()) return;
    first_violation_ = "chunk " + std::to_string(tensor) + " after clock " + std::to_string(clock) + ": node " +
                       std::to_string(node) + " is at " + std::to_string(session_->parameters(tensor)[node]);
  }

  // The worker's counts arrive a moment after the parameters.
  SessionStats told() const {
    SessionStats stats = session_->stats();
    for (int i = 0; i < kCountPolls && stats.pulls < pulls_ + tensors_.size(); ++i) {
      std::this_thread::sleep_for(milliseconds(1));
      stats = session_->stats();
    }
    return stats;
  }

  Json report(const std::string& digest) const {
    const SessionStats said = attaches_ == 1 ? told() : session_->stats();
    return {
        {"rank", options_.topology.rank},
        {"node", own_},
        {"clock", clock_},
        {"stopped", stopped_},
        {"attaches", attaches_},
        {"resumed_from", resumed_from_},
        {"pulls", pulls_},
        {"violations",
         {{"own", missing_}, {"stale", stale_}, {"ahead", ahead_}, {"torn", torn_}, {"lost", lost_}, {"end", end_}}},
        {"max_staleness", max_staleness_},
        {"staleness_sum", staleness_sum_},
        {"told_sum", said.staleness_sum},
        {"told_max", said.staleness_max},
        {"first_violation", first_violation_},
        {"digest", digest},
    };
  }

  const Options& options_;
  const std::uint32_t nodes_, own_;
  const std::vector<TensorSpec> tensors_;
  std::unique_ptr<Session> session_;
  std::vector<std::vector<std::uint64_t>> first_;  // by chunk, node: pushes in the view's first parameters
  std::uint32_t attaches_ = 0;
  std::uint64_t clock_ = 0, resumed_from_ = 0;
  bool stopped_ = false;
  std::uint64_t pulls_ = 0, missing_ = 0, stale_ = 0, ahead_ = 0, torn_ = 0, lost_ = 0, end_ = 0;
  std::uint64_t max_staleness_ = 0, staleness_sum_ = 0;
  std::string first_violation_;
};

Result<Json> run(const std::vector<std::string>& arguments) {
  if (arguments.size() != 4 || arguments[0] != "--job") {
    return fail(ErrorCode::kInvalidArgument, "usage: clock_rank --job FILE CLOCKS CHUNKS");
  }
  auto job = load_job_config(arguments[1], {});
  if (!job) return tl::unexpected(job.error());
  const auto topology = Topology::from_environment();
  if (!topology) return tl::unexpected(topology.error());
  const char* socket = std::getenv("TRIBUTARY_SOCKET");
  const Options options{.socket = socket == nullptr ? "" : socket,
                        .job = std::move(*job),
                        .topology = *topology,
                        .chunks = static_cast<std::uint32_t>(std::stoul(arguments[3])),
                        .clocks = std::stoull(arguments[2])};
  std::vector<TensorSpec> tensors;
  for (std::uint32_t t = 0; t < options.chunks; ++t)
    tensors.push_back({"chunk" + std::to_string(t), {options.job.chunk_bytes / sizeof(float)}});
  return ClockRank(options, std::move(tensors)).run();
}

}  // namespace
}  // namespace tributary::e2e

int main(int argc, char** argv) {
  const auto result = tributary::e2e::run({argv + 1, argv + argc});
  if (!result) {
    std::fprintf(stderr, "clock_rank: %s\n", result.error().message.c_str());
    return 1;
  }
  std::printf("%s\n", result->dump().c_str());
  return 0;
}
