// A worker's counts of a job (common/base/counters.h): each lane has its own, and status shows the sum.
#pragma once

#include <cstdint>

#include "common/base/counters.h"
#include "worker/node/pace_meter.h"

namespace tributary {

// By a lane's ClientCore.
template <class Cell>
struct ClientCounts {
  Cell pushes{}, answers{}, bytes_pulled{}, bytes_had{}, resends{}, queries{}, redone{}, stale{};

  static void visit(auto&& visit, auto&... sets) {
    using enum CountKind;
    visit({kTotal, "pushes", "Pushes, without those that were asked for again."}, sets.pushes...);
    visit({kTotal, "answers", "Answers with parameters."}, sets.answers...);
    visit({kTotal, "bytes_pulled", "Payload bytes of answers.", 0, "pulled_bytes"}, sets.bytes_pulled...);
    visit({kTotal, "bytes_had", "Bytes of parameters that the node had when its view began, and did not pull.", 0,
           "had_bytes"},
          sets.bytes_had...);
    visit({kTotal, "resends", "Pushes that a server asked for again."}, sets.resends...);
    visit({kTotal, "queries", "Questions to servers about what is overdue."}, sets.queries...);
    visit({kTotal, "redo/redone", "Pushes made again for servers that had lost them.", 0, "redone"}, sets.redone...);
    visit({kTotal, "stale", "Messages of servers that fitted nothing that is open."}, sets.stale...);
  }
};

template <class Cell>
struct LaneJobCounts : ClientCounts<Cell> {
  Cell window_bytes{}, in_flight_bytes{}, push_rate{}, answer_rate{}, base_rtt_ns{}, bytes_pushed{}, send_failures{},
      malformed{}, reduce_ns{}, lent_messages{}, connections{}, shared_connections{}, socket_payload_bytes{},
      shared_payload_bytes{};

  static void visit(auto&& visit, auto&... sets) {
    using enum CountKind;
    ClientCounts<Cell>::visit(visit, sets...);
    visit({kNow, "window_bytes", "Unacknowledged bytes allowed, over all connections."}, sets.window_bytes...);
    visit({kNow, "in_flight_bytes", "Unacknowledged bytes, over all connections."}, sets.in_flight_bytes...);
    visit({kNow, "link/out_bytes_per_s", "Payload bytes of acknowledged pushes in a second.", 0,
           "link_out_bytes_per_second"},
          sets.push_rate...);
    visit({kNow, "link/in_bytes_per_s", "Payload bytes of answers in a second.", 0, "link_in_bytes_per_second"},
          sets.answer_rate...);
    visit({kLeast, "link/round_trip_s", "Shortest time to an acknowledgement.", 1e-9, "link_round_trip_seconds"},
          sets.base_rtt_ns...);
    visit({kTotal, "bytes_pushed", "Payload bytes of pushes and initial values.", 0, "pushed_bytes"},
          sets.bytes_pushed...);
    visit({kTotal, "send_failures", "Messages that a connection did not take."}, sets.send_failures...);
    visit({kTotal, "malformed", "Messages of servers that are none of ours."}, sets.malformed...);
    visit({kTotal, "reduce_seconds", "Time spent summing and encoding, over all lanes.", 1e-9}, sets.reduce_ns...);
    visit({kNow, "lent_messages", "Messages whose memory ZeroMQ still holds."}, sets.lent_messages...);
    visit({kNow, "connections", "Connections to lanes of servers."}, sets.connections...);
    visit({kNow, "shared_connections", "Those of them with payloads in shared memory."}, sets.shared_connections...);
    visit({kTotal, "socket_payload_bytes", "Payload bytes both ways that crossed a socket."},
          sets.socket_payload_bytes...);
    visit({kTotal, "shared_payload_bytes", "Payload bytes both ways in memory shared with a server."},
          sets.shared_payload_bytes...);
  }
};

using JobTotals = LaneJobCounts<std::uint64_t>;

// Written by one lane, read by the status thread.
struct alignas(64) LaneJobStats : LaneJobCounts<LaneCounter> {
  PhaseTimes times;
  LaneCounter rounds, compute_ns, network_ns, samples;  // where their time went (pace_meter.h); without reduce_ns
};

}  // namespace tributary
