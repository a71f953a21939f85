// The ceiling for `tributary bench pushpull`: the rate of ZeroMQ and the optimizer's arithmetic alone on this machine,
// measured in the same run. A client process keeps 16 chunks in flight on a DEALER socket (zero-copy sends from memory
// as large as the model). A server process receives each on a ROUTER socket, steps the optimizer on one of its rotating
// chunk states (as large as the model, too) with the received frame as the gradient, and returns the frame. No headers,
// no rounds, no reduction, no shared memory, no copy of the answer.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.h"
#include "tools/cluster/local_cluster.h"

namespace tributary::bench {

inline constexpr std::uint64_t kEchoInFlight = 16;  // 64 were slower (docs/data-path.md)

struct EchoOptions {
  Transport transport = Transport::kTcp;
  std::uint64_t chunk_bytes = 1u << 20;
  std::uint64_t model_bytes = 256u << 20;
  std::uint16_t pairs = 1;  // of sockets, each with a thread and a ZeroMQ context at either end: servers times lanes
  std::string optimizer = "adamw";
  double seconds = 1.0;
  std::string folder;   // for ipc sockets and the server's log
  std::string program;  // this program: it runs again as the server
};

struct EchoResult {
  double gb_per_s_each_way = 0.0;   // 1e9 bytes
  double cpu_seconds_per_gb = 0.0;  // of both processes, per gigabyte each way
};

// Blocks for a little more than options.seconds. Spawns the server; errors as Process::spawn, kUnavailable if it fails.
Result<EchoResult> measure_echo(const EchoOptions& options);

// The server process (a hidden subcommand): prints `ready {"endpoints":[...]}` and echoes until it is terminated.
// Returns only on an error, with the exit status.
int run_echo_server(const EchoOptions& options);

}  // namespace tributary::bench
