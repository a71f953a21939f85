// The common arguments of ranks that a measurement starts as processes: the job's file on the command line; the rank's
// place and the worker's socket in the environment.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bench/measurement.h"
#include "common/base/command_line.h"
#include "common/config/config_toml.h"
#include "session/session.h"

namespace tributary::bench {

struct BenchRank {
  std::string job_file;
  std::vector<std::string> overrides;
  std::string socket;  // the worker's
  JobConfig job;       // from here on: set by begin()
  Topology topology;

  Status begin() {
    auto read = load_job_config(job_file, overrides);
    if (!read) return tl::unexpected(read.error());
    auto place = Topology::from_environment();
    if (!place) return tl::unexpected(place.error());
    job = std::move(*read);
    topology = *place;
    return {};
  }
};

inline void add_rank(CliCommand command, BenchRank& rank) {
  command.add_option("--job", rank.job_file)->required();
  add_overrides(command, rank.overrides);
  command.add_option("--worker", rank.socket)->envname("TRIBUTARY_SOCKET")->required();
}

}  // namespace tributary::bench
