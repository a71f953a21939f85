#include "bench/pushpull/pushpull.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/measurements.h"
#include "bench/pushpull/echo_ceiling.h"
#include "bench/pushpull/pushpull_setup.h"
#include "bench/told_progress.h"
#include "common/math/encoding.h"
#include "common/wire/zmq_util.h"

namespace tributary::bench {

using Json = nlohmann::ordered_json;

namespace {

// By name: clusters of the same kind that take turns with the one that is measured.
std::vector<std::pair<std::string, PushPullOptions>> compared_with(const PushPullOptions& options) {
  std::vector<std::pair<std::string, PushPullOptions>> others;
  if (options.secure) {
    others = {{"plain", options}, {"open", options}};
    others[0].second.secure = PayloadSecurity::kPlain;
    others[1].second.secure.reset();
  } else if (options.transport == Transport::kShm && !options.device) {
    others = {{"tcp", options}};
    others[0].second.transport = Transport::kTcp;
  }
  return others;
}

}  // namespace

Result<Json> run_pushpull(const PushPullOptions& options) {
  auto setup = PushPullSetup::start(options);
  if (!setup) return tl::unexpected(setup.error());
  PushPullBenchmark& measured = (*setup)->benchmark();
  if (auto ok = measured.wait_paused(); !ok) return tl::unexpected(ok.error());
  // In turns: keys are compared with less, shared memory with loopback, and everything else with the ceiling.
  std::vector<std::pair<std::string, std::unique_ptr<PushPullSetup>>> others;
  for (auto& [name, otherwise] : compared_with(options)) {
    auto started = PushPullSetup::start(otherwise);
    if (!started) return tl::unexpected(started.error());
    others.emplace_back(name, std::move(*started));
    if (auto ok = others.back().second->benchmark().wait_paused(); !ok) return tl::unexpected(ok.error());
  }
  const auto baseline = [&]() -> Status {
    if (others.empty()) return measured.ceiling();
    for (auto& [name, other] : others) {
      if (auto ok = other->benchmark().slice(); !ok) return ok;
    }
    return {};
  };
  if (auto ok = baseline(); !ok) return tl::unexpected(ok.error());
  ToldProgress progress(options.tell, "slices");
  for (std::uint32_t i = 0; i < options.slices; ++i) {
    progress.reached(i, options.slices);
    if (auto ok = measured.slice(); !ok) return tl::unexpected(ok.error());
    if (auto ok = baseline(); !ok) return tl::unexpected(ok.error());
  }
  auto result = measured.finish();
  if (!result) return result;
  for (auto& [name, other] : others) {
    const auto compared = other->benchmark().finish();
    if (!compared) return compared;
    const double rate = compared->at("gb_per_s_each_way").get<double>();
    (*result)[name + "_gb_per_s_each_way"] = rate;
    (*result)["ratio_to_" + name] = rate > 0.0 ? measured.rate() / rate : 0.0;
    (*result)[name + "_cpu_seconds_per_gb"] = compared->at("cpu_seconds_per_gb");
    (*result)[name + "_slices_gb_per_s"] = compared->at("slices_gb_per_s");
    if (auto ok = other->stop(); !ok) return tl::unexpected(ok.error());
  }
  if (auto ok = (*setup)->stop(); !ok) return tl::unexpected(ok.error());
  return result;
}

void add_exchange_options(CliCommand command, PushPullOptions& o) {
  command.add_option("--servers", o.servers, "server daemons")->capture_default_str();
  command.add_option("--ranks-per-node", o.ranks_per_node, "trainers (threads of this process) at each worker")
      ->capture_default_str();
  add_bytes(command, "--model-bytes", o.model_bytes, "fp32 parameters, as 256MiB")->capture_default_str();
  add_optimizer(command, o.optimizer);
  add_transport(command, o.transport);
  command.add_option("--seconds", o.seconds, "of measuring")->check(in_range(0.1, 3600.0))->capture_default_str();
  command.add_option("--slices", o.slices, "that the time is cut into; they take turns with what is compared")
      ->check(in_range(1, 1000))
      ->capture_default_str();
  command.add_option("--lanes", o.lanes, "of every daemon (default: from the machine)");
  add_bytes(command, "--chunk-bytes", o.chunk_bytes, "default: from the model and the lanes");
  add_bytes(command, "--window-bytes", o.window_bytes, "cap on unacknowledged bytes (default: found by the workers)");
  const auto encoding = [&command](const char* option, EncodingSpec& into, const char* what, const std::string& known,
                                   bool (*usable)(EncodingSpec)) {
    command
        .add_option_function(
            option, [&into](const std::string& name) { into = *parse_encoding(name); },
            std::string(what) + ": " + known)
        ->check(accepted_by([known, usable](const std::string& name) {
          const auto spec = parse_encoding(name);
          return spec && usable(*spec) ? "" : "use one of " + known;
        }))
        ->default_str("fp32");
  };
  encoding("--push", o.push, "encoding of gradients", push_encodings(), usable_for_push);
  encoding("--pull", o.pull, "encoding of parameters", pull_encodings(), usable_for_pull);
  command.add_flag("--store", o.store, "let the servers have a store");
  command
      .add_option("--base-dir", o.base_dir,
                  "keep the daemons' folders here, with logs at debug (default: keep nothing)")
      ->type_name("FOLDER");
  command.add_flag("!--no-ceiling", o.ceiling, "do not measure the ceiling");
}

void begin_exchange(PushPullOptions& options, const MeasurementRun& run) {
  if (options.transport == Transport::kShm || options.secure) options.ceiling = false;  // an echo has to use a socket
  options.program = run.program;
  tune_malloc_for_frames();
}

Measurement pushpull() {
  struct Arguments {
    PushPullOptions options;
    bool durability = false;
    bool security = false;
  };
  const auto add = [](CliCommand command, Arguments& a) {
    add_exchange_options(command, a.options);
    command.add_option("--nodes", a.options.nodes, "worker daemons")->capture_default_str();
    command.add_flag("--security", a.security,
                     "what keys cost: clusters with plain payloads, and without keys, take turns with one whose "
                     "connections are encrypted");
    command.add_flag(
        "--durability", a.durability,
        "compare what surviving costs: with snapshots and what nodes keep, with copies of snapshots, and without");
    command.add_option("--redo-mb", a.options.recovery.redo_mb, "with --durability: memory of a node")
        ->capture_default_str();
  };
  return {
      .name = "pushpull",
      .summary = "gradients in, parameters out, through real servers and workers",
      .words =
          R"(Nothing needs tuning: the number of lanes follows from the cores, the chunk size from the model and the lanes, and the window from the
link. The options are there to see what they are worth.

Fields: gb_per_s_each_way (fp32 gradient bytes of all nodes per second, 1e9 bytes, while as many come back as parameters; median
  over slices of the time),
  cpu_seconds_per_gb (servers, workers and trainers, for a gigabyte each way), ceiling_gb_per_s (a bare ZeroMQ echo of chunks of the
  same size between two processes whose server runs the same optimizer's loop; median over measurements before, between
  and after), ratio_to_ceiling, rounds_per_s, chunk_bytes, window {bytes, chunks} (as the workers' controllers found it), lanes,
  socket_payload_bytes (of gradients and parameters that crossed a socket, counted by the workers: 0 with shm),
  with shm: tcp_gb_per_s_each_way (a second cluster of the same kind over tcp, whose slices take turns with these), ratio_to_tcp,
  tcp_cpu_seconds_per_gb, tcp_slices_gb_per_s,
  with --security the same of a cluster with plain payloads, and of one without keys: plain_gb_per_s_each_way, ratio_to_plain, ...,
  open_gb_per_s_each_way, ratio_to_open, ...
  memory {server_bytes, formula_bytes, ratio} (after every slice, the most; docs/bounds.md), digest (equal on all nodes: checked)
--durability: ranks write their gradients in every round, as trainers do (a node's only rank, with fp32, to where it is kept). Slices
  begin when rings have been gone round once and the first snapshots are written. Give more --slices if the machine is noisy.
  Fields: off, redo, and with two servers or more copies (each part of a snapshot on two of them)
  {gb_per_s_each_way, ratio_to_off (median over slices, which take turns), rounds_per_s, cpu_seconds_per_gb,
  kept_rounds (that nodes have room for), snapshot_bytes (of the newest, all servers), newest_snapshot (its round),
  snapshots (written since the slices began), copied_bytes (of these, from server to server), cpu_seconds_a_snapshot
  (of all servers, beyond what the rounds took without snapshots)}. Refused where nothing would be kept: 16 rounds of the model must fit --redo-mb)",
      .add = measures<Arguments>(add, [](Arguments& a, MeasurementRun& run) {
        if (a.security) a.options.secure = PayloadSecurity::kEncrypt;
        begin_exchange(a.options, run);
        a.options.tell = run.tell;
        return a.durability ? run_durability(a.options) : run_pushpull(a.options);
      })};
}

Measurement echo_server() {
  const auto add = [](CliCommand command, EchoOptions& o) {
    add_transport(command, o.transport);
    command.add_option("--chunk-bytes", o.chunk_bytes);
    command.add_option("--model-bytes", o.model_bytes);
    command.add_option("--pairs", o.pairs);
    command.add_option("--optimizer", o.optimizer);
    command.add_option("--folder", o.folder);
  };
  return {.name = "echo-server",
          .words = "the other process of pushpull's ceiling",
          .add = measures<EchoOptions>(add, [](EchoOptions& options) -> MeasurementResult {
            if (run_echo_server(options) != 0) return fail(ErrorCode::kUnavailable, "the echo ended");
            return nullptr;
          })};
}

}  // namespace tributary::bench
