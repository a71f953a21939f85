#include "bench/pushpull.h"

#include <stdlib.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "bench/echo_ceiling.h"
#include "cluster/http_client.h"
#include "common/digest.h"
#include "common/encoding.h"
#include "worker/session.h"

namespace tributary::bench {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kSlices = 3;
constexpr std::uint64_t kWarmRounds = 3;
constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
constexpr milliseconds kGateTimeout{120'000};

struct TempDir {
  TempDir() {
    char name[] = "/tmp/tributary-bench-XXXXXX";
    if (::mkdtemp(name)) path = name;
  }
  ~TempDir() {
    std::error_code ignored;
    if (!path.empty()) std::filesystem::remove_all(path, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string path;
};

std::vector<TensorSpec> make_tensors(std::uint64_t model_bytes) {
  const std::uint64_t count = std::max(kMinTensors, (model_bytes + kMaxTensorBytes - 1) / kMaxTensorBytes);
  const std::uint64_t elements = std::max<std::uint64_t>(model_bytes / sizeof(float) / count / kTensorAlign, 1) * kTensorAlign;
  std::vector<TensorSpec> tensors;
  for (std::uint64_t i = 0; i < count; ++i) tensors.push_back({"layer" + std::to_string(i), {elements}});
  return tensors;
}

// What the rank threads and the main thread share. Rank 0 ends a slice: it is asked through `pause`, and names the last round before it
// declares anything of that round ready. Nobody can complete that round's first tensor without rank 0, so everybody who
// reaches the next round has seen the name, and all ranks stop after the same round.
struct Shared {
  std::atomic<bool> pause{false};
  std::atomic<std::uint64_t> last_round{kNever};
  std::atomic<std::uint64_t> tensor_bytes{0};  // fp32 bytes of answered tensors, added up over nodes
  std::atomic<std::uint64_t> rounds{0};        // of rank 0

  std::mutex mutex;
  std::condition_variable changed;
  int slice = 0;            // grows when the ranks may go on; guarded by mutex
  std::uint32_t paused = 0;  // ranks at the gate
  bool over = false;
  std::string error;  // the first one

  void report(const std::string& text) {
    const std::lock_guard lock(mutex);
    if (error.empty()) error = text;
    over = true;
    changed.notify_all();
  }
};

struct NodeResult {
  std::uint64_t chunk_bytes = 0;
  std::string digest;  // of rank 0 of the node
  bool finite = true;
  bool moved = true;
  SessionStats stats;
};

class RankThread {
 public:
  RankThread(SessionOptions options, const std::vector<TensorSpec>& tensors, Shared& shared, NodeResult* result)
      : options_(std::move(options)), tensors_(tensors), shared_(shared), result_(result) {}

  void run() {
    if (auto ok = train(); !ok) shared_.report("rank " + std::to_string(options_.topology.rank) + ": " + ok.error().message);
  }

 private:
  static constexpr float kInitial = 1.0f;

  Status train() {
    auto attached = Session::attach(options_, tensors_);
    if (!attached) return tl::unexpected(attached.error());
    Session& session = **attached;
    const bool is_first = options_.topology.rank == 0;
    if (is_first && session.fresh()) {
      for (std::size_t t = 0; t < tensors_.size(); ++t) std::ranges::fill(session.initial(t), kInitial);
    }
    if (auto ok = session.start(); !ok) return ok;
    if (result_) result_->chunk_bytes = session.layout().chunk_elements() * sizeof(float);
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      float value = 1e-3f * static_cast<float>(options_.topology.rank + 1);
      for (float& g : session.gradient(t)) g = value = -value;
    }
    int slice = 0;
    for (std::uint64_t round = 1;; ++round) {
      for (std::size_t t = 0; t < tensors_.size(); ++t) {
        if (round > 1) {
          const auto state = session.wait(t);
          if (!state) return tl::unexpected(state.error());
          if (*state != StepState::kContinue) return fail(ErrorCode::kStopped, "stopped: " + session.stop_reason());
          if (result_) shared_.tensor_bytes.fetch_add(tensors_[t].elements() * sizeof(float), std::memory_order_relaxed);
        }
        if (t == 0) {
          if (is_first && shared_.pause.load()) shared_.last_round.store(round), shared_.pause.store(false);
          if (round > shared_.last_round.load()) {
            if (auto ok = session.wait(); !ok) return tl::unexpected(ok.error());
            if (!gate(++slice)) return finish(session);
          }
          if (is_first) shared_.rounds.store(round);
        }
        session.ready(t, 1);
      }
    }
  }

  // All ranks wait here between slices. False: that was the last.
  bool gate(int slice) {
    std::unique_lock lock(shared_.mutex);
    ++shared_.paused;
    shared_.changed.notify_all();
    shared_.changed.wait(lock, [&] { return shared_.slice >= slice || shared_.over; });
    return !shared_.over;
  }

  Status finish(Session& session) {
    if (result_) {
      const Layout& layout = session.layout();
      DigestBuilder digest;
      for (std::size_t t = 0; t < tensors_.size(); ++t) {
        const std::span<const float> parameters = session.parameters(t);
        for (const float p : parameters) {
          result_->finite = result_->finite && std::isfinite(p);
          result_->moved = result_->moved && p != kInitial;
        }
        digest.add(layout.tensors()[t].name, parameters);
      }
      result_->digest = digest.hex();
      result_->stats = session.stats();
    }
    return session.finish(LeaveKind::kFinished);
  }

  const SessionOptions options_;
  const std::vector<TensorSpec>& tensors_;
  Shared& shared_;
  NodeResult* result_;  // of this rank's node, if this is its first rank
};

}  // namespace
}  // namespace tributary::bench
