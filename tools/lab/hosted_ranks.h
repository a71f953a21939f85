// Ranks on the hosts of a lab, between two gates: the times of their rounds, the traffic of the links and each process'
// use of the processors meanwhile.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "tools/cluster/local_cluster.h"
#include "tools/lab/counters.h"
#include "tools/lab/lab.h"

namespace tributary::lab {

// A process and its name in results.
struct Watched {
  std::string name;
  Process* process = nullptr;
};

// Counters of all hosts and processes at one moment.
struct Reading {
  std::vector<HostCounters> hosts;
  std::vector<ProcessUsage> processes;
  double busy_seconds = 0.0;  // of all of this machine's processors since it started
  std::uint64_t at_ns = 0;
};

// Busy processor seconds in /proc/stat: all but idle, waiting for disks, and what other machines took.
double busy_seconds(std::string_view proc_stat, long ticks_per_second);

Result<Reading> read_now(const Lab& lab, const std::vector<Watched>& watched);

// The fields from hosts to machine_busy of lab_run.h.
nlohmann::ordered_json usage_between(const Lab& lab, const std::vector<Watched>& watched, const Reading& before,
                                     const Reading& after);

struct MeasuredRanks {
  std::vector<nlohmann::json> results;  // by rank: the last line of each that is an object with a digest
  Reading before, after;                // at the gates
};

// Ranks alone on the hosts with a worker, without daemons of ours.
class LoneRanks {
 public:
  struct Place {
    std::uint32_t rank = 0, ranks = 1, local_rank = 0, local_ranks = 1, host = 0;  // host: among those with a worker
    std::string address;                                                           // of the host
    std::string first_address;                                                     // of rank 0's
  };
  struct Program {
    std::vector<std::string> argv;
    std::vector<std::pair<std::string, std::string>> environment;
  };

  static constexpr std::uint32_t kAll = ~0u;  // ranks of a host

  // Starts as many on each host as the lab file says, at most `per_host`; logs are log_dir/NAME-RANK.log.
  static Result<LoneRanks> start(const Lab& lab, const std::string& log_dir, const std::string& name,
                                 std::uint32_t per_host, const std::function<Program(const Place&)>& program);

  std::vector<Trainer>& ranks() { return ranks_; }
  std::vector<Watched> watched();
  // kUnavailable if one ended with an error, with the last lines of its log.
  Status healthy();

 private:
  std::vector<Trainer> ranks_;
};

// Leads ranks that were just started through both gates to their end. `healthy` is called all the time: its error ends
// the measurement. Errors: kTimeout, kUnavailable if a rank ends without a result.
Result<MeasuredRanks> measure_ranks(const Lab& lab, std::vector<Trainer>& ranks, const std::vector<Watched>& watched,
                                    const std::string& gate, const std::function<Status()>& healthy);

// round_seconds, round_seconds_all, period_seconds, rounds, model_bytes, digest from the ranks' results; kInternal if
// their digests differ, kMalformed if a field is missing.
Result<nlohmann::ordered_json> round_times(const std::vector<nlohmann::json>& results);

}  // namespace tributary::lab
