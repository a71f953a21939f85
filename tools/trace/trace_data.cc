#include "tools/trace/trace_data.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace tributary::trace {
namespace {

using Json = nlohmann::ordered_json;

Error malformed(const std::string& what) {
  return {ErrorCode::kMalformed, "the coordinator answered with " + what + "; tool and servers must be of one release"};
}

bool is_number(const Json& object, const char* key) {
  return object.contains(key) && object.at(key).is_number_unsigned();
}

// [kind, round after the first, chunk, peer, begin_ns, end_ns]
bool read_event(const Json& row, TraceEvent& event) {
  const auto number = [](const Json& value) { return value.is_number_unsigned(); };
  if (!row.is_array() || row.size() != 6 || !std::ranges::all_of(row, number)) return false;
  const auto at = [&](std::size_t i) { return row[i].get<std::uint64_t>(); };
  if (at(0) > static_cast<std::uint64_t>(TraceKind::kWaited) || at(1) >= kMaxTraceRounds || at(2) > ~0u ||
      at(3) > ~0u) {
    return false;
  }
  event = {at(4),
           at(5),
           static_cast<std::uint32_t>(at(2)),
           static_cast<std::uint32_t>(at(3)),
           static_cast<std::uint16_t>(at(1)),
           static_cast<TraceKind>(at(0))};
  constexpr std::uint64_t kLatest = ~0ull >> 2;  // so that differences of times are numbers with a sign
  return event.begin_ns <= event.end_ns && event.end_ns <= kLatest;
}

}  // namespace

std::string in_words(const Daemon& daemon) {
  return (daemon.server ? "server " : "node ") + std::to_string(daemon.number);
}

Result<Data> data_of(const Json& status) {
  const bool known = status.contains("job") && status.at("job").is_string() && is_number(status, "first") &&
                     is_number(status, "last") && is_number(status, "lost");
  if (!known) return tl::unexpected(malformed("no trace"));
  Data data;
  data.job = status.at("job");
  data.first = Round(status.at("first"));
  data.last = Round(status.at("last"));
  data.lost = status.at("lost");
  data.short_because = status.value("short_because", "");
  if (data.last < data.first || data.rounds() > kMaxTraceRounds)
    return tl::unexpected(malformed("rounds that are none"));
  return data;
}

Status add_piece(Data& data, const Json& piece) {
  const bool known = is_number(piece, "number") && is_number(piece, "track") && is_number(piece, "index") &&
                     piece.contains("events") && piece.at("events").is_array() &&
                     piece.at("track").get<std::uint64_t>() <= static_cast<std::uint64_t>(TraceTrack::kTrainer);
  if (!known) return tl::unexpected(malformed("no part of a trace"));
  const Daemon daemon{piece.value("daemon", "") == "server", piece.at("number")};
  const auto kind = static_cast<TraceTrack>(piece.at("track").get<unsigned>());
  const std::uint16_t index = piece.at("index");
  auto track = std::ranges::find_if(
      data.tracks, [&](const Track& one) { return one.daemon == daemon && one.kind == kind && one.index == index; });
  if (track == data.tracks.end()) track = data.tracks.insert(track, Track{daemon, kind, index, {}});
  for (const Json& row : piece.at("events")) {
    TraceEvent event;
    if (!read_event(row, event)) return tl::unexpected(malformed("an event of a trace that is none"));
    track->events.push_back(event);
  }
  std::ranges::sort(data.tracks, {}, [](const Track& one) {
    return std::tuple(!one.daemon.server, one.daemon.number, one.kind, one.index);
  });
  return {};
}

bool takes_place(TraceKind kind) {
  switch (kind) {
    case TraceKind::kReady:
    case TraceKind::kAcknowledged:
    case TraceKind::kMeterCompute:
    case TraceKind::kMeterReduce:
    case TraceKind::kMeterNetwork:
      return false;
    default:
      return true;
  }
}

void set_apart(Data& data) {
  for (Track& track : data.tracks) {
    std::ranges::stable_sort(track.events, {}, [](const TraceEvent& e) { return std::pair(e.begin_ns, e.end_ns); });
    std::uint64_t free_from = 0;
    for (TraceEvent& event : track.events) {
      if (!takes_place(event.kind)) continue;
      event.begin_ns = std::max(event.begin_ns, free_from);
      event.end_ns = std::max(event.end_ns, event.begin_ns + 1);
      free_from = event.end_ns;
    }
  }
}

bool Chain::whole() const {
  for (const std::int64_t time : {ready, reduced_begin, reduced_end, sent, received, step_begin, step_end, answered,
                                  arrived_begin, arrived_end}) {
    if (time == kMissing) return false;
  }
  return true;
}

// If an event was recorded twice, because its message was sent twice, the first counts.
std::vector<Chain> chains_of(const Data& data) {
  std::map<std::tuple<std::uint32_t, std::uint16_t, std::uint32_t>, Chain> chains;
  std::map<std::tuple<std::uint16_t, std::uint32_t>, std::pair<std::int64_t, std::int64_t>> steps;
  const auto first = [](std::int64_t& time, std::uint64_t ns) {
    if (time == Chain::kMissing) time = static_cast<std::int64_t>(ns);
  };
  for (const Track& track : data.tracks) {
    for (const TraceEvent& e : track.events) {
      if (e.kind == TraceKind::kStepped) {
        steps.try_emplace({e.round, e.chunk}, static_cast<std::int64_t>(e.begin_ns),
                          static_cast<std::int64_t>(e.end_ns));
        continue;
      }
      const bool of_chunk = track.kind != TraceTrack::kTrainer &&
                            (takes_place(e.kind) || e.kind == TraceKind::kReady || e.kind == TraceKind::kAcknowledged);
      if (!of_chunk) continue;
      const std::uint32_t node = track.daemon.server ? e.peer : track.daemon.number;
      Chain& chain = chains[{node, e.round, e.chunk}];
      chain.node = node;
      chain.round = e.round;
      chain.chunk = e.chunk;
      if (track.daemon.server) {
        chain.server = track.daemon.number;
        chain.server_lane = track.index;
        first(e.kind == TraceKind::kReceived ? chain.received : chain.answered, e.begin_ns);
        continue;
      }
      chain.worker_lane = track.index;
      if (e.kind == TraceKind::kReady) first(chain.ready, e.begin_ns);
      if (e.kind == TraceKind::kSent) first(chain.sent, e.begin_ns);
      if (e.kind == TraceKind::kAcknowledged) first(chain.acknowledged, e.begin_ns);
      if (e.kind == TraceKind::kReduced && chain.reduced_begin == Chain::kMissing) {
        chain.reduced_begin = static_cast<std::int64_t>(e.begin_ns);
        chain.reduced_end = static_cast<std::int64_t>(e.end_ns);
      }
      if (e.kind == TraceKind::kArrived && chain.arrived_begin == Chain::kMissing) {
        chain.arrived_begin = static_cast<std::int64_t>(e.begin_ns);
        chain.arrived_end = static_cast<std::int64_t>(e.end_ns);
      }
    }
  }
  std::vector<Chain> all;
  for (auto& [key, chain] : chains) {
    if (const auto step = steps.find({chain.round, chain.chunk}); step != steps.end())
      std::tie(chain.step_begin, chain.step_end) = step->second;
    all.push_back(chain);
  }
  return all;
}

}  // namespace tributary::trace
