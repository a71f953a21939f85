// StragglerWatch: which nodes of a job lag behind the others, and in which phase of a round. Pure: nodes' reports in,
// verdicts out.
//
// A node's own time of a round is that of computing, reducing and sending, without waits for others. A node lags if its
// own time was at least kSlow times the others' median in kPatience windows in a row. It lags no more after as many
// windows below kFine times. The phase is the one in which the node is furthest above the others' median. A window is
// the time between two reports that are kWindowRounds or more apart, so that a single slow round is no news.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/wire/messages.h"

namespace tributary {

enum class RoundPhase { kCompute, kReduction, kNetwork };
// "compute", "node reduction", "network".
const char* to_text(RoundPhase phase);

class StragglerWatch {
 public:
  static constexpr std::uint64_t kWindowRounds = 4;
  static constexpr std::uint32_t kPatience = 3;
  static constexpr double kSlow = 1.3, kFine = 1.15;
  static constexpr double kMinExcessMs = 2.0;  // below that nobody is slow

  // Milliseconds a round.
  struct Times {
    double compute = 0.0, reduction = 0.0, network = 0.0;
    double total() const { return compute + reduction + network; }
  };
  struct Lag {
    RoundPhase phase = RoundPhase::kCompute;
    double factor = 1.0;                  // own time by the others'
    double own_ms = 0.0, usual_ms = 0.0;  // in that phase: its own, and the others' median
  };
  struct Node {
    std::uint32_t node = 0;
    Times times;
    std::optional<Lag> lag;
  };
  struct News {
    std::uint32_t node = 0;
    std::optional<Lag> lag;  // none: it has caught up
  };

  // by_samples: nodes compute until a deadline (sync.deadline_ms), so times are compared for equal numbers of samples.
  explicit StragglerWatch(bool by_samples = false) : by_samples_(by_samples) {}

  // Takes a node's totals since the view began. Returns news for the operator, if there is any.
  std::optional<News> note(const NodePace& pace);
  // Returns all nodes that have reported, ascending.
  std::vector<Node> nodes() const;

 private:
  struct Known {
    NodePace at;  // where the window begins
    bool measured = false;
    Times times;                       // of the last window
    double samples = 0.0;              // a round, in it
    std::uint32_t slow = 0, fine = 0;  // windows in a row
    std::optional<Lag> lag;
  };
  Times comparable(const Known& known, double samples) const;
  std::optional<Lag> against_others(std::uint32_t node) const;

  bool by_samples_;
  std::map<std::uint32_t, Known> known_;
};

// "takes 3.0 times as long for a round as the others, most of it in phase compute: 153.2 ms, others 51.0 ms".
std::string in_words(const StragglerWatch::Lag& lag);

}  // namespace tributary
