// The ranks of `tributary bench pushpull`: threads that attach as trainers do, and pause and resume together.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/layout.h"
#include "common/base/result.h"
#include "session/session.h"

namespace tributary::bench {

// The findings of a node's first rank after the last round.
struct NodeResult {
  std::string digest;
  bool finite = true;  // every parameter
  bool moved = true;   // every parameter differs from its initial value
};

// Ranks whose gradients and parameters are in device memory that the worker lends.
struct RankDevice {
  std::shared_ptr<TrainerDevice> opener;
  std::function<Status(void* device, const void* host, std::size_t bytes)> write;
  std::function<Status(void* host, const void* device, std::size_t bytes)> read;
};

// All ranks of all nodes. They run in slices: resume() starts them, pause() stops all of them after the same round.
//
// Rank 0 names that round (last_round_) before it declares any of the round's tensors ready. No rank can complete the
// round's first tensor without rank 0, so every rank that reaches the next round has seen the name.
class Ranks {
 public:
  // One thread for each; all attach at once, and wait for resume(). first_of_node: options of the ranks with local rank
  // 0, by the node's number. An element of `sessions` is a rank; if its gradients may move, it writes them in every
  // round, else once. device: of all of them; without one: host memory.
  Ranks(std::vector<SessionOptions> sessions, std::vector<TensorSpec> tensors,
        std::optional<RankDevice> device = std::nullopt);
  ~Ranks();  // end(), and joins: the daemons must answer, or be gone, by then

  // `healthy` is called now and then while waiting; an error of it ends the wait. Errors: kTimeout, or a rank's error.
  using Healthy = std::function<Status()>;
  Status wait_paused(const Healthy& healthy);
  void resume();
  Status pause(const Healthy& healthy);
  // Waits until `condition`, at most `seconds`.
  Status wait_until(const std::function<bool()>& condition, double seconds, const Healthy& healthy);
  // REQUIRES: paused. All ranks examine their parameters, detach and end. Returns the nodes' results.
  Result<std::vector<NodeResult>> finish();
  // Ends all ranks without results: at once if paused, else after the round, if that is answered.
  void end();

  std::uint64_t rounds() const { return rounds_.load(); }  // begun by rank 0
  std::uint64_t chunk_bytes() const { return chunk_bytes_.load(); }
  // Payload bytes of all nodes since the attach; only between the first wait_paused() and finish().
  SessionStats totals() const;

 private:
  void run(std::size_t rank);
  Status train(std::size_t rank);
  bool gate(std::uint64_t slice);
  Status fill_gradients(Session& session, std::span<const float> pattern) const;
  Status examine(const Session& session, NodeResult& result) const;

  static constexpr float kInitial = 1.0f;
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

  const std::vector<SessionOptions> sessions_;
  const std::vector<TensorSpec> tensors_;
  const std::optional<RankDevice> device_;
  std::vector<NodeResult> results_;                         // by node
  std::vector<std::atomic<const Session*>> node_sessions_;  // of each node's first rank
  std::atomic<std::uint64_t> chunk_bytes_{0};
  std::atomic<std::uint64_t> rounds_{0};
  std::atomic<bool> pause_{false};
  std::atomic<std::uint64_t> last_round_{kNever};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t slice_ = 0;  // grows with every resume(); guarded by mutex_, as all below
  std::size_t paused_ = 0;   // ranks at the gate
  bool over_ = false;
  std::string error_;  // the first rank's that failed

  std::vector<std::jthread> threads_;  // last: joined before the members that they use are destroyed
};

}  // namespace tributary::bench
