// tributary bench: measurements with a baseline from the same run.
#include <cstdio>
#include <memory>
#include <string>

#include "bench/allreduce_bench.h"
#include "bench/echo_ceiling.h"
#include "bench/gpu_kernel_bench.h"
#include "bench/gpu_pipeline.h"
#include "bench/kernel_bench.h"
#include "bench/optimizer_bench.h"
#include "bench/pushpull.h"
#include "cli/commands.h"
#include "common/encoding.h"
#include "common/zmq_util.h"

namespace tributary::cli {
namespace {

constexpr const char* kPushPullFooter = R"(
Nothing needs tuning: the number of lanes follows from the cores, the chunk size from the model and the lanes, and the window from the
link. The options are there to see what they are worth.

--json fields: gb_per_s_each_way (fp32 gradient bytes of all nodes per second, 1e9 bytes, while as many come back as parameters; median
  over slices of the time),
  cpu_seconds_per_gb (servers, workers and trainers, for a gigabyte each way), ceiling_gb_per_s (a bare ZeroMQ echo of chunks of the
  same size between two processes whose server runs the same optimizer's loop; median over measurements before, between
  and after), ratio_to_ceiling, rounds_per_s, chunk_bytes, window {bytes, chunks} (as the workers' controllers found it), lanes,
  socket_payload_bytes (of gradients and parameters that crossed a socket, counted by the workers: 0 with shm),
  with shm: tcp_gb_per_s_each_way (a second cluster of the same kind over tcp, whose slices take turns with these), ratio_to_tcp,
  tcp_cpu_seconds_per_gb, tcp_slices_gb_per_s,
  memory {server_bytes, formula_bytes, ratio} (after every slice, the most; docs/bounds.md), digest (equal on all nodes: checked)
--durability: ranks write their gradients in every round, as trainers do (a node's only rank, with fp32, to where it is kept). Slices
  begin when rings have been gone round once and the first snapshots are written. Give more --slices if the machine is noisy.
  --json: off, redo {gb_per_s_each_way, ratio_to_off (median over slices, which take turns), rounds_per_s,
  cpu_seconds_per_gb, kept_rounds (that nodes have room for), snapshot_bytes (of the newest, all servers),
  newest_snapshot (its round)}. Refused where nothing would be kept: 16 rounds of the model must fit --redo-mb)";

struct PushPullArguments {
  bench::PushPullOptions options;
  std::string transport = "tcp", push = "fp32", pull = "fp32";
  bool no_ceiling = false, json = false;
};

int fail_with(const char* what, const std::string& message) {
  std::fprintf(stderr, "tributary bench %s: %s\n", what, message.c_str());
  return 1;
}

void finish_options(PushPullArguments& arguments) {
  bench::PushPullOptions& options = arguments.options;
  options.transport = transport_named(arguments.transport);
  options.push = *parse_encoding(arguments.push);
  options.pull = *parse_encoding(arguments.pull);
  options.ceiling = !arguments.no_ceiling && options.transport != Transport::kShm;  // an echo has to use a socket
  options.program = executable_dir() + "/tributary";
  tune_malloc_for_frames();
}

int print_exchange(const char* what, const PushPullArguments& arguments, const Result<nlohmann::ordered_json>& result) {
  if (!result) return fail_with(what, result.error().message);
  if (arguments.json) {
    std::printf("%s\n", result->dump().c_str());
    return 0;
  }
  const auto number = [&](const char* key) { return result->at(key).get<double>(); };
  std::printf("%.2f GB/s each way, %.1f rounds/s, %.2f CPU-seconds per GB\n", number("gb_per_s_each_way"),
              number("rounds_per_s"), number("cpu_seconds_per_gb"));
  if (result->contains("ratio_to_tcp")) {
    std::printf("the same over tcp, in turns: %.2f GB/s; ratio %.2f\n", number("tcp_gb_per_s_each_way"),
                number("ratio_to_tcp"));
  }
  if (arguments.options.ceiling) {
    std::printf("ceiling %.2f GB/s (ZeroMQ echo with the same optimizer, same run): ratio %.2f\n",
                number("ceiling_gb_per_s"), number("ratio_to_ceiling"));
  }
  std::printf("chunks of %.0f KiB, window %.1f chunks, %d %s, over %s\n", number("chunk_bytes") / 1024,
              result->at("window").at("chunks").get<double>(), result->at("lanes").get<int>(),
              result->at("lanes").get<int>() == 1 ? "lane" : "lanes", arguments.transport.c_str());
  std::printf("server memory at most %.2f of the formula\n", result->at("memory").at("ratio").get<double>());
  return 0;
}

int print_durability(const PushPullArguments& arguments, const Result<nlohmann::ordered_json>& result) {
  if (!result) return fail_with("pushpull --durability", result.error().message);
  if (arguments.json) {
    std::printf("%s\n", result->dump().c_str());
    return 0;
  }
  for (const char* name : {"off", "redo"}) {
    const auto& one = result->at(name);
    const auto kept = one.at("kept_rounds").get<unsigned>();
    std::printf("%-8s %.2f GB/s each way, %.3f of off, %.2f CPU-seconds per GB%s\n", name,
                one.at("gb_per_s_each_way").get<double>(), one.at("ratio_to_off").get<double>(),
                one.at("cpu_seconds_per_gb").get<double>(),
                kept == 0 ? "" : (", " + std::to_string(kept) + " rounds kept").c_str());
  }
  return 0;
}

void add_exchange_options(CLI::App* command, const std::shared_ptr<PushPullArguments>& arguments) {
  bench::PushPullOptions& o = arguments->options;
  command->add_option("--servers", o.servers, "server daemons")->capture_default_str();
  command->add_option("--ranks-per-node", o.ranks_per_node, "trainers (threads of this process) at each worker")
      ->capture_default_str();
  command->add_option("--model-bytes", o.model_bytes, "fp32 parameters, as 256MiB")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  command->add_option("--optimizer", o.optimizer, "sgd, adam, adamw, adagrad, lion")
      ->check(CLI::IsMember({"sgd", "adam", "adamw", "adagrad", "lion"}))
      ->capture_default_str();
  command->add_option("--transport", arguments->transport)
      ->check(CLI::IsMember({"tcp", "ipc", "shm"}))
      ->capture_default_str();
  command->add_option("--seconds", o.seconds, "of measuring")->check(CLI::Range(0.1, 3600.0))->capture_default_str();
  command->add_option("--slices", o.slices, "that the time is cut into; they take turns with what is compared")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--lanes", o.lanes, "of every daemon (default: from the machine)");
  command->add_option("--chunk-bytes", o.chunk_bytes, "default: from the model and the lanes")
      ->transform(CLI::AsSizeValue(false));
  command->add_option("--window-bytes", o.window_bytes, "cap on unacknowledged bytes (default: found by the workers)")
      ->transform(CLI::AsSizeValue(false));
  command->add_option("--push", arguments->push, "encoding of gradients: " + std::string(kPushEncodings))
      ->check([](const std::string& name) {
        const auto spec = parse_encoding(name);
        return spec && usable_for_push(*spec) ? "" : "use one of " + std::string(kPushEncodings);
      })
      ->capture_default_str();
  command->add_option("--pull", arguments->pull, "encoding of parameters: " + std::string(kPullEncodings))
      ->check([](const std::string& name) {
        const auto spec = parse_encoding(name);
        return spec && usable_for_pull(*spec) ? "" : "use one of " + std::string(kPullEncodings);
      })
      ->capture_default_str();
  command->add_flag("--store", o.store, "let the servers have a store");
  command->add_flag("--no-ceiling", arguments->no_ceiling, "do not measure the ceiling");
  command->add_flag("--json", arguments->json, "print one JSON object");
}

void add_push_pull(CLI::App& bench_app, int& exit_status) {
  auto arguments = std::make_shared<PushPullArguments>();
  CLI::App* command =
      bench_app.add_subcommand("pushpull", "gradients in, parameters out, through real servers and workers");
  command->footer(kPushPullFooter);
  add_exchange_options(command, arguments);
  command->add_option("--nodes", arguments->options.nodes, "worker daemons")->capture_default_str();
  auto durability = std::make_shared<bool>(false);
  command->add_flag("--durability", *durability,
                    "compare what surviving costs: with snapshots and what nodes keep, and without");
  command->add_option("--redo-mb", arguments->options.recovery.redo_mb, "with --durability: memory of a node")
      ->capture_default_str();
  command->callback([arguments, durability, &exit_status] {
    finish_options(*arguments);
    if (*durability) {
      exit_status = print_durability(*arguments, bench::run_durability(arguments->options));
      return;
    }
    exit_status = print_exchange("pushpull", *arguments, bench::run_pushpull(arguments->options));
  });
}

constexpr const char* kGpuPipelineFooter = R"(
Ranks on one GPU, a worker that reduces and decodes on it, real servers, all on this machine. Needs an NVIDIA GPU and driver.

--json fields: those of `tributary bench pushpull`, and
  device, nccl (whether the collectives were run),
  time_split {round_us, device_to_host_us, push_server_pull_us, host_to_device_us}: where a chunk spends a round. Up: from
    its last gradient to its frame in pinned memory. Down: from the answer's arrival to the parameters on the device.
    The rest is the window's queue, the wire, the server and the way back,
  link {device_to_host_gb_per_s, host_to_device_gb_per_s} (copies of chunks alone), reduced_on, device_times (totals
  of the worker))";

int gpu_pipeline(PushPullArguments& arguments, bench::GpuPipelineOptions& options) {
  finish_options(arguments);
  options.exchange = arguments.options;
  const auto result = bench::run_gpu_pipeline(options);
  if (const int status = print_exchange("gpu-pipeline", arguments, result); status != 0 || arguments.json)
    return status;
  const auto& split = result->at("time_split");
  std::printf(
      "a chunk's round of %.0f us on %s: device to host %.0f, push, server and pull %.0f, host to device %.0f\n",
      split.at("round_us").get<double>(), result->at("device").get<std::string>().c_str(),
      split.at("device_to_host_us").get<double>(), split.at("push_server_pull_us").get<double>(),
      split.at("host_to_device_us").get<double>());
  std::printf("copies of chunks alone: %.1f GB/s to the host, %.1f GB/s to the device\n",
              result->at("link").at("device_to_host_gb_per_s").get<double>(),
              result->at("link").at("host_to_device_gb_per_s").get<double>());
  return 0;
}

void add_gpu_pipeline(CLI::App& bench_app, int& exit_status) {
  auto arguments = std::make_shared<PushPullArguments>();
  auto options = std::make_shared<bench::GpuPipelineOptions>();
  CLI::App* command = bench_app.add_subcommand("gpu-pipeline", "device, host, servers and back, with ranks on a GPU");
  command->footer(kGpuPipelineFooter);
  add_exchange_options(command, arguments);
  command->add_option("--device", options->device, "which GPU")->capture_default_str();
  command->add_flag("--nccl", options->nccl, "run the collectives, with a communicator of one");
  command->callback([arguments, options, &exit_status] { exit_status = gpu_pipeline(*arguments, *options); });
}

constexpr const char* kAllreduceFooter = R"(
Nodes are lanes of this process on the loopback interface; everything shares this machine's cores, the optimizer's step on
every node included.

--json fields: round_ms (from all gradients being ready to all nodes having all parameters; median over turns of medians over
  rounds), gb_per_s (model bytes by it), chunk_bytes (of a bucket), exchange_ms (rounds of weight 0: the same sums, and no
  step), gloo_ms (one call of gloo::allreduce, ring, over the whole model, nothing else), gloo_step_ms (that call and then
  the same optimizer's step on every node), ratio_exchange_to_gloo (exchange_ms by gloo_ms, within a turn), ratio_to_gloo
  and ratio_to_gloo_step (round_ms by them, within a turn))";

void add_allreduce(CLI::App& bench_app, int& exit_status) {
  struct Arguments {
    bench::AllreduceBenchOptions options;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  bench::AllreduceBenchOptions& o = arguments->options;
  CLI::App* command = bench_app.add_subcommand("allreduce", "rounds of all-reduce jobs beside Gloo's own ring");
  command->footer(kAllreduceFooter);
  command->add_option("--nodes", o.nodes)->capture_default_str();
  command->add_option("--ranks-per-node", o.ranks_per_node, "trainers at each")->capture_default_str();
  command->add_option("--model-bytes", o.model_bytes, "fp32 parameters, as 64MiB")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  command->add_option("--algorithm", o.algorithm)
      ->check(CLI::IsMember({"flat", "hierarchical"}))
      ->capture_default_str();
  command->add_option("--optimizer", o.optimizer, "sgd, adam, adamw, adagrad, lion")
      ->check(CLI::IsMember({"sgd", "adam", "adamw", "adagrad", "lion"}))
      ->capture_default_str();
  command->add_option("--chunk-bytes", o.chunk_bytes, "of a bucket (default: from the model)")
      ->transform(CLI::AsSizeValue(false));
  command->add_option("--streams", o.streams, "collectives under way at a time (default: the workers')");
  command->add_option("--rounds", o.rounds, "in each turn")->capture_default_str();
  command->add_option("--turns", o.turns)->capture_default_str();
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback([arguments, &exit_status] {
    tune_malloc_for_frames();
    const auto result = bench::run_allreduce_bench(arguments->options);
    if (!result) {
      exit_status = fail_with("allreduce", result.error().message);
      return;
    }
    if (arguments->json) {
      std::printf("%s\n", result->dump().c_str());
      return;
    }
    const auto number = [&](const char* key) { return result->at(key).get<double>(); };
    std::printf("%.2f ms a round, %.2f GB/s, buckets of %.0f KiB\n", number("round_ms"), number("gb_per_s"),
                number("chunk_bytes") / 1024);
    std::printf("sums alone %.2f ms, Gloo's ring %.2f ms: ratio %.3f\n", number("exchange_ms"), number("gloo_ms"),
                number("ratio_exchange_to_gloo"));
    std::printf("with the step %.2f ms, Gloo's ring and then the same step %.2f ms: ratio %.3f\n", number("round_ms"),
                number("gloo_step_ms"), number("ratio_to_gloo_step"));
  });
}

void add_optimizer(CLI::App& bench_app, int& exit_status) {
  struct Arguments {
    OptimizerBenchOptions options;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  OptimizerBenchOptions& o = arguments->options;
  CLI::App* command =
      bench_app.add_subcommand("optimizer", "the servers' fused sum and step beside the memory's bandwidth");
  command->add_option("--optimizer", o.optimizer, "sgd, adam, adamw, adagrad, lion")->capture_default_str();
  command->add_option("--elements", o.elements, "parameters")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  command->add_option("--chunk-bytes", o.chunk_bytes, "fp32 bytes of a chunk")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  command->add_option("--seconds", o.seconds, "of measuring")->check(CLI::Range(0.1, 3600.0))->capture_default_str();
  command->add_option("--threads", o.threads)->capture_default_str();
  command->add_option("--inputs", o.inputs, "numbers of gradient frames")->delimiter(',')->capture_default_str();
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback([arguments, &exit_status] {
    const auto result = run_optimizer_bench(arguments->options);
    if (!result) {
      exit_status = fail_with("optimizer", result.error().message);
      return;
    }
    if (arguments->json) {
      std::printf("%s\n", result->dump().c_str());
      return;
    }
    std::printf("%s, memcpy %.1f GB/s\n", arguments->options.optimizer.c_str(),
                result->at("memcpy_gb_per_s").get<double>());
    for (const auto& row : result->at("results")) {
      std::printf("  %d inputs: %.2f G parameters/s, %.1f GB/s, %.2f of what memory allows\n",
                  row.at("inputs").get<int>(), row.at("parameters_per_s").get<double>() * 1e-9,
                  row.at("gb_per_s").get<double>(), row.at("ratio").get<double>());
    }
  });
}

void add_kernels(CLI::App& bench_app, int& exit_status) {
  struct Arguments {
    KernelBenchOptions options;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  KernelBenchOptions& o = arguments->options;
  CLI::App* command = bench_app.add_subcommand("kernels", "the CPU kernels on one core beside memcpy");
  command->add_option("--elements", o.elements, "values")->transform(CLI::AsSizeValue(false))->capture_default_str();
  command->add_option("--chunk-elements", o.chunk_elements, "values that one call handles")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  command->add_option("--top-k", o.top_k, "share of the values that top-k sends")
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  command->add_option("--seconds", o.seconds, "of measuring")->check(CLI::Range(0.1, 3600.0))->capture_default_str();
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback([arguments, &exit_status] {
    const auto result = run_kernel_bench(arguments->options);
    if (!result) {
      exit_status = fail_with("kernels", result.error().message);
      return;
    }
    if (arguments->json) {
      std::printf("%s\n", result->dump().c_str());
      return;
    }
    std::printf("one core, GB/s of fp32 values; memcpy %.1f GB/s\n", result->at("memcpy_gb_per_s").get<double>());
    for (const auto& row : result->at("results")) {
      std::printf("  %-28s %6.2f GB/s, %.2f of memcpy\n", row.at("kernel").get<std::string>().c_str(),
                  row.at("gb_per_s").get<double>(), row.at("ratio").get<double>());
    }
  });
}

void add_gpu_kernels(CLI::App& bench_app, int& exit_status) {
  struct Arguments {
    GpuKernelBenchOptions options;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  GpuKernelBenchOptions& o = arguments->options;
  CLI::App* command = bench_app.add_subcommand("gpu-kernels", "the CUDA kernels beside a copy in device memory");
  command->add_option("--elements", o.elements, "values of each array")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  command->add_option("--top-k", o.top_k, "share of the values that top-k sends")
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  command->add_option("--repetitions", o.repetitions)->capture_default_str();
  command->add_option("--device", o.device, "its number, from 0")->capture_default_str();
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback([arguments, &exit_status] {
    const auto result = run_gpu_kernel_bench(arguments->options);
    if (!result) {
      std::fprintf(stderr, "tributary %s\n", result.error().message.c_str());
      exit_status = 1;
      return;
    }
    if (arguments->json) {
      std::printf("%s\n", result->dump().c_str());
      return;
    }
    std::printf("%s, GB/s read and written; copy %.0f GB/s\n", result->at("device").get<std::string>().c_str(),
                result->at("copy_gb_per_s").get<double>());
    for (const auto& row : result->at("results")) {
      std::printf("  %-42s %6.0f GB/s, %.2f of copy\n", row.at("kernel").get<std::string>().c_str(),
                  row.at("gb_per_s").get<double>(), row.at("ratio").get<double>());
    }
  });
}

// The other process of the ceiling's measurement.
void add_echo_server(CLI::App& bench_app, int& exit_status) {
  struct Arguments {
    bench::EchoOptions options;
    std::string transport = "tcp";
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = bench_app.add_subcommand("echo-server", "used by pushpull for its ceiling")->group("");
  command->add_option("--transport", arguments->transport);
  command->add_option("--chunk-bytes", arguments->options.chunk_bytes);
  command->add_option("--model-bytes", arguments->options.model_bytes);
  command->add_option("--pairs", arguments->options.pairs);
  command->add_option("--optimizer", arguments->options.optimizer);
  command->add_option("--folder", arguments->options.folder);
  command->callback([arguments, &exit_status] {
    arguments->options.transport = transport_named(arguments->transport);
    exit_status = bench::run_echo_server(arguments->options);
  });
}

}  // namespace

void add_bench(CLI::App& app, int& exit_status) {
  CLI::App* command = app.add_subcommand("bench", "measure, with a baseline from the same run");
  command->require_subcommand(1);
  add_push_pull(*command, exit_status);
  add_gpu_pipeline(*command, exit_status);
  add_allreduce(*command, exit_status);
  add_optimizer(*command, exit_status);
  add_kernels(*command, exit_status);
  add_gpu_kernels(*command, exit_status);
  add_bench_gpu_costs(*command, exit_status);
  add_echo_server(*command, exit_status);
  add_bench_ranks(*command, exit_status);
  add_bench_staleness(*command, exit_status);
  add_bench_elastic(*command, exit_status);
  add_bench_stragglers(*command, exit_status);
  add_bench_compare(*command, exit_status);
  add_bench_checkpoint(*command, exit_status);
  add_bench_soak(*command, exit_status);
}

}  // namespace tributary::cli
