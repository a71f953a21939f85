// ViewProgress: how far one view of an all-reduce job is on this node, with the one lock that its threads share, and
// what the nodes have published to be connected. AllreduceJob owns it; all its parts use it.
//
//   kBeginning ──► kTraining ──► kParting
//        └─────────────┴─► kFailed ─► kCut      (and straight to kCut)
//
// The lock guards, beside that, what other parts say it guards. A stream takes it once per bucket to wait and once to
// publish, and the lane when trainers ring.
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

// Of a node: two of the control ring (for its previous member and for its next), then its exchange's.
using Addresses = std::vector<std::vector<std::byte>>;
inline constexpr std::size_t kControlAddresses = 2;
std::vector<std::byte> encode(const Addresses& addresses);

class ViewProgress {
 public:
  enum class Phase : std::uint8_t {
    kBeginning,  // the rings connect, the first values are passed on
    kTraining,
    kFailed,   // the lane's listener knows why, and will have the view closed
    kParting,  // closed in good order: the neighbours get what they still need
    kCut,      // closed at once
  };

  // patience: with other nodes' addresses.
  ViewProgress(std::shared_ptr<NodeJob> job, NodeLane& lane, std::chrono::milliseconds patience)
      : job_(std::move(job)), lane_(lane), patience_(patience) {}

  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  // After a change under the lock that somebody may wait for.
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

  void publish(std::uint32_t node, const std::vector<std::byte>& encoded);  // a node says it once
  // Waits for what `node` publishes: kControlAddresses and `others` more.
  Result<Addresses> addresses_of(std::uint32_t node, std::size_t others);

  // The view cannot go on. Unless it is over: enters kFailed and tells the lane's listener.
  void failed(LaneFailure failure);
  // Likewise, for what this node says of itself. doing: what failed, may be empty. kStopped is no failure; kUnavailable
  // is a connection that broke, so another node is gone: the coordinator knows more, or will soon.
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
