// The measurements that need a GPU, on the command line of every build.
#include "bench/gpu/gpu_costs.h"
#include "bench/gpu/gpu_kernel_bench.h"
#include "bench/gpu/gpu_pipeline.h"
#include "bench/measurements.h"

namespace tributary::bench {
Measurement gpu_pipeline() {
  const auto add = [](CliCommand command, GpuPipelineOptions& o) {
    add_exchange_options(command, o.exchange);
    command.add_option("--device", o.device, "which GPU")->capture_default_str();
    command.add_flag("--nccl", o.nccl, "run the collectives, with a communicator of one");
  };
  return {
      .name = "gpu-pipeline",
      .summary = "device, host, servers and back, with ranks on a GPU",
      .words =
          R"(Ranks on one GPU, a worker that reduces and decodes on it, real servers, all on this machine. Needs an NVIDIA GPU and driver.

Fields: those of `tributary bench pushpull`, and
  device, nccl (whether the collectives were run),
  time_split {round_us, device_to_host_us, push_server_pull_us, host_to_device_us}: where a chunk spends a round. Up: from
    its last gradient to its frame in pinned memory. Down: from the answer's arrival to the parameters on the device.
    The rest is the window's queue, the wire, the server and the way back,
  link {device_to_host_gb_per_s, host_to_device_gb_per_s} (copies of chunks alone), reduced_on, device_times (totals
  of the worker))",
      .add = measures<GpuPipelineOptions>(add, [](GpuPipelineOptions& options, MeasurementRun& run) {
        begin_exchange(options.exchange, run);
        return run_gpu_pipeline(options);
      })};
}

Measurement gpu_kernels() {
  const auto add = [](CliCommand command, GpuKernelBenchOptions& o) {
    add_bytes(command, "--elements", o.elements, "values of each array")->capture_default_str();
    command.add_option("--top-k", o.top_k, "share of the values that top-k sends")
        ->check(in_range(1e-6, 1.0))
        ->capture_default_str();
    command.add_option("--repetitions", o.repetitions)->capture_default_str();
    command.add_option("--device", o.device, "its number, from 0")->capture_default_str();
  };
  return {.name = "gpu-kernels",
          .summary = "the CUDA kernels beside a copy in device memory",
          .words = "Fields: bench/gpu/gpu_kernel_bench.h",
          .columns = "kernel,gb_per_s,ratio",
          .add = measures<GpuKernelBenchOptions>(add, run_gpu_kernel_bench)};
}

Measurement gpu_costs() {
  const auto add = [](CliCommand command, GpuCostsOptions& o) {
    add_bytes(command, "--sizes", o.sizes, "of copies, as 1MiB")->delimiter(',');
    command.add_option("--repetitions", o.repetitions)->capture_default_str();
    command.add_option("--device", o.device, "its number, from 0")->capture_default_str();
  };
  return {.name = "gpu-costs",
          .summary = "what single operations on a GPU cost, and the link",
          .words = R"(Wall time, medians. Needs an NVIDIA GPU and driver.

Fields: device, repetitions,
  calls_us {launch, copy, record, wait, host_function} (the calling thread's time, of 200 in a row), launch_and_wait (a kernel, until
    the waiting thread goes on),
  host_function_gap_us (by which a host function behind each copy of 256 KiB delays the next one),
  links [{bytes, memory, direction, callbacks, gb_per_s}] (both: there and back at the same time, the sum))",
          .add = measures<GpuCostsOptions>(add, run_gpu_costs)};
}

}  // namespace tributary::bench
