#include "server/orders/trace_http.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "server/orders/order_body.h"
#include "server/orders/order_http.h"

namespace tributary {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kTraceOrder[] = "/trace/order";
constexpr char kTracePrefix[] = "/trace/";

Json source_json(const TraceSource& source) {
  return {{"daemon", source.server ? "server" : "worker"}, {"number", source.number}};
}

AdminHttp::Answer order_trace(Coordinator& coordinator, const std::string& body) {
  Result<TraceOrder> order = trace_order_of(body);
  if (!order) return refusal(order.error());
  return accepted(coordinator.trace_job(std::move(order->job), order->rounds));
}

AdminHttp::Answer trace_status(const TraceStatus& trace) {
  Json awaited = Json::array();
  for (const TraceSource& source : trace.awaited) awaited.push_back(source_json(source));
  return {200, text_of({{"id", trace.id},
                        {"job", trace.job},
                        {"first", trace.first.value},
                        {"last", trace.last.value},
                        {"reached", trace.reached.value},
                        {"over", trace.over},
                        {"short_because", trace.short_because},
                        {"awaited", std::move(awaited)},
                        {"parts", trace.parts},
                        {"events", trace.events},
                        {"lost", trace.lost}})};
}

// Events are rows, because there are many: [kind, round after the first, chunk, peer, begin_ns, end_ns].
AdminHttp::Answer piece(const TracePiece& piece) {
  Json events = Json::array();
  for (const TraceEvent& e : piece.part.events) {
    events.push_back({static_cast<unsigned>(e.kind), e.round, e.chunk, e.peer, e.begin_ns, e.end_ns});
  }
  Json json = source_json(piece.source);
  json["track"] = static_cast<unsigned>(piece.part.track);
  json["index"] = piece.part.index;
  json["lost"] = piece.part.lost;
  json["events"] = std::move(events);
  return {200, text_of(json)};
}

}  // namespace

std::optional<AdminHttp::Answer> answer_trace(Coordinator& coordinator, const std::string& path,
                                              const std::string* body) {
  if (!path.starts_with(kTracePrefix)) return std::nullopt;
  if (body != nullptr) return path == kTraceOrder ? std::optional(order_trace(coordinator, *body)) : std::nullopt;
  const std::string what = path.substr(sizeof kTracePrefix - 1);
  const std::size_t slash = what.find('/');
  const std::optional<std::uint64_t> id = number_in(what.substr(0, slash));
  if (!id) return gone("trace", what);
  if (slash == std::string::npos) {
    const auto found = coordinator.trace(*id);
    return found ? trace_status(*found) : gone("trace", what);
  }
  const std::optional<std::uint64_t> number = number_in(what.substr(slash + 1));
  const auto found = number ? coordinator.trace_piece(*id, *number) : std::nullopt;
  return found ? piece(*found) : gone("trace", what);
}

}  // namespace tributary
