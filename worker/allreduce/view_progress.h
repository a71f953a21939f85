// ViewProgress: the phase of one view of an all-reduce job on this node, with the one lock that the view's threads
// share, and the addresses that the nodes have published. AllreduceJob owns it; all its parts use it.
//
//   kBeginning ──► kTraining ──► kParting
//        └─────────────┴─► kFailed ─► kCut      (and straight to kCut)
//
// The lock also guards members of other parts, as their comments state. A stream takes it once per bucket to wait and
// once to publish; the lane takes it when trainers ring.
//
// Thread rule: any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "worker/node/node_lane.h"

namespace tributary {

// A node's addresses: two of the control ring (for its previous member and for its next), then its exchange's.
using Addresses = std::vector<std::vector<std::byte>>;
inline constexpr std::size_t kControlAddresses = 2;
std::vector<std::byte> encode(const Addresses& addresses);

class ViewProgress {
 public:
  enum class Phase : std::uint8_t {
    kBeginning,  // the rings connect, the first values are passed on
    kTraining,
    kFailed,   // the lane's listener knows why, and will have the view closed
    kParting,  // closed cleanly: the neighbours get the data that they still need
    kCut,      // closed at once
  };

  // patience: with other nodes' addresses.
  ViewProgress(std::shared_ptr<NodeJob> job, NodeLane& lane, std::chrono::milliseconds patience)
      : job_(std::move(job)), lane_(lane), patience_(patience) {}

  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  // Call it after a change under the lock that a thread may wait for.
  void notify() { changed_.notify_all(); }

  // REQUIRES of these four: the lock.
  Phase phase() const { return phase_; }
  bool over() const { return phase_ >= Phase::kFailed; }
  bool closed() const { return phase_ >= Phase::kParting; }
  void enter(Phase phase) { phase_ = phase; }

  // Waits until `there()`, which is called under the lock. kStopped: the view is over; kTimeout: after `limit`.
  template <class Condition>
  Status await(Condition there, std::optional<std::chrono::milliseconds> limit = std::nullopt);
  Phase await_close();

  void publish(std::uint32_t node, const std::vector<std::byte>& encoded);  // once per node
  // Waits for the addresses that `node` publishes: kControlAddresses and `others` more.
  Result<Addresses> addresses_of(std::uint32_t node, std::size_t others);

  // Ends a view that cannot continue. Unless it is over: enters kFailed and reports the failure to the lane's listener.
  void failed(LaneFailure failure);
  // Likewise, for a failure that this node noticed. doing: the failed operation, may be empty. kStopped is no failure;
  // kUnavailable is a broken connection, so another node is gone: the coordinator knows more, or will soon.
  void failed(const std::string& doing, const Error& error);
  void tell(LaneFailure failure) { lane_.failed(job_, std::move(failure)); }
  std::string place() const;  // of this node, in messages

  static tl::unexpected<Error> stopped() { return fail(ErrorCode::kStopped, "the view is over"); }

 private:
  const std::shared_ptr<NodeJob> job_;
  NodeLane& lane_;
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Phase phase_ = Phase::kBeginning;
  std::map<std::uint32_t, std::vector<std::byte>> published_;  // by node
};

template <class Condition>
Status ViewProgress::await(Condition there, std::optional<std::chrono::milliseconds> limit) {
  std::unique_lock lock(mutex_);
  const auto awaited = [&] { return over() || there(); };
  if (!limit) changed_.wait(lock, awaited);
  if (limit && !changed_.wait_for(lock, *limit, awaited)) return fail(ErrorCode::kTimeout, "it took too long");
  return over() ? stopped() : Status();
}

}  // namespace tributary
