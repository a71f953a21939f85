// Events that lanes and trainers record while a job is traced, and lanes' counters.
#include <doctest/doctest.h>

#include <tuple>
#include <vector>

#include "server/lane/lane_gauges.h"
#include "server/lane/lane_trace.h"
#include "session/shared/trace_window.h"
#include "tests/unit/required.h"
#include "worker/node/lane_trace.h"

namespace tributary::trace_recording_test {
namespace {

std::shared_ptr<TraceBuffer> buffer_of(std::size_t capacity, std::uint64_t first = 5, std::uint64_t last = 8) {
  return std::make_shared<TraceBuffer>(Round(first), Round(last), capacity);
}

std::vector<TraceEvent> recorded(const TraceBuffer& buffer) {
  return {buffer.events().begin(), buffer.events().end()};
}

std::vector<TraceKind> kinds(const TraceBuffer& buffer) {
  std::vector<TraceKind> all;
  for (const TraceEvent& event : buffer.events()) all.push_back(event.kind);
  return all;
}

// Lines in the list of a set.
template <class Counts>
std::size_t listed() {
  Counts counts;
  std::size_t lines = 0;
  counts.visit([&](const CountField&, const auto&) { ++lines; }, counts);
  return lines;
}

}  // namespace

TEST_CASE("every counter of a set is in its list") {
  CHECK(listed<ShardStats>() * sizeof(std::uint64_t) == sizeof(ShardStats));
  CHECK(listed<LaneCounters>() * sizeof(LaneCounter) > sizeof(LaneCounters) - alignof(LaneCounters));
  CHECK(listed<JobTotals>() * sizeof(std::uint64_t) == sizeof(JobTotals));
}

TEST_CASE("a buffer takes the rounds it is for, as many as fit, and counts the others") {
  TraceBuffer buffer(Round(5), Round(8), 3);
  buffer.record(TraceKind::kSent, ChunkIndex(1), Round(4), 10, 10);
  buffer.record(TraceKind::kSent, ChunkIndex(1), Round(9), 10, 10);
  CHECK(buffer.events().empty());
  for (std::uint64_t round = 5; round <= 8; ++round) {
    buffer.record(TraceKind::kSent, ChunkIndex(7), Round(round), round, round + 1, 2);
  }
  CHECK(buffer.lost() == 1);
  REQUIRE(buffer.events().size() == 3);
  CHECK(buffer.events()[1] == TraceEvent{6, 7, 7, 2, 1, TraceKind::kSent});
}

TEST_CASE("a buffer is as large as its rounds need, within the bound of a trace") {
  const auto small = TraceBuffer::for_events(Round(1), Round(4), 100);
  for (int i = 0; i < 501; ++i) small->record(TraceKind::kSent, ChunkIndex(0), Round(2), 1, 1);
  CHECK(small->events().size() == 500);  // 400 and a quarter more
  CHECK(small->lost() == 1);
  const auto large = TraceBuffer::for_events(Round(1), Round(256), 1u << 20);
  for (std::size_t i = 0; i < kMaxTraceEvents + 1; ++i) large->record(TraceKind::kSent, ChunkIndex(0), Round(2), 1, 1);
  CHECK(large->events().size() == kMaxTraceEvents);
}

TEST_CASE("what was recorded travels in parts of bounded size, and the last one says so") {
  std::vector<TraceEvent> many(kMaxPartEvents * 2 + 1), few(3);
  for (std::size_t i = 0; i < many.size(); ++i) many[i].begin_ns = i;
  TracePart about{.job = JobId(7), .first = Round(5)};
  std::vector<TracePart> parts;
  send_trace(
      about,
      {{TraceTrack::kWorkerLane, 1, many, 4}, {TraceTrack::kTrainer, 0, few, 0}, {TraceTrack::kTrainer, 1, {}, 9}},
      [&](const TracePart& part) { parts.push_back(part); });
  REQUIRE(parts.size() == 6);
  std::uint64_t lost = 0;
  std::vector<TraceEvent> together;
  for (const TracePart& part : parts) {
    CHECK(part.job == JobId(7));
    CHECK(part.events.size() <= kMaxPartEvents);
    CHECK(part.done == (&part == &parts.back()));
    lost += part.lost;
    if (part.track == TraceTrack::kWorkerLane) together.insert(together.end(), part.events.begin(), part.events.end());
  }
  CHECK(lost == 13);
  CHECK(together == many);
  CHECK(parts[3].events == few);
}

TEST_CASE("a server lane: a step begins with the last push, and its first answer ends it") {
  const auto buffer = buffer_of(100);
  ServerLaneTrace trace(JobId(7), ViewId(1), 4, buffer);
  const auto key = [](std::uint32_t node) { return ChunkKey{JobId(7), ViewId(1), NodeRank(node), ChunkIndex(2)}; };
  trace.received(Push{key(0), Round(5), 1, EncodingId::kFp32}, 100);
  trace.received(Push{key(1), Round(5), 1, EncodingId::kFp32}, 200);
  trace.answered(key(0), Version(5), 260);
  trace.answered(key(1), Version(5), 270);
  trace.answered(key(1), Version(5), 900);  // asked for again
  CHECK(recorded(*buffer) == std::vector<TraceEvent>{{100, 100, 2, 0, 0, TraceKind::kReceived},
                                                     {200, 200, 2, 1, 0, TraceKind::kReceived},
                                                     {200, 260, 2, 0, 0, TraceKind::kStepped},
                                                     {260, 260, 2, 0, 0, TraceKind::kAnswered},
                                                     {270, 270, 2, 1, 0, TraceKind::kAnswered},
                                                     {900, 900, 2, 1, 0, TraceKind::kAnswered}});
  // Another job's, another view's, and a chunk that there is not.
  trace.received(Push{{JobId(8), ViewId(1), NodeRank(0), ChunkIndex(2)}, Round(5), 1, EncodingId::kFp32}, 1000);
  trace.answered({JobId(7), ViewId(2), NodeRank(0), ChunkIndex(2)}, Version(5), 1000);
  trace.answered({JobId(7), ViewId(1), NodeRank(0), ChunkIndex(4)}, Version(5), 1000);
  CHECK(buffer->events().size() == 6);
}

TEST_CASE("a server lane with a gate: chunks are stepped one after the other when it opens") {
  const auto buffer = buffer_of(100);
  ServerLaneTrace trace(JobId(7), ViewId(1), 4, buffer);
  const auto key = [](std::uint32_t chunk) { return ChunkKey{JobId(7), ViewId(1), NodeRank(0), ChunkIndex(chunk)}; };
  trace.decided(1000);
  trace.answered(key(0), Version(6), 1100);
  trace.answered(key(1), Version(6), 1300);
  CHECK(recorded(*buffer)[0] == TraceEvent{1000, 1100, 0, 0, 1, TraceKind::kStepped});
  CHECK(recorded(*buffer)[2] == TraceEvent{1100, 1300, 1, 0, 1, TraceKind::kStepped});
}

TEST_CASE("a worker lane: each chunk's way, and what the pace meter says after the round") {
  const ShardSlots slots[] = {{1, 1.0}};
  const auto layout = required(Layout::make({{"w", {2048}}}, 1024, slots));
  const auto buffer = buffer_of(100);
  LaneChunks chunks(std::make_shared<const Layout>(layout), Round(4));
  LaneChunk& chunk = chunks[1];
  chunk.gradient.round = Round(5);
  WorkerLaneTrace trace(chunks.size(), 50, buffer);
  trace.ready(chunk, 100);
  trace.reduced(chunk, 130, 75);  // 25 of it
  trace.sent(chunk, Round(5), 131);
  trace.acknowledged(chunk, Round(5), 150);
  trace.metered(1000, 20);
  trace.arrived(chunk, 180);
  trace.delivered(chunk, Version(5), 190);
  CHECK(kinds(*buffer) == std::vector<TraceKind>{TraceKind::kReady, TraceKind::kReduced, TraceKind::kSent,
                                                 TraceKind::kAcknowledged, TraceKind::kMeterCompute,
                                                 TraceKind::kMeterReduce, TraceKind::kMeterNetwork,
                                                 TraceKind::kArrived});
  CHECK(recorded(*buffer)[1] == TraceEvent{105, 130, 1, 0, 0, TraceKind::kReduced});
  CHECK(recorded(*buffer)[4] == TraceEvent{0, 1000, 0, 0, 0, TraceKind::kMeterCompute});
  CHECK(recorded(*buffer)[5] == TraceEvent{0, 75, 0, 0, 0, TraceKind::kMeterReduce});
  CHECK(recorded(*buffer)[7] == TraceEvent{180, 190, 1, 0, 0, TraceKind::kArrived});
}

TEST_CASE("a trainer writes the named rounds into its window, and nothing when none are named") {
  TraceWindow window;
  TraceWriter writer;
  const auto round = [&](std::uint64_t number) {
    for (int tensor = 0; tensor < 3; ++tensor) writer.ready(window, Round(number));
    writer.waited();
  };
  round(1);
  window.first = 3;
  window.last = 4;
  for (std::uint64_t number = 2; number <= 5; ++number) round(number);
  const auto& [place, next, none] = std::tie(window.places[0], window.places[1], window.places[2]);
  CHECK(place.round == 3);
  CHECK(place.begin_ns > 0);
  CHECK(place.begin_ns <= place.ready_ns);
  CHECK(place.ready_ns <= place.end_ns);
  CHECK(next.round == 4);
  CHECK(next.begin_ns == place.end_ns);
  CHECK(none.end_ns == 0);
}

}  // namespace tributary::trace_recording_test
