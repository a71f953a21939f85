// PaceMeter: the phases of a node's rounds, as a lane sees them: computing (from the last answer of a round to the last
// gradient of the next one), then the network (until servers have acknowledged all of it). The rest is waiting for
// other nodes, through no fault of this one. The phases' times go into histograms, too. Pure.
//
// A lane's chunks go through rounds one by one, but all gradients of a round come before the first of the next, and a
// trainer needs all answers of a round before it has any gradient of the next: so counting is enough.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/histogram.h"

namespace tributary {

struct PhaseTimes {
  Histogram round, compute, network;  // round: from one's last answer to the next one's
};

class PaceMeter {
 public:
  PaceMeter(std::size_t chunks, PhaseTimes& times) : chunks_(chunks), times_(times) {}

  // A chunk has its answer; the first answers are those that the view begins with.
  void answered(std::uint64_t now_ns) {
    if (++answered_ % chunks_ != 0) return;
    if (rounds_ > 1) times_.round.observe(now_ns - answered_ns_);
    answered_ns_ = now_ns;
    busy_then_ns_ = busy_ns_;
  }
  // So many more chunks have the gradients of all ranks, which are sums over so many samples. busy_ns: the lane's time
  // of reducing since it began. Where computing and reducing overlap, the time counts as reducing.
  void gathered(std::size_t chunks, std::uint64_t samples, std::uint64_t now_ns, std::uint64_t busy_ns) {
    if (chunks == 0) return;
    gathered_ += chunks;
    if (gathered_ % chunks_ != 0) return;
    const std::uint64_t elapsed = now_ns - answered_ns_, reducing = busy_ns - busy_then_ns_;
    if (rounds_ > 0) {  // the first one is not usual: everything is done for the first time
      const std::uint64_t computing = elapsed > reducing ? elapsed - reducing : 0;
      compute_ns_ += computing;
      times_.compute.observe(computing);
      samples_ += samples;
    }
  }
  // A chunk has been reduced and is on its way. After the last one of a round the network's time begins.
  void reduced(std::uint64_t now_ns, std::uint64_t busy_ns) {
    busy_ns_ = busy_ns;
    if (++reduced_ % chunks_ != 0) return;
    under_way_ = true;
    reduced_ns_ = now_ns;
  }
  // Nothing is under way to a server. Returns true if this ends a round whose last chunk has been reduced.
  bool acknowledged(std::uint64_t now_ns) {
    if (!under_way_) return false;
    under_way_ = false;
    if (rounds_ > 0) {
      network_ns_ += now_ns - reduced_ns_;
      times_.network.observe(now_ns - reduced_ns_);
    }
    ++rounds_;
    return true;
  }

  // Rounds that the times are about: all but the first.
  std::uint64_t rounds() const { return rounds_ > 0 ? rounds_ - 1 : 0; }
  std::uint64_t compute_ns() const { return compute_ns_; }
  std::uint64_t network_ns() const { return network_ns_; }
  std::uint64_t samples() const { return samples_; }

 private:
  const std::size_t chunks_;
  PhaseTimes& times_;
  std::uint64_t answered_ = 0, gathered_ = 0, reduced_ = 0;
  std::uint64_t answered_ns_ = 0, reduced_ns_ = 0;
  std::uint64_t busy_ns_ = 0, busy_then_ns_ = 0;  // the newest value, and that at the last answer
  bool under_way_ = false;
  std::uint64_t rounds_ = 0;
  std::uint64_t compute_ns_ = 0, network_ns_ = 0, samples_ = 0;
};

}  // namespace tributary
