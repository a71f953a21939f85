// TraceKeeper: the newest trace that somebody ordered (docs/trace.md): who records it, what has come of it, and what
// was recorded, until the next one takes its place. Pure: the coordinator's core hands it what its peers say, and sends
// what it returns. One at a time, of all jobs, so that its memory has one bound.
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

// Who records: a server by its index, a worker's node by its number.
struct TraceSource {
  bool server = false;
  std::uint32_t number = 0;
  auto operator<=>(const TraceSource&) const = default;
};
std::string in_words(const TraceSource& source);

// A part as it is told to whoever fetches the trace.
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
  // Without a round and without a part for so long, what there is has to do.
  static constexpr std::uint64_t kPatienceMs = 60'000;
  // When the rounds, or the view, are over daemons have so long for each part. One of an older release sends none.
  static constexpr std::uint64_t kLastWordsMs = 30'000;

  bool recording() const { return trace_ && !trace_->over; }
  // Its id. The order is to be sent to those who record: by the incarnation of their processes.
  std::uint64_t begin(const std::string& job, const TraceRounds& order, std::map<std::uint64_t, TraceSource> sources,
                      std::uint64_t now_ms);
  // Whose rounds these are; null: nothing is being recorded.
  const TraceRounds* order() const { return recording() ? &trace_->order : nullptr; }
  const std::string& job() const { return trace_->job; }  // REQUIRES: order()

  // Of a process that may be none of the trace's: then nothing happens.
  void on(std::uint64_t incarnation, const TracePart& part);
  // The newest round of the job; in_view: the view goes on. Anything to be sent to those who record?
  std::optional<TraceRounds> tick(Round reached, bool in_view, const std::string& why_over, std::uint64_t now_ms);

  // Of the trace of that id; nothing: it is not the newest.
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
    std::string why_cut;      // daemons send what they have by then, and why; empty: they have all
    bool over = false;
    std::string short_because;
  };
  void await_last_words(const std::string& why_cut, std::uint64_t now_ms);

  std::optional<Trace> trace_;
  std::uint64_t last_id_ = 0;
};

}  // namespace tributary
