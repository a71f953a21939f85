// tributary bench exchange-rank and gloo-ring-rank: what the lab starts on its hosts. Hidden, because they are of no
// use without the others of their kind.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench/exchange_rank.h"
#include "bench/gloo_ring_rank.h"
#include "cli/commands.h"
#include "common/config_toml.h"

namespace tributary::cli {
namespace {

int print(const char* what, const Result<nlohmann::ordered_json>& result) {
  if (!result) {
    std::fprintf(stderr, "tributary bench %s: %s\n", what, result.error().message.c_str());
    return 1;
  }
  std::printf("%s\n", result->dump().c_str());
  return 0;
}

void add_exchange_rank(CLI::App& bench_app, int& exit_status) {
  struct Arguments {
    bench::ExchangeRankOptions options;
    std::string job_file;
    std::vector<std::string> overrides;
  };
  auto arguments = std::make_shared<Arguments>();
  bench::ExchangeRankOptions& o = arguments->options;
  CLI::App* command = bench_app.add_subcommand("exchange-rank", "a rank that computes nothing")->group("");
  command->add_option("--job", arguments->job_file)->required();
  command->add_option("--set", arguments->overrides)->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--worker", o.socket)->required();
  command->add_option("--model-bytes", o.model_bytes);
  command->add_option("--rounds", o.rounds);
  command->add_option("--warmup", o.warmup);
  command->add_flag("--flowing", o.flowing);
  command->add_option("--gate", o.gate);
  command->callback([arguments, &exit_status] {
    const auto run = [&]() -> Result<nlohmann::ordered_json> {
      auto job = load_job_config(arguments->job_file, arguments->overrides);
      if (!job) return tl::unexpected(job.error());
      auto topology = Topology::from_environment();
      if (!topology) return tl::unexpected(topology.error());
      arguments->options.job = std::move(*job);
      arguments->options.topology = *topology;
      return bench::run_exchange_rank(arguments->options);
    };
    exit_status = print("exchange-rank", run());
  });
}

void add_gloo_ring_rank(CLI::App& bench_app, int& exit_status) {
  auto options = std::make_shared<bench::GlooRingOptions>();
  CLI::App* command = bench_app.add_subcommand("gloo-ring-rank", "a rank of Gloo's own ring")->group("");
  command->add_option("--rank", options->rank)->required();
  command->add_option("--size", options->size)->required();
  command->add_option("--address", options->address)->required();
  command->add_option("--store", options->store)->required();
  command->add_option("--model-bytes", options->model_bytes);
  command->add_option("--rounds", options->rounds);
  command->add_option("--warmup", options->warmup);
  command->add_option("--gate", options->gate);
  command->callback(
      [options, &exit_status] { exit_status = print("gloo-ring-rank", bench::run_gloo_ring_rank(*options)); });
}

}  // namespace

void add_bench_ranks(CLI::App& bench, int& exit_status) {
  add_exchange_rank(bench, exit_status);
  add_gloo_ring_rank(bench, exit_status);
}

}  // namespace tributary::cli
