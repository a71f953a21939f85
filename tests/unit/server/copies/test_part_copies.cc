// Copies of large parts of what ranks keep, on a server that is not server 0.
#include "common/base/checksum.h"
#include "tests/unit/required.h"
#include "tests/unit/server/control_jobs_fixture.h"

namespace tributary::control_jobs_test {

namespace {

ServerConfig server_1() {
  ServerConfig config;
  config.index = 1;
  config.servers = 2;
  return config;
}

struct Part {
  explicit Part(char content, std::size_t size = kPartBytes + 7) : bytes(size, static_cast<std::byte>(content)) {
    const auto [high, low] = Checksum128().add(bytes.data(), bytes.size()).value();
    large = {size, high, low};
  }
  StatePart piece(const WantPart& want) const {
    const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(want.offset);
    const std::size_t size = std::min<std::size_t>(kPartBytes, bytes.size() - want.offset);
    return {want, {from, from + static_cast<std::ptrdiff_t>(size)}};
  }
  std::vector<std::byte> bytes;
  LargePart large;
};

// Carries out what the disk is to do, and answers requests for these parts. Returns the reports.
std::vector<HeldParts> coordinate(Server& server, const std::vector<Part>& parts) {
  std::vector<HeldParts> reports;
  for (;;) {
    server.records.carry_out();
    const std::vector<ControlMessage> sent = std::exchange(server.sent, {});
    if (sent.empty()) return reports;
    for (const ControlMessage& message : sent) {
      if (const auto* held = std::get_if<HeldParts>(&message)) reports.push_back(*held);
      const auto* want = std::get_if<WantPart>(&message);
      if (!want) continue;
      const auto part = std::ranges::find(parts, want->large, &Part::large);
      server.jobs.on(part == parts.end() ? StatePart{*want, {}} : part->piece(*want));
    }
  }
}

std::vector<HeldParts> in_hello(Server& server) {
  ServerHello hello;
  server.jobs.describe(hello);
  return hello.parts;
}

const JobId kJob{7};

}  // namespace

TEST_CASE("a server fetches copies of large parts, reports them, and gives them back") {
  Server server(server_1());
  const Part a('a'), b('b');
  server.jobs.on(CopyParts{kJob, {a.large, b.large}, 5});
  const auto reports = coordinate(server, {a, b});
  REQUIRE(reports.size() == 2);
  CHECK(reports[0] == HeldParts{kJob, {}, true, 5});
  CHECK(reports[1].parts.size() == 2);
  CHECK_FALSE(reports[1].coming);
  REQUIRE(in_hello(server).size() == 1);
  CHECK(in_hello(server)[0].parts.size() == 2);
  server.jobs.on(WantPart{kJob, b.large, kPartBytes});
  server.records.carry_out();
  const auto piece = only_one(server.take<StatePart>());
  CHECK(piece.data == b.piece({kJob, b.large, kPartBytes}).data);
}

TEST_CASE("copies that are not named any more go, also one that is on its way") {
  Server server(server_1());
  const Part a('a'), b('b'), c('c');
  server.jobs.on(CopyParts{kJob, {a.large}});
  coordinate(server, {a});
  server.jobs.on(CopyParts{kJob, {a.large, b.large}});  // b is on its way
  server.records.carry_out();
  server.jobs.on(CopyParts{kJob, {c.large}});
  coordinate(server, {b, c});
  REQUIRE(in_hello(server).size() == 1);
  CHECK(in_hello(server)[0].parts == std::vector{c.large});
  CHECK(server.disk.large_parts.size() == 1);
  server.jobs.on(DropCheckpoint{kJob, {}});
  server.records.carry_out();
  CHECK(in_hello(server).empty());
  CHECK(server.disk.large_parts.empty());
}

TEST_CASE("a copy that cannot be had is reported, and fetched when it is ordered again") {
  Server server(server_1());
  const Part a('a');
  SUBCASE("the disk is full") {
    server.disk.full = true;
  }
  SUBCASE("nobody has it") {}
  server.jobs.on(CopyParts{kJob, {a.large}});
  const auto reports = coordinate(server, {});
  REQUIRE_FALSE(reports.empty());
  CHECK(reports.back() == HeldParts{kJob, {}, false});
  server.disk.full = false;
  server.jobs.on(CopyParts{kJob, {a.large}});
  CHECK(coordinate(server, {a}).back() == HeldParts{kJob, {a.large}, false});
}

TEST_CASE("a copy with another checksum counts for nothing") {
  Server server(server_1());
  Part a('a');
  server.jobs.on(CopyParts{kJob, {a.large}});
  a.bytes[5] = std::byte{};
  CHECK(coordinate(server, {a}).back() == HeldParts{kJob, {}, false});
  CHECK(in_hello(server).empty());
}

TEST_CASE("the coordinator's server, whose store has the parts themselves, keeps no copies") {
  Server server;
  server.jobs.coordinator_is_here(true);
  const Part a('a');
  server.jobs.on(CopyParts{kJob, {a.large}});
  CHECK(coordinate(server, {a}).empty());
  CHECK(in_hello(server).empty());
}

}  // namespace tributary::control_jobs_test
