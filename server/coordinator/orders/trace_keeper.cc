#include "server/coordinator/orders/trace_keeper.h"

namespace tributary {

std::string in_words(const TraceSource& source) {
  return (source.server ? "server " : "node ") + std::to_string(source.number);
}

std::uint64_t TraceKeeper::begin(const std::string& job, const TraceRounds& order,
                                 std::map<std::uint64_t, TraceSource> sources, std::uint64_t now_ms) {
  trace_ = Trace{.id = ++last_id_,
                 .job = job,
                 .order = order,
                 .awaited = std::move(sources),
                 .pieces = {},
                 .reached = {},
                 .patience = Patience(kPatienceMs, now_ms),
                 .why_cut = {},
                 .short_because = {}};
  return last_id_;
}

void TraceKeeper::on(std::uint64_t incarnation, const TracePart& part) {
  if (!recording()) return;
  Trace& trace = *trace_;
  const bool ours = part.job == trace.order.job && part.view == trace.order.view && part.first == trace.order.first;
  const auto from = trace.awaited.find(incarnation);
  if (!ours || from == trace.awaited.end()) return;
  ++trace.moved;
  trace.lost += part.lost;
  if (trace.events + part.events.size() > kMaxEvents) {
    trace.lost += part.events.size();
  } else if (!part.events.empty()) {
    trace.events += part.events.size();
    trace.pieces.push_back({from->second, part});
  }
  if (!part.done) return;
  trace.awaited.erase(from);
  if (!trace.awaited.empty()) return;
  trace.over = true;
  trace.short_because = trace.why_cut;
}

void TraceKeeper::await_last_words(const std::string& why_cut, std::uint64_t now_ms) {
  trace_->last_words = true;
  trace_->why_cut = why_cut;
  trace_->patience = Patience(kLastWordsMs, now_ms);
}

std::optional<TraceRounds> TraceKeeper::tick(Round reached, bool in_view, const std::string& why_over,
                                             std::uint64_t now_ms) {
  if (!recording()) return std::nullopt;
  Trace& trace = *trace_;
  if (reached > trace.reached) {
    trace.reached = reached;
    if (!trace.last_words) ++trace.moved;
  }
  if (!in_view && trace.why_cut.empty()) {
    await_last_words("the view ended: " + why_over, now_ms);
  } else if (!trace.last_words && reached > trace.order.last.next()) {
    await_last_words({}, now_ms);
  }
  if (!trace.patience.over(trace.moved, now_ms)) return std::nullopt;
  if (!trace.last_words) {
    await_last_words("no round got done and nobody sent anything for " + std::to_string(kPatienceMs / 1000) + " s",
                     now_ms);
    return TraceRounds{trace.order.job, trace.order.view, trace.order.first, Round()};
  }
  trace.over = true;
  trace.short_because = trace.why_cut;
  for (const auto& [incarnation, source] : trace.awaited)
    trace.short_because += (trace.short_because.empty() ? "" : "; ") + in_words(source) + " sent not all";
  return std::nullopt;
}

std::optional<TraceStatus> TraceKeeper::status(std::uint64_t id) const {
  if (!trace_ || trace_->id != id) return std::nullopt;
  const Trace& trace = *trace_;
  std::vector<TraceSource> awaited;
  for (const auto& [incarnation, source] : trace.awaited) awaited.push_back(source);
  return TraceStatus{trace.id,   trace.job,           trace.order.first,  trace.order.last,    trace.reached,
                     trace.over, trace.short_because, std::move(awaited), trace.pieces.size(), trace.events,
                     trace.lost};
}

std::optional<TracePiece> TraceKeeper::piece(std::uint64_t id, std::size_t number) const {
  if (!trace_ || trace_->id != id || number >= trace_->pieces.size()) return std::nullopt;
  return trace_->pieces[number];
}

}  // namespace tributary
