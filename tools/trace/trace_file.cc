#include "tools/trace/trace_file.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "common/base/printed.h"

namespace tributary::trace {
namespace {

using Json = nlohmann::ordered_json;

// Numbers of Perfetto's processes, one for each daemon and each trainer, and of their threads.
class Places {
 public:
  struct Place {
    unsigned process = 0, thread = 0;
  };
  Place of(const Daemon& daemon, TraceTrack kind, std::uint16_t index) {
    const bool trainer = kind == TraceTrack::kTrainer;
    const std::tuple key(trainer, daemon, trainer ? index : std::uint16_t{0});
    const auto known = processes_.try_emplace(key, static_cast<unsigned>(processes_.size() + 1)).first;
    return {known->second, trainer ? 1u : index + 1u};
  }

 private:
  std::map<std::tuple<bool, Daemon, std::uint16_t>, unsigned> processes_;
};

std::string micros(std::int64_t ns) {
  return printed("%jd.%03d", static_cast<std::intmax_t>(ns / 1000), static_cast<int>(ns % 1000));
}

// The name of an X event; names of its arguments are short, because there are many.
const char* name_of(TraceKind kind) {
  switch (kind) {
    case TraceKind::kReduced:
      return "sum";
    case TraceKind::kSent:
      return "send";
    case TraceKind::kArrived:
      return "deliver";
    case TraceKind::kReceived:
      return "receive";
    case TraceKind::kStepped:
      return "step";
    case TraceKind::kAnswered:
      return "answer";
    case TraceKind::kComputed:
      return "compute";
    case TraceKind::kWaited:
      return "wait";
    default:
      return "";
  }
}

class Writer {
 public:
  Writer(const Data& data, std::uint32_t ranks_per_node) : data_(data), ranks_per_node_(ranks_per_node) {
    out_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  }

  void track(const Track& track) {
    const auto [process, thread] = places_.of(track.daemon, track.kind, track.index);
    std::string of_process = in_words(track.daemon), of_thread = "lane " + std::to_string(track.index);
    if (track.kind == TraceTrack::kTrainer) {
      of_process =
          "rank " + std::to_string(track.daemon.number * ranks_per_node_ + track.index) + " (" + of_process + ")";
      of_thread = "trainer";
    } else if (!track.daemon.server) {
      of_process = "worker of " + of_process;
    }
    named("process_name", process, thread, of_process);
    named("thread_name", process, thread, of_thread);
    for (const TraceEvent& e : track.events) {
      if (!takes_place(e.kind)) continue;
      const auto begin = static_cast<std::int64_t>(e.begin_ns), end = static_cast<std::int64_t>(e.end_ns);
      event("X", process, thread, begin);
      out_ += ",\"dur\":" + micros(end - begin) + ",\"name\":\"" + name_of(e.kind);
      if (track.kind != TraceTrack::kTrainer) out_ += " " + std::to_string(e.chunk);
      out_ += "\",\"args\":{\"round\":" + round(e.round);
      if (e.kind == TraceKind::kReceived || e.kind == TraceKind::kAnswered)
        out_ += ",\"node\":" + std::to_string(e.peer);
      out_ += "}}";
    }
  }

  // The chunk's round on its node, with its ways in it: to be sent, out, of others and the step, back. Then it is put
  // in place.
  void ways(const Chain& chain, std::uint64_t id) {
    const auto [process, thread] = places_.of({false, chain.node}, TraceTrack::kWorkerLane, chain.worker_lane);
    const std::string name = "chunk " + std::to_string(chain.chunk) + " round " + round(chain.round);
    std::int64_t at = chain.ready;
    async("b", process, thread, at, id, name);
    for (const auto& [until, what] :
         {std::pair{chain.sent, "sum and queue"}, std::pair{chain.received, "push"},
          std::pair{chain.answered, "others and step"}, std::pair{chain.arrived_begin, "answer"}}) {
      async("b", process, thread, at, id, what);
      at = std::max(at, until);
      async("e", process, thread, at, id, what);
    }
    async("e", process, thread, std::max(at, chain.arrived_end), id, name);
  }

  // Through the X events of its way; each end lies at the beginning of one. False: clocks say that it went back in
  // time.
  bool flow(const Chain& chain, std::uint64_t id) {
    const auto worker = places_.of({false, chain.node}, TraceTrack::kWorkerLane, chain.worker_lane);
    const auto server = places_.of({true, chain.server}, TraceTrack::kServerLane, chain.server_lane);
    const std::tuple<const char*, Places::Place, std::int64_t> ends[] = {
        {"s", worker, chain.reduced_begin}, {"t", worker, chain.sent},     {"t", server, chain.received},
        {"t", server, chain.step_begin},    {"t", server, chain.answered}, {"f", worker, chain.arrived_begin}};
    std::int64_t before = 0;
    for (const auto& [phase, place, at] : ends) {
      if (at < before) return false;
      before = at;
    }
    for (const auto& [phase, place, at] : ends) {
      event(phase, place.process, place.thread, at);
      out_ += ",\"cat\":\"chunk\",\"name\":\"chunk\",\"id\":" + std::to_string(id);
      if (phase[0] == 'f') out_ += ",\"bp\":\"e\"";
      out_ += "}";
    }
    return true;
  }

  std::string end(const Json& about) {
    out_ += "\n],\"otherData\":" + about.dump(-1, ' ', false, Json::error_handler_t::replace) + "}\n";
    return std::move(out_);
  }

 private:
  std::string round(std::uint16_t after_first) const { return std::to_string(data_.first.value + after_first); }
  void begin(const char* phase, unsigned process, unsigned thread) {
    out_ += std::exchange(any_, true) ? ",\n" : "\n";
    out_ += std::string("{\"ph\":\"") + phase + "\",\"pid\":" + std::to_string(process) +
            ",\"tid\":" + std::to_string(thread);
  }
  void event(const char* phase, unsigned process, unsigned thread, std::int64_t at) {
    begin(phase, process, thread);
    out_ += ",\"ts\":" + micros(at);
  }
  void named(const char* what, unsigned process, unsigned thread, const std::string& name) {
    begin("M", process, thread);
    out_ += std::string(",\"name\":\"") + what + "\",\"args\":{\"name\":\"" + name + "\"}}";
  }
  void async(const char* phase, unsigned process, unsigned thread, std::int64_t at, std::uint64_t id,
             const std::string& name) {
    event(phase, process, thread, at);
    out_ += ",\"cat\":\"chunks\",\"id\":" + std::to_string(id) + ",\"name\":\"" + name + "\"}";
  }

  const Data& data_;
  const std::uint32_t ranks_per_node_;
  Places places_;
  std::string out_;
  bool any_ = false;
};

}  // namespace

File file_of(const Data& data, const std::vector<Chain>& chains, std::uint32_t ranks_per_node, const Json& about) {
  Writer writer(data, ranks_per_node);
  for (const Track& track : data.tracks) writer.track(track);
  File file;
  for (std::uint64_t id = 1; const Chain& chain : chains) {
    if (!chain.whole()) continue;
    writer.ways(chain, id);
    file.flows += writer.flow(chain, id) ? 1 : 0;
    ++id;
  }
  file.json = writer.end(about);
  return file;
}

}  // namespace tributary::trace
