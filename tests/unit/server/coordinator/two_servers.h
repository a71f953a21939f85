// Two servers and two nodes of a job, whose servers come back as new processes: for tests of where views begin.
#pragma once

#include <doctest/doctest.h>

#include <optional>

#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::testing {

struct TwoServers : Cluster {
  // A new process of server `index`, with the snapshot of that round in its store.
  void server_comes_back(std::uint16_t index, Round stored = Round(40)) {
    ServerHello hello = hello_of(index);
    hello.incarnation = 500 + index;
    hello.stored = {StoredJob{open().job, "mnist", 0, {stored}}};
    now += kTimeoutMs / 4;
    for (std::uint16_t i = 0; i < 2; ++i) {
      if (i != index) beat_server(i);
    }
    for (std::uint32_t w = 0; w < 2; ++w) beat_worker(w);
    peers[index] = PeerId(1500 + index);
    say(peers[index], hello);
  }
  // Returns the server's OpenJob, if it got exactly one.
  std::optional<OpenJob> opened(std::uint16_t index) const { return only<OpenJob>(peers[index]); }
  // Does the server, which must have been asked to open a view, go on with what it keeps?
  bool kept(std::uint16_t index) const { return required(opened(index)).kept; }
  void all_open() {
    const OpenJob opening = open();
    for (const PeerId peer : peers) say(peer, ShardReady{opening.job, opening.view, true, {}, {}});
  }
  // Opens all shards; returns node w's welcome.
  JobWelcome welcome(std::uint32_t w = 0) {
    all_open();
    return required(only<JobWelcome>(worker_peer(w)));
  }

  PeerId peers[2] = {server_peer(0), server_peer(1)};
};

}  // namespace tributary::testing
