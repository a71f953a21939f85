// The doctor's messages in a cluster (docs/doctor.md): the CLI asks the coordinator, and the coordinator asks every
// daemon.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/message_fields.h"
#include "common/wire/attach_messages.h"

namespace tributary {

inline constexpr std::size_t kMaxDiagnosedPaths = 64;
inline constexpr std::size_t kMaxChecks = 512;      // of one daemon
inline constexpr std::size_t kMaxCheckText = 1024;  // bytes; longer ones are cut
inline constexpr std::size_t kMaxSettings = 128;

enum class CheckLevel : std::uint8_t {
  kOk,
  kNote,     // works, but the user may want to know or to change it
  kProblem,  // a run would fail, or leave out what the machine has
};
constexpr KnownValues known_values(CheckLevel) {
  return {static_cast<std::uint16_t>(CheckLevel::kProblem), "the level of a check"};
}

// A line of the doctor's.
struct Check {
  std::string section;  // "processor", "memory", "GPUs", ...
  std::string name;     // "open files"
  CheckLevel level = CheckLevel::kOk;
  std::string found;
  std::string advice;  // what to do; empty if all is well

  static void fields(auto& m, auto&& field) {
    field(m.section, TRIB_WIRE(Section), CutAt{kMaxCheckText, "a check's section"});
    field(m.name, TRIB_WIRE(Name), CutAt{kMaxCheckText, "a check's name"});
    field(m.level, TRIB_WIRE(Level));
    field(m.found, TRIB_WIRE(Found), CutAt{kMaxCheckText, "what a check found"});
    field(m.advice, TRIB_WIRE(Advice), CutAt{kMaxCheckText, "a check's advice"});
  }
};

// A key of a daemon's configuration, whose value other daemons of its kind should share.
struct Setting {
  std::string key;  // "limits.heartbeat_ms"
  std::string value;

  static void fields(auto& m, auto&& field) {
    field(m.key, TRIB_WIRE(Key), CutAt{kMaxNameBytes, "a setting's key"});
    field(m.value, TRIB_WIRE(Value), CutAt{kMaxNameBytes, "a setting's value"});
  }
};

struct ServerLanes {
  ShardIndex shard;
  std::string host;                    // as in ServerHello
  std::vector<std::string> endpoints;  // by lane
  std::string key;                     // in a cluster with keys: the server's
  bool plain = false;                  // as in ServerHello

  static void fields(auto& m, auto&& field) {
    field(m.shard, TRIB_WIRE(Shard));
    field(m.host, TRIB_WIRE(Host), AtMost{kMaxNameBytes, "the server's host"});
    field(m.endpoints, TRIB_WIRE(Endpoints), AtMost{kMaxLaneEndpoints, "the list of lane endpoints"},
          AtMost{kMaxNameBytes, "an endpoint of a lane"});
    field(m.key, TRIB_WIRE(Key), AtMost{kMaxNameBytes, "the server's key"});
    field(m.plain, TRIB_WIRE(Plain));
  }
};

// Any admitted peer -> coordinator.
struct ClusterQuestion {
  static constexpr auto kWire = TRIB_WIRE(ClusterQuestion);
};
// Its answer: facts of the cluster, to compare with another machine's.
struct ClusterFacts {
  std::uint16_t servers = 0;       // that it waits for
  std::string version;             // of its program
  std::uint64_t clock_ms = 0;      // its time of day, since 1970
  std::vector<ServerLanes> lanes;  // of the servers that are there
  std::uint32_t workers = 0;       // that are there

  static constexpr auto kWire = TRIB_WIRE(ClusterFacts);
  static void fields(auto& m, auto&& field) {
    field(m.servers, TRIB_WIRE(Servers));
    field(m.version, TRIB_WIRE(Version), AtMost{kMaxNameBytes, "the coordinator's version"});
    field(m.clock_ms, TRIB_WIRE(ClockMs));
    field(m.lanes, TRIB_WIRE(Lanes), AtMost{kMaxShards, "the list of servers"});
    field(m.workers, TRIB_WIRE(Workers));
  }
};

// Coordinator -> daemons: run the doctor's checks. With `measure`, servers admit workers with these keys until `over`.
struct Diagnose {
  std::uint32_t diagnosis = 0;
  bool over = false;               // the diagnosis of that number is over: nothing more is asked
  bool measure = false;            // links to servers, and the store's disk
  std::vector<std::string> paths;  // is each of them there?
  ClusterFacts cluster;
  NodeRank node;                         // whose place among worker_keys this is; workers only
  std::vector<std::string> worker_keys;  // in a cluster with keys

  static constexpr auto kWire = TRIB_WIRE(Diagnose);
  static void fields(auto& m, auto&& field) {
    field(m.diagnosis, TRIB_WIRE(Diagnosis));
    field(m.over, TRIB_WIRE(Over));
    field(m.measure, TRIB_WIRE(Measure));
    field(m.paths, TRIB_WIRE(Paths), AtMost{kMaxDiagnosedPaths, "the list of paths"}, AtMost{kMaxPathBytes, "a path"});
    field(m.cluster, TRIB_WIRE(Cluster));
    field(m.node, TRIB_WIRE(Node));
    field(m.worker_keys, TRIB_WIRE(WorkerKeys), AtMost{kMaxRanks, "the list of workers' keys"},
          AtMost{kMaxNameBytes, "a worker's key"});
  }
};

// A worker's measurement of its way to a server: payload, as much each way, over all lanes.
struct LinkRate {
  ShardIndex shard;
  bool local = false;         // the server is on the same machine
  double bytes_per_s = 0.0;   // each way
  double round_trip_s = 0.0;  // the shortest, of a message without payload

  static void fields(auto& m, auto&& field) {
    field(m.shard, TRIB_WIRE(Shard));
    field(m.local, TRIB_WIRE(Local));
    field(m.bytes_per_s, TRIB_WIRE(BytesPerS));
    field(m.round_trip_s, TRIB_WIRE(RoundTripS));
  }
  void check() const {
    must_be_finite(bytes_per_s, "a link's rate");
    must_be_finite(round_trip_s, "a link's round trip");
  }
};
// Daemon -> coordinator.
struct Diagnosed {
  std::uint32_t diagnosis = 0;
  std::vector<Setting> settings;
  std::vector<Check> checks;
  std::vector<LinkRate> rates;

  static constexpr auto kWire = TRIB_WIRE(Diagnosed);
  static void fields(auto& m, auto&& field) {
    field(m.diagnosis, TRIB_WIRE(Diagnosis));
    field(m.settings, TRIB_WIRE(Settings), AtMost{kMaxSettings, "the list of settings"});
    field(m.checks, TRIB_WIRE(Checks), AtMost{kMaxChecks, "the list of checks"});
    field(m.rates, TRIB_WIRE(Rates), AtMost{kMaxShards, "the list of rates"});
  }
};

}  // namespace tributary
