// A lab file: the hosts, the speed of their links, the places of the daemons, and the job.
//
//   [lab]        name, congestion
//   [network]    rate_mbit, burst_kb, queue_kb: every host's link, each way
//   [[hosts]]    name, count, runs = "worker" | "server" | "both", ranks, rate_mbit, up_mbit, down_mbit, bandwidth
//   [job]        file, set, store                          what `tributary lab run` trains
//   [exchange]   model_bytes, rounds, warmup, optimizer    what `tributary lab run --exchange` moves
//   [compare]    repetitions, overlap                             `tributary bench compare`
//   [[variants]] name, file, set, baseline                 what it compares
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace tributary::lab {

inline constexpr std::uint32_t kMaxHosts = 64;
inline constexpr std::size_t kMaxLabName = 32;
inline constexpr std::size_t kMaxHostName = 24;

struct LabHost {
  std::string name;
  bool worker = false;
  bool server = false;
  std::uint32_t ranks = 1;  // trainers on it, if it has a worker
  double up_mbit = 0.0;     // limit for sending, in 1e6 bits a second on the wire
  double down_mbit = 0.0;   // limit for receiving
  double bandwidth = 0.0;   // weight of its link in the assignment of chunks, relative to the other hosts
};

struct LabJob {
  std::string file;  // empty: none given
  std::vector<std::string> overrides;
  bool store = false;  // whether servers keep snapshots: on the one disk that all hosts share
};

struct LabExchange {
  std::uint64_t model_bytes = 16u << 20;  // of fp32 parameters
  std::uint32_t rounds = 10;              // measured
  std::uint32_t warmup = 3;               // before them
  std::string optimizer = "adamw";
};

struct LabVariant {
  std::string name;
  std::string file;                    // of its job, instead of the lab's; empty: the lab's
  std::vector<std::string> overrides;  // of the job
  std::string baseline;                // "gloo": not one of our modes but Gloo's own ring; empty: none
};

struct LabCompare {
  std::uint32_t repetitions = 3;  // of every variant, in turn
  // For predictions of a step: the part of computing behind which an exchange can hide. Gradients leave while the
  // backward pass still runs, and layers wait for their own parameters only.
  double overlap = 0.5;
};

struct LabConfig {
  std::string name;
  // TCP's congestion control; empty: as the machine has it. Every kernel has Reno and lets every namespace choose it.
  std::string congestion = "reno";
  double rate_mbit = 250.0;
  std::uint32_t burst_kb = 0;  // KiB a link may send at once; 0: see default_burst_bytes
  std::uint32_t queue_kb = 0;  // KiB that wait for a link before packets are dropped; 0: 4096
  std::vector<LabHost> hosts;
  LabJob job;
  LabExchange exchange;
  LabCompare compare;
  std::vector<LabVariant> variants;

  std::uint32_t workers() const;
  std::uint32_t servers() const;
  std::uint32_t world_size() const;
};

// Whether a lab may have this name.
bool is_lab_name(const std::string& name);

// Default bytes of a link's burst. At least the largest offloaded packet (64 KiB of payload and the headers of its 45
// segments), or the kernel would split every one of them; and a millisecond of the rate, so that a timer that fires
// late costs nothing.
std::uint32_t default_burst_bytes(double rate_mbit);
std::uint32_t queue_bytes(const LabConfig& config);

// Errors: kNotFound, kIo, or kConfig with "FILE:LINE: key = value: what would be right". Paths in it are relative to
// the file's folder.
Result<LabConfig> load_lab_config(const std::string& path);
Result<LabConfig> parse_lab_config(std::string_view text, std::string_view source_name, const std::string& folder);

}  // namespace tributary::lab
