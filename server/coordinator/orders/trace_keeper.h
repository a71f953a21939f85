// TraceKeeper: the newest trace that was ordered (docs/trace.md): its sources, its status and its parts, until the next
// trace takes its place. Pure: the coordinator's core passes on the peers' messages, and sends the orders that are
// returned. There is one trace at a time, over all jobs, so that its memory has one bound.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/patience.h"
#include "common/wire/messages.h"

namespace tributary {

// A daemon that records: a server by its index, a worker's node by its number.
struct TraceSource {
  bool server = false;
  std::uint32_t number = 0;
  auto operator<=>(const TraceSource&) const = default;
};
std::string in_words(const TraceSource& source);

// A part, as the client that fetches the trace gets it.
struct TracePiece {
  TraceSource source;
  TracePart part;
};

struct TraceStatus {
  std::uint64_t id = 0;
  std::string job;
  Round first, last;
  Round reached;  // the newest round that the coordinator knows of
  bool over = false;
  std::string short_because;  // over, and something is missing; empty: nothing is
  std::vector<TraceSource> awaited;
  std::size_t parts = 0;
  std::uint64_t events = 0, lost = 0;
};

class TraceKeeper {
 public:
  static constexpr std::size_t kMaxEvents = 1u << 19;  // of all daemons together: 16 MiB, and some 200 MB in a file
  // A trace without a new round or part for so long ends as it is.
  static constexpr std::uint64_t kPatienceMs = 60'000;
  // When the rounds or the view are over, daemons have so long for each part. One of an older release sends none.
  static constexpr std::uint64_t kLastWordsMs = 30'000;

  bool recording() const { return trace_ && !trace_->over; }
  // Begins a trace and returns its id. The caller sends the order to the sources, by incarnation of their processes.
  std::uint64_t begin(const std::string& job, const TraceRounds& order, std::map<std::uint64_t, TraceSource> sources,
                      std::uint64_t now_ms);
  // Returns the rounds that are being recorded; null: none are.
  const TraceRounds* order() const { return recording() ? &trace_->order : nullptr; }
  const std::string& job() const { return trace_->job; }  // REQUIRES: order()

  // Takes a part; ignores one from a process that is not a source.
  void on(std::uint64_t incarnation, const TracePart& part);
  // reached: the job's newest round; in_view: its view continues. Returns an order to be sent to the sources, if any.
  std::optional<TraceRounds> tick(Round reached, bool in_view, const std::string& why_over, std::uint64_t now_ms);

  // Return the status or a piece of the trace with that id; nothing: it is not the newest.
  std::optional<TraceStatus> status(std::uint64_t id) const;
  std::optional<TracePiece> piece(std::uint64_t id, std::size_t number) const;

 private:
  struct Trace {
    std::uint64_t id = 0;
    std::string job;
    TraceRounds order;
    std::map<std::uint64_t, TraceSource> awaited;
    std::vector<TracePiece> pieces;
    std::uint64_t events = 0, lost = 0;
    Round reached;
    std::uint64_t moved = 0;  // grows with every part, and until last_words with every round
    Patience patience;
    bool last_words = false;  // nothing more is recorded
    std::string why_cut;      // why daemons send an incomplete trace; empty: it is complete
    bool over = false;
    std::string short_because;
  };
  void await_last_words(const std::string& why_cut, std::uint64_t now_ms);

  std::optional<Trace> trace_;
  std::uint64_t last_id_ = 0;
};

}  // namespace tributary
