// The tool's results for a trace: one clock, sums, a file, and a verdict. The traces are made up.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tools/trace/trace_clocks.h"
#include "tools/trace/trace_file.h"
#include "tools/trace/trace_sums.h"
#include "tools/trace/trace_verdict.h"

namespace tributary::trace::trace_tool_test {
namespace {

// How a made-up job spends a round, in microseconds; every worker and server has one lane, and servers take turns with
// chunks.
struct Times {
  std::uint64_t compute = 1000, reduce = 10, way = 50, step = 20, deliver = 5;
};

struct Made {
  std::uint32_t nodes = 2, servers = 2, chunks = 4;
  std::uint16_t rounds = 5;
  Times times = {};
  std::map<Daemon, std::int64_t> ahead_us = {};  // clocks
  std::uint32_t late_node = ~0u;                 // pushes so much later
  std::uint64_t late = 0;
};

Data made_data(const Made& made) {
  std::map<std::pair<Daemon, TraceTrack>, Track> tracks;
  const auto at = [&](const Daemon& daemon, TraceTrack kind) -> Track& {
    Track& track = tracks[{daemon, kind}];
    track.daemon = daemon;
    track.kind = kind;
    return track;
  };
  const auto record = [&](const Daemon& daemon, TraceTrack kind, TraceKind what, std::uint32_t chunk,
                          std::uint16_t round, std::uint64_t begin, std::uint64_t end, std::uint32_t peer = 0) {
    const auto found = made.ahead_us.find(daemon);
    const std::int64_t ahead = 1'000'000 + (found == made.ahead_us.end() ? 0 : found->second);
    const auto clock = [&](std::uint64_t us) {
      return static_cast<std::uint64_t>(1000 * (static_cast<std::int64_t>(us) + ahead));
    };
    at(daemon, kind).events.push_back({clock(begin), clock(end), chunk, peer, round, what});
  };
  const Times& t = made.times;
  std::uint64_t begin = 0;
  std::map<std::uint32_t, std::uint64_t> compute, reduce, network;
  for (std::uint16_t round = 0; round < made.rounds; ++round) {
    std::map<std::uint32_t, std::uint64_t> free;  // by server: its lane
    std::uint64_t end = 0;
    const std::uint64_t ready = begin + t.compute;
    std::map<std::uint32_t, std::uint64_t> arrives;
    for (std::uint32_t chunk = 0; chunk < made.chunks; ++chunk) {
      const Daemon server{true, chunk % made.servers};
      std::uint64_t last = 0;
      for (std::uint32_t node = 0; node < made.nodes; ++node) {
        const Daemon worker{false, node};
        const std::uint64_t reduced = ready + t.reduce * (chunk + 1);
        const std::uint64_t sent = reduced + (node == made.late_node ? made.late : 0);
        const std::uint64_t received = sent + t.way;
        record(worker, TraceTrack::kWorkerLane, TraceKind::kReady, chunk, round, ready, ready);
        record(worker, TraceTrack::kWorkerLane, TraceKind::kReduced, chunk, round, reduced - t.reduce, reduced);
        record(worker, TraceTrack::kWorkerLane, TraceKind::kSent, chunk, round, sent, sent);
        record(server, TraceTrack::kServerLane, TraceKind::kReceived, chunk, round, received, received, node);
        record(worker, TraceTrack::kWorkerLane, TraceKind::kAcknowledged, chunk, round, received + t.way,
               received + t.way);
        last = std::max(last, received);
      }
      const std::uint64_t step = std::max(last, free[server.number]), stepped = step + t.step;
      free[server.number] = stepped;
      record(server, TraceTrack::kServerLane, TraceKind::kStepped, chunk, round, step, stepped);
      for (std::uint32_t node = 0; node < made.nodes; ++node) {
        const std::uint64_t arrived = std::max(stepped + t.way, arrives[node]);
        arrives[node] = arrived + t.deliver;
        record(server, TraceTrack::kServerLane, TraceKind::kAnswered, chunk, round, stepped, stepped, node);
        record({false, node}, TraceTrack::kWorkerLane, TraceKind::kArrived, chunk, round, arrived, arrived + t.deliver);
        end = std::max(end, arrived + t.deliver);
      }
    }
    for (std::uint32_t node = 0; node < made.nodes; ++node) {
      Track& lane = at({false, node}, TraceTrack::kWorkerLane);
      const std::uint64_t late = node == made.late_node ? made.late : 0;
      compute[node] += t.compute, reduce[node] += t.reduce * made.chunks, network[node] += 2 * t.way + late;
      lane.events.push_back({0, compute[node] * 1000, 0, 0, round, TraceKind::kMeterCompute});
      lane.events.push_back({0, reduce[node] * 1000, 0, 0, round, TraceKind::kMeterReduce});
      lane.events.push_back({0, network[node] * 1000, 0, 0, round, TraceKind::kMeterNetwork});
      record({false, node}, TraceTrack::kTrainer, TraceKind::kComputed, 0, round, begin, ready);
      record({false, node}, TraceTrack::kTrainer, TraceKind::kWaited, 0, round, ready, end);
    }
    begin = end;
  }
  Data data{.job = "made \"up\"", .first = Round(40), .last = Round(40 + made.rounds - 1u)};
  for (auto& [key, track] : tracks) data.tracks.push_back(std::move(track));
  return data;
}

Data aligned(Data data) {
  align(data, clocks_of(chains_of(data)));
  return data;
}

Sums sums_of(const Made& made) {
  const Data data = aligned(made_data(made));
  return trace::sums_of(data, chains_of(data));
}

nlohmann::json file_json(const Made& made, File* told = nullptr) {
  Data data = aligned(made_data(made));
  set_apart(data);
  const File file = file_of(data, chains_of(data), 1, {{"job", data.job}});
  if (told) *told = file;
  const auto json = nlohmann::json::parse(file.json, nullptr, false);
  REQUIRE(json.is_object());
  return json;
}

std::int64_t nanoseconds(const nlohmann::json& micros) {
  return static_cast<std::int64_t>(micros.get<double>() * 1000.0 + 0.5);
}

}  // namespace

TEST_CASE("clocks: what each is ahead by is found, within the error that is told") {
  Made made{.nodes = 3, .servers = 2};
  made.ahead_us = {{{true, 1}, 40'000}, {{false, 0}, -300}, {{false, 1}, 7}, {{false, 2}, -900'000}};
  const auto clocks = clocks_of(chains_of(made_data(made)));
  REQUIRE(clocks.size() == 5);
  CHECK(clocks.at({true, 0}).ahead_ns == 0);
  for (const auto& [daemon, clock] : clocks) {
    CHECK(clock.known);
    const std::int64_t truth = daemon == Daemon{true, 0} ? 0 : made.ahead_us[daemon] * 1000;
    CHECK(std::abs(clock.ahead_ns - truth) <= static_cast<std::int64_t>(clock.error_ns));
    CHECK(std::abs(clock.ahead_ns - truth) <= 1);  // ways are as long there as back
    CHECK(clock.error_ns <= 100'001);
  }
}

TEST_CASE("clocks: ways of different length cost no more than the error, and nothing arrives before it was sent") {
  Data data = made_data({.nodes = 3, .servers = 3});
  // The way from node 1 to server 2 is long, and from server 0 to node 2.
  for (Track& track : data.tracks) {
    for (TraceEvent& e : track.events) {
      if (track.daemon == Daemon{true, 2} && e.kind == TraceKind::kReceived && e.peer == 1) e.begin_ns += 30'000;
      if (track.daemon == Daemon{false, 2} && e.kind == TraceKind::kArrived && e.chunk % 3 == 0) e.begin_ns += 2'000;
    }
  }
  const auto clocks = clocks_of(chains_of(data));
  for (const auto& [daemon, clock] : clocks)
    CHECK(std::abs(clock.ahead_ns) <= static_cast<std::int64_t>(clock.error_ns));
  align(data, clocks);
  for (const Chain& chain : chains_of(data)) {
    CHECK(chain.sent <= chain.received);
    CHECK(chain.answered <= chain.arrived_begin);
  }
}

TEST_CASE("clocks that drift apart get the least slack that fits, and it counts as error") {
  Data data = made_data({});
  for (Track& track : data.tracks) {
    if (track.daemon.server) continue;
    for (TraceEvent& e : track.events) {
      if (e.round == 4) e.begin_ns += 200'000, e.end_ns += 200'000;
    }
  }
  const auto clocks = clocks_of(chains_of(data));
  CHECK(largest_error(clocks) >= 100'000);
  CHECK(largest_error(clocks) < 1'000'000);
}

TEST_CASE("a daemon that nobody exchanged messages with keeps its clock, and that is known") {
  Data data = made_data({});
  std::erase_if(data.tracks, [](const Track& track) { return track.daemon.server; });
  for (const auto& [daemon, clock] : clocks_of(chains_of(data))) {
    CHECK(clock.known == (daemon == Daemon{false, 0}));
    CHECK(clock.ahead_ns == 0);
  }
}

TEST_CASE("sums are what the meters say, whatever the clocks") {
  Made made;
  made.ahead_us = {{{true, 1}, 40'000}, {{false, 1}, -900'000}};
  const Sums sums = sums_of(made);
  CHECK(sums.rounds == 4);
  CHECK(sums.whole_rounds == 5);
  CHECK(sums.chains == 2u * 4u * 5u);
  REQUIRE(sums.nodes.size() == 2);
  for (const NodeSums& node : sums.nodes) {
    CHECK(node.events.compute_ns == 4 * 1'000'000);
    CHECK(node.events.reduce_ns == 4 * 40'000);
    CHECK(node.events.network_ns == 4 * 100'000);
  }
  REQUIRE(sums.difference());
  CHECK(*sums.difference() == doctest::Approx(0.0));
  CHECK(sums.round_s == doctest::Approx(0.001165));  // 1000 computing, 40 sums, 50 out, 20 step, 50 back, 5 deliver
  CHECK(sums.servers_s == doctest::Approx(40e-6));
}

TEST_CASE("a meter that says something else is a difference") {
  Data data = aligned(made_data({}));
  for (Track& track : data.tracks) {
    for (TraceEvent& e : track.events) {
      if (e.kind == TraceKind::kMeterNetwork) e.end_ns = e.end_ns * 11 / 10;
    }
  }
  CHECK(*trace::sums_of(data, chains_of(data)).difference() == doctest::Approx(0.1 / 1.1));
}

TEST_CASE("a round of which something is missing counts for nothing") {
  Data data = aligned(made_data({}));
  for (Track& track : data.tracks)
    std::erase_if(track.events,
                  [](const TraceEvent& e) { return e.kind == TraceKind::kAnswered && e.round == 2 && e.chunk == 3; });
  const Sums sums = trace::sums_of(data, chains_of(data));
  CHECK(sums.whole_rounds == 4);
  CHECK(sums.rounds == 2);  // 1 and 4: those with a whole one before
  CHECK(sums.chains == 2u * 4u * 5u - 2u);
}

TEST_CASE("the file: valid JSON, X events of a thread side by side, async pairs closed, flows with their ends") {
  Made made{.nodes = 3, .servers = 2, .chunks = 5};
  made.ahead_us = {{{true, 1}, 12'345}, {{false, 1}, -77}};
  File file;
  const auto json = file_json(made, &file);
  CHECK(json.at("otherData").at("job") == "made \"up\"");
  std::map<std::pair<int, int>, std::vector<std::pair<std::int64_t, std::int64_t>>> slices;
  std::map<std::uint64_t, std::vector<std::string>> open;
  std::map<std::uint64_t, std::vector<std::tuple<std::int64_t, char, std::pair<int, int>>>> flows;
  std::set<int> processes;
  std::int64_t first = 1'000'000;
  std::size_t pairs = 0;
  std::map<std::uint64_t, std::int64_t> async_at;
  for (const auto& e : json.at("traceEvents")) {
    const std::string phase = e.at("ph");
    const std::pair<int, int> thread(e.at("pid"), e.at("tid"));
    if (phase == "M") {
      processes.insert(thread.first);
      continue;
    }
    const std::int64_t at = nanoseconds(e.at("ts"));
    first = std::min(first, at);
    if (phase == "X") slices[thread].emplace_back(at, at + nanoseconds(e.at("dur")));
    if (phase == "b" || phase == "e") {
      const std::uint64_t id = e.at("id");
      CHECK(at >= async_at[id]);
      async_at[id] = at;
      if (phase == "b") {
        open[id].push_back(e.at("name"));
      } else {
        REQUIRE_FALSE(open[id].empty());
        CHECK(open[id].back() == e.at("name").get<std::string>());
        open[id].pop_back();
        ++pairs;
      }
    }
    if (phase == "s" || phase == "t" || phase == "f") flows[e.at("id")].emplace_back(at, phase[0], thread);
  }
  CHECK(first == 0);
  CHECK(processes.size() == 2 + 3 + 3);
  for (auto& [thread, all] : slices) {
    std::ranges::sort(all);
    for (std::size_t i = 0; i < all.size(); ++i) {
      CHECK(all[i].second > all[i].first);
      if (i > 0) CHECK(all[i].first >= all[i - 1].second);
    }
  }
  for (const auto& [id, left] : open) CHECK(left.empty());
  CHECK(pairs == 5u * 3u * 5u * 5u);
  CHECK(flows.size() == 3u * 5u * 5u);
  CHECK(file.flows == flows.size());
  for (const auto& [id, ends] : flows) {
    std::string phases;
    std::int64_t before = 0;
    for (const auto& [at, phase, thread] : ends) {
      phases += phase;
      CHECK(at >= before);
      before = at;
      // Each end lies in a slice.
      const auto& all = slices.at(thread);
      CHECK(std::ranges::any_of(
          all, [&, when = at](const auto& slice) { return slice.first <= when && when < slice.second; }));
    }
    CHECK(phases ==
          "stttt"
          "f");
  }
}

TEST_CASE("a chain that lacks an end has no flow") {
  Data data = aligned(made_data({}));
  for (Track& track : data.tracks)
    std::erase_if(track.events, [](const TraceEvent& e) { return e.kind == TraceKind::kArrived && e.round == 4; });
  set_apart(data);
  CHECK(file_of(data, chains_of(data), 1, {}).flows == 2u * 4u * 4u);
}

TEST_CASE("parts of other programs are refused, not believed") {
  using Json = nlohmann::ordered_json;
  CHECK_FALSE(trace::data_of(Json{{"job", "x"}}));
  CHECK_FALSE(trace::data_of(Json{{"job", "x"}, {"first", 9u}, {"last", 3u}, {"lost", 0u}}));
  auto data = required(trace::data_of(Json{{"job", "x"}, {"first", 3u}, {"last", 9u}, {"lost", 0u}}));
  Json piece = {{"daemon", "worker"}, {"number", 1u}, {"track", 1u},
                {"index", 0u},        {"lost", 0u},   {"events", Json::array({Json::array({0u, 1u, 2u, 0u, 5u, 6u})})}};
  CHECK(add_piece(data, piece));
  CHECK(add_piece(data, piece));
  REQUIRE(data.tracks.size() == 1u);
  CHECK(data.tracks[0].events.size() == 2u);
  for (const Json& row : {Json::array({99u, 1u, 2u, 0u, 5u, 6u}), Json::array({0u, 256u, 2u, 0u, 5u, 6u}),
                          Json::array({0u, 1u, 2u, 0u, 6u, 5u}), Json::array({0u, 1u, 2u, 0u, 5u}), Json("x")}) {
    piece["events"] = Json::array({row});
    CHECK_FALSE(add_piece(data, piece));
  }
  piece["track"] = 3;
  CHECK_FALSE(add_piece(data, piece));
}

TEST_CASE("the verdict names what is busy for the longest, and by how much") {
  const auto judged = [](Times times) {
    const Sums sums = sums_of({.times = times});
    const Verdict verdict = verdict_of(sums);
    return std::pair(verdict, in_words(verdict, sums, remedies_for(verdict, sums, std::nullopt)));
  };
  const auto [computing, words] = judged({});
  CHECK(computing.binding == Binding::kComputing);
  CHECK(computing.busy_s == doctest::Approx(1e-3));
  CHECK(words.starts_with("computing binds this job: of a round of "));
  CHECK(testing::contains(words, "(86 %)"));
  CHECK(testing::contains(words, "computing twice as fast"));
  const auto [network, network_words] = judged({.compute = 100, .way = 4000});
  CHECK(network.binding == Binding::kNetwork);
  CHECK(network_words.starts_with("network binds this job"));
  const auto [servers, server_words] = judged({.compute = 100, .step = 3000});
  CHECK(servers.binding == Binding::kServers);
  CHECK(testing::contains(server_words, "twice the lanes"));
  const auto [memory, memory_words] = judged({.compute = 100, .reduce = 900});
  CHECK(memory.binding == Binding::kMemory);
  CHECK(testing::contains(memory_words, "summing on GPUs"));
}

TEST_CASE("where the network binds, the cost model says what would help") {
  const Sums sums = sums_of({.times = {.compute = 100, .way = 4000}});
  Scenario scenario{.nodes = 2, .servers = 1, .payload_bytes = 4e6};
  scenario.network.bandwidth = 100e6;
  const Verdict verdict = verdict_of(sums);
  const auto remedies = remedies_for(verdict, sums, scenario);
  REQUIRE(remedies.size() == 3);
  for (std::size_t i = 0; i < remedies.size(); ++i) {
    CHECK(remedies[i].round_s < sums.round_s);
    CHECK(remedies[i].round_s > sums.round_s / 3.0);
    if (i > 0) CHECK(remedies[i].round_s >= remedies[i - 1].round_s);
  }
  const std::string words = in_words(verdict, sums, remedies);
  CHECK(testing::contains(words, "links twice as fast"));
  CHECK(testing::contains(words, "one more server machine"));
  CHECK(testing::contains(words, "bf16"));
}

TEST_CASE("a node that the others wait for is named") {
  const Sums sums = sums_of({.nodes = 3, .late_node = 2, .late = 400});
  CHECK(sums.nodes[2].last_share == doctest::Approx(1.0));
  CHECK(sums.nodes[2].late_s == doctest::Approx(400e-6));
  CHECK(testing::contains(in_words(verdict_of(sums), sums, {}), "Node 2 is waited for"));
}

}  // namespace tributary::trace::trace_tool_test
