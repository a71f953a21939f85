// tributary bench gpu-costs, and the processes that it starts.
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "bench/gpu_costs.h"
#include "cli/commands.h"
#include "cluster/process.h"

namespace tributary::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFooter = R"(
Wall time, medians. Needs an NVIDIA GPU and driver.

--json fields: device, repetitions,
  calls_us {launch, copy, record, wait, host_function} (the calling thread's time, of 200 in a row), launch_and_wait (a kernel, until
    the waiting thread goes on),
  host_function_gap_us (by which a host function behind each copy of 256 KiB delays the next one),
  links [{bytes, memory, direction, callbacks, gb_per_s}] (both: there and back at the same time, the sum),
  peers {time_slicing {alone_us, beside_another_us} (launch_and_wait beside a process that computes),
    fault {error, told_after_ms, host_function_ran, later_calls, here} (a kernel of another process fails: what that process is told, and
    what a call here says after it), ipc {opened_twice, importer_killed, exporter_killed}}; problem where one could not be run)";

void print_rows(const Json& out) {
  std::printf("%s, microseconds a call:\n", out.at("device").get<std::string>().c_str());
  for (const auto& [call, us] : out.at("calls_us").items())
    std::printf("  %-16s %8.2f\n", call.c_str(), us.get<double>());
  std::printf("a host function behind a copy delays the next by %.1f us\n",
              out.at("host_function_gap_us").get<double>());
  for (const auto& row : out.at("links")) {
    std::printf("  %9zu bytes, %-10s %-9s%s %6.1f GB/s\n", row.at("bytes").get<std::size_t>(),
                row.at("memory").get<std::string>().c_str(), row.at("direction").get<std::string>().c_str(),
                row.at("callbacks").get<bool>() ? ", a host function a copy" : "", row.at("gb_per_s").get<double>());
  }
  for (const auto& [what, came] : out.at("peers").items()) std::printf("%s: %s\n", what.c_str(), came.dump().c_str());
}

int run(const bench::GpuCostsOptions& options, bool json) {
  auto out = bench::run_gpu_costs(options);
  const auto peers = out ? bench::run_gpu_peers(options.device, executable_dir() + "/tributary") : out;
  if (!peers) {
    std::fprintf(stderr, "tributary %s\n", peers.error().message.c_str());
    return 1;
  }
  (*out)["peers"] = *peers;
  if (json) {
    std::printf("%s\n", out->dump().c_str());
  } else {
    print_rows(*out);
  }
  return 0;
}

void add_peer(CLI::App& bench_app, int& exit_status) {
  struct Arguments {
    bench::GpuPeer peer = bench::GpuPeer::kBusy;
    int device = 0;
    std::string handle;
  };
  static const std::map<std::string, bench::GpuPeer> kNames = {{"busy", bench::GpuPeer::kBusy},
                                                               {"fault", bench::GpuPeer::kFault},
                                                               {"import", bench::GpuPeer::kImport},
                                                               {"export", bench::GpuPeer::kExport}};
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = bench_app.add_subcommand("gpu-peer", "used by gpu-costs")->group("");
  command->add_option("what", arguments->peer)->required()->transform(CLI::CheckedTransformer(kNames));
  command->add_option("--device", arguments->device);
  command->add_option("--handle", arguments->handle);
  command->callback([arguments, &exit_status] {
    exit_status = bench::run_gpu_peer(arguments->peer, arguments->device, arguments->handle);
  });
}

}  // namespace

void add_bench_gpu_costs(CLI::App& bench_app, int& exit_status) {
  struct Arguments {
    bench::GpuCostsOptions options;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  bench::GpuCostsOptions& o = arguments->options;
  CLI::App* command = bench_app.add_subcommand("gpu-costs", "what single operations on a GPU cost, and the link");
  command->footer(kFooter);
  command->add_option("--sizes", o.sizes, "of copies, as 1MiB")->transform(CLI::AsSizeValue(false))->delimiter(',');
  command->add_option("--repetitions", o.repetitions)->capture_default_str();
  command->add_option("--device", o.device, "its number, from 0")->capture_default_str();
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback([arguments, &exit_status] { exit_status = run(arguments->options, arguments->json); });
  add_peer(bench_app, exit_status);
}

}  // namespace tributary::cli
