// A trace on a server: orders that come twice or too late, and when its records are sent.
#include "tests/unit/required.h"
#include "tests/unit/server/control_jobs_fixture.h"

namespace tributary::control_jobs_test {
namespace {

const TraceRounds kOrder{JobId(7), ViewId(3), Round(5), Round(8)};
const TraceRounds kNoMore{JobId(7), ViewId(3), Round(), Round()};

}  // namespace

TEST_CASE("the records of a trace are sent when every chunk is past its last round") {
  OpenServer server(3);
  server.jobs.on(kOrder);
  CHECK(server.lane.said.back() == "trace");
  const std::size_t commands = server.lane.said.size();
  server.jobs.on(kOrder);  // repeated
  CHECK(server.lane.said.size() == commands);
  server.lane.buffer->record(TraceKind{}, ChunkIndex(0), Round(6), 1, 2);
  server.sent.clear();
  server.lane.gauges->min_version.store(8);
  server.jobs.tick();
  CHECK(server.take<TracePart>().empty());
  server.lane.gauges->min_version.store(9);
  server.jobs.tick();
  CHECK(server.lane.said.back() == "end of trace");
  const auto parts = server.take<TracePart>();
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].first == Round(5));
  CHECK(parts[0].events.size() == 1);
  CHECK(parts[1].done);
  server.jobs.tick();
  CHECK(server.take<TracePart>().empty());
}

TEST_CASE("a trace that is cut is sent as far as it is") {
  OpenServer server(3);
  server.jobs.on(kOrder);
  server.sent.clear();
  SUBCASE("at the coordinator's word") {
    TraceRounds other = kNoMore;
    other.view = ViewId(2);
    server.jobs.on(other);
    CHECK(server.lane.said.back() == "trace");
    server.jobs.on(kNoMore);
  }
  SUBCASE("because its view is over") {
    server.restart(3);
    server.jobs.tick();
  }
  CHECK(server.lane.said.back() == "end of trace");
  const auto part = only_one(server.take<TracePart>());
  CHECK(part.done);
  server.jobs.on(kNoMore);
  CHECK(server.take<TracePart>().empty());
}

TEST_CASE("an order for other rounds ends a trace without its records, and begins its own if it can") {
  OpenServer server(3);
  server.jobs.on(kOrder);
  TraceRounds next{JobId(7), ViewId(3), Round(20), Round(30)};
  bool begins = false;
  SUBCASE("it can") {
    begins = true;
  }
  SUBCASE("the view is over") {
    next.view = ViewId(2);
  }
  SUBCASE("it has too many rounds") {
    next.last = Round(20 + kMaxTraceRounds);
  }
  SUBCASE("it ends before it begins") {
    next.last = Round(19);
  }
  server.sent.clear();
  server.jobs.on(next);
  CHECK(server.lane.said.back() == (begins ? "trace" : "end of trace"));
  CHECK(server.take<TracePart>().empty());
  server.jobs.tick();
  CHECK(server.take<TracePart>().empty());
  if (begins) CHECK(server.lane.buffer->first() == Round(20));
}

}  // namespace tributary::control_jobs_test
