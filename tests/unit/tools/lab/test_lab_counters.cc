#include <doctest/doctest.h>

#include <string>

#include "tests/unit/required.h"
#include "tools/lab/counters.h"
#include "tools/lab/link_check.h"
#include "tools/lab/step_times.h"

namespace tributary::lab::lab_counters_test {
namespace {

TEST_CASE("the limits are found among the queues that tc lists") {
  const auto queues = required(parse_queues(
      R"([{"kind":"noqueue","dev":"lo","root":true,"bytes":7,"packets":1,"drops":0},
          {"kind":"tbf","handle":"8001:","dev":"eth0","root":true,"refcnt":3,"options":{"rate":31250000},
           "bytes":125255746,"packets":82754,"drops":3,"overlimits":5423,"requeues":0,"backlog":0,"qlen":0},
          {"kind":"bfifo","dev":"eth0","parent":"8001:1","bytes":1,"packets":1,"drops":0}])"));
  REQUIRE(queues.size() == 1);
  CHECK(queues.at("eth0").bytes == 125'255'746);
  CHECK(queues.at("eth0").packets == 82'754);
  CHECK(queues.at("eth0").drops == 3);
  CHECK(queues.at("eth0").overlimits == 5423);
  for (const char* text : {"", "{}", "[{}]", R"([{"kind":"tbf","root":true,"dev":"eth0"}])"}) {
    const auto bad = failure_of(parse_queues(text));
    CHECK(bad.code == ErrorCode::kMalformed);
  }
}

TEST_CASE("an interface's bytes and drops are read from proc") {
  const std::string text =
      "Inter-|   Receive                                                |  Transmit\n"
      " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier "
      "compressed\n"
      "    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0 "
      "  "
      "       0\n"
      "  eth0:  128206    1932    0    4    0     0          0         0 119920834    1922    0    5    0     0       "
      "0  "
      "        0\n";
  const auto counters = required(parse_interface(text, "eth0"));
  CHECK(counters.received_bytes == 128'206);
  CHECK(counters.sent_bytes == 119'920'834);
  CHECK(counters.received_drops == 4);
  CHECK(counters.sent_drops == 5);
  CHECK(parse_interface(text, "eth").error().code == ErrorCode::kNotFound);
  CHECK(parse_interface("eth0: 1 2\n", "eth0").error().code == ErrorCode::kMalformed);
}

TEST_CASE("segments, retransmissions and time-outs of TCP are read from proc") {
  const TcpCounters tcp = parse_tcp(
      "Ip: Forwarding DefaultTTL\nIp: 2 64\n"
      "Tcp: RtoAlgorithm MaxConn OutSegs RetransSegs\nTcp: 1 -1 82747 12\n"
      "Udp: InDatagrams\nUdp: 0\n"
      "TcpExt: SyncookiesSent TCPTimeouts TCPLostRetransmit\nTcpExt: 0 3 1\n");
  CHECK(tcp.segments_sent == 82'747);
  CHECK(tcp.retransmitted == 12);
  CHECK(tcp.timeouts == 3);
  CHECK(parse_tcp("").segments_sent == 0);
}

TEST_CASE("differences of counters never wrap") {
  HostCounters before, after;
  before.up.bytes = 100;
  after.up.bytes = 350;
  before.down.drops = 9;
  after.down.drops = 2;
  before.tcp.retransmitted = 1;
  after.tcp.retransmitted = 4;
  const HostCounters d = difference(after, before);
  CHECK(d.up.bytes == 250);
  CHECK(d.down.drops == 0);
  CHECK(d.tcp.retransmitted == 3);
}

TEST_CASE("iperf3's goodput is what was received, and its errors are told") {
  const auto good = required(parse_iperf(
      R"({"end":{"sum_sent":{"bits_per_second":240.5e6,"retransmits":7},"sum_received":{"bits_per_second":238.75e6}}})"));
  CHECK(good.first == doctest::Approx(238.75));
  CHECK(good.second == 7);
  CHECK(parse_iperf(R"({"error":"unable to connect"})").error().message == "iperf3: unable to connect");
  CHECK(parse_iperf("{}").error().code == ErrorCode::kMalformed);
}

TEST_CASE("a link within three per cent of its payload share is right, and survives a file") {
  LinkCheck c{.from = "a", .to = "b", .mbit = 240.0, .expected_mbit = 250.0 * kPayloadShare, .retransmits = 2};
  CHECK(c.ok());
  c.mbit = 0.96 * c.expected_mbit;
  CHECK_FALSE(c.ok());
  c.mbit = 1.04 * c.expected_mbit;
  CHECK_FALSE(c.ok());
  const auto back = required(link_check_from(nlohmann::json::parse(to_json(c).dump())));
  CHECK(back.from == "a");
  CHECK(back.to == "b");
  CHECK(back.mbit == c.mbit);
  CHECK(back.retransmits == 2);
  CHECK_FALSE(link_check_from(nlohmann::json::object()));
}

TEST_CASE("goodput is that of the slowest worker's link, as measured or as its rate allows") {
  LabConfig config;
  config.hosts = {{.name = "a", .worker = true, .up_mbit = 200.0, .down_mbit = 100.0},
                  {.name = "b", .worker = true, .up_mbit = 400.0, .down_mbit = 400.0},
                  {.name = "s", .server = true, .up_mbit = 10.0, .down_mbit = 10.0}};
  CHECK(goodput_bytes_per_s(config, {}) == doctest::Approx(12.5e6 * kPayloadShare));
  const double e = 100.0;
  const std::vector<LinkCheck> checks = {{.mbit = 0.98 * e, .expected_mbit = e},
                                         {.mbit = 0.5 * e, .expected_mbit = e},
                                         {.mbit = 1.0 * e, .expected_mbit = e}};
  CHECK(goodput_bytes_per_s(config, checks) == doctest::Approx(12.5e6 * kPayloadShare * 0.98));
}

std::string report(std::uint64_t round, double compute_ms, double wait_ms) {
  const auto ns = [](double ms) { return std::to_string(static_cast<std::uint64_t>(ms * 1e6)); };
  return R"({"rank":0,"world_size":2,"restarts":0,"resumed":0,"complete":1,"rounds":9,"samples_sum":1,"correct":1,"round":)" +
         std::to_string(round) + R"(,"loss_sum":8,"samples":4,"compute_ns":)" + ns(compute_ms) +
         R"(,"reduce_ns":0,"wait_ns":)" + ns(wait_ms) + "}";
}

TEST_CASE("a step is as long as its slowest rank's, and the warm-up does not count") {
  StepTimes times(2);
  const std::uint64_t warm = StepTimes::kWarmupRounds;
  for (std::uint64_t round = 1; round <= warm + 3; ++round) {
    const double slow = round <= warm ? 500.0 : 20.0;
    times.take(report(round, 10.0, 5.0));
    times.take(report(round, 10.0, slow));
  }
  times.take("not a report");
  times.take(report(warm + 4, 900.0, 900.0));  // of one rank only
  const auto result = times.result();
  CHECK(result.at("step_seconds").get<double>() == doctest::Approx(0.030));
  CHECK(result.at("step_split").at("compute_ms").get<double>() == doctest::Approx(10.0));
  CHECK(result.at("step_split").at("wait_ms").get<double>() == doctest::Approx(12.5));
}

}  // namespace
}  // namespace tributary::lab::lab_counters_test
