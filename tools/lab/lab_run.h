// One run on the hosts of a lab: an exchange without computing, Gloo's ring, or a training job.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/choice.h"
#include "tools/lab/lab.h"

namespace tributary::lab {

struct RunOptions {
  std::string base_dir;                // files of the run: configurations, logs; emptied first
  std::string bin_dir;                 // folder of our programs; empty: of the running one
  std::string job_file;                // to train instead of the lab file's; empty: the lab file's
  std::vector<std::string> overrides;  // "section.key=value" of the job, after those of the lab file
  std::string log_level = "info";
  std::optional<PayloadSecurity> secure = {};  // every daemon has keys
  std::function<bool()> interrupted;           // asked a few times a second
};

// The hosts of the lab that run a server in a run.
enum class ServerHosts {
  kNone,     // the ranks exchange among themselves
  kPlaced,   // those of the lab file
  kWorkers,  // those with a worker and no others, whatever the file says
};

struct ExchangeOptions {
  RunOptions run;
  std::uint64_t model_bytes = 16u << 20;
  std::uint32_t rounds = 10;
  std::uint32_t warmup = 3;
  std::string optimizer = "adamw";
};

// A program that trains, once for each rank. Its environment has the rank: with servers as of `tributary run`, without
// them as of torchrun. It takes --gate FOLDER and passes both gates (tools/lab/gate.h) there.
struct ProgramOptions {
  RunOptions run;
  std::vector<std::string> command;
  ServerHosts servers = ServerHosts::kPlaced;
};

// Results are objects with these fields, and those that the functions below name:
//   lab, kind, hosts [{name, address, up_mbit, down_mbit, wire_bytes_sent, wire_bytes_received (with all headers, as
//   the limits count them), interface_bytes_sent, interface_bytes_received, drops_up, drops_down, retransmits,
//   tcp_timeouts}], drops, retransmits, cpu [{name, seconds, resident_peak_bytes}], cpu_seconds, elapsed_seconds,
//   machine_busy (share of this machine's processors that was in use, by whomever)
// Hosts' and processes' figures are of the measured rounds (of a job: of the whole run).
//
// Errors: kStopped if interrupted; otherwise what failed, with the last lines of its log. Whatever was started is
// ended.

// `exchange-rank` on every host with a worker, through our daemons. Also: mode, model_bytes, rounds, round_seconds (of
// a round: the slowest host's; then the median over rounds), round_seconds_all[], period_seconds (first begin to last
// end, over the rounds), goodput_bytes_per_s, goodput_from ("iperf3" or "rate"), model_over_goodput_seconds, ratio
// (round_seconds over that), chunk_bytes, digest.
Result<nlohmann::ordered_json> run_exchange(const Lab& lab, const ExchangeOptions& options);

// The lab file's job. Also: mode, job, model_bytes, rounds, samples (over all ranks), digest, test_accuracy, test_loss,
// train_loss, seconds (of training), step_seconds (of a round: the slowest rank's; then the median over rounds after
// the warm-up), step_split {compute_ms, reduce_ms, wait_ms} (mean over ranks and those rounds; wait: for the exchange,
// as far as computing did not cover it).
Result<nlohmann::ordered_json> run_job(const Lab& lab, const RunOptions& options);

// A program's ranks. Also: model_bytes, rounds, round_seconds, round_seconds_all[], period_seconds, digest as above;
// and ranks: what each printed last, an object with at least rounds' begin_ns[] and end_ns[], model_bytes and digest.
Result<nlohmann::ordered_json> run_program(const Lab& lab, const ProgramOptions& options);

// Gloo's ring over the hosts with a worker: the fields of run_exchange, mode "gloo ring".
Result<nlohmann::ordered_json> run_gloo_ring(const Lab& lab, const ExchangeOptions& options);

}  // namespace tributary::lab
