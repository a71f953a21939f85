// Records of jobs, and servers that say which copies of them they have.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::testing {

// As a job's that has run on so many servers.
inline JobRecord known(std::uint64_t edition, std::uint64_t committed, std::uint64_t job = 30,
                       const std::string& name = "mnist", std::uint16_t servers = 2) {
  FullCluster cluster({.workers = 1, .servers = servers});
  JoinOptions options;
  options.job = name;
  cluster.run(1, options);
  JobRecord record = cluster.record(name);
  record.job = JobId(job);
  record.view = ViewId(3);
  record.edition = edition;
  record.committed = Round(committed);
  record.initialised = committed != 0;
  return record;
}

// A coordinator whose servers have copies.
struct ClusterWithCopies : Cluster {
  using Cluster::Cluster;
  void server_with(std::uint16_t index, std::vector<HeldRecord> copies, std::vector<StoredJob> stored = {}) {
    ServerHello hello = hello_of(index);
    hello.copies = std::move(copies);
    hello.stored = std::move(stored);
    say(server_peer(index), hello);
  }
};

}  // namespace tributary::testing
