// tributary bench staleness, and the ranks that it starts.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench/staleness.h"
#include "bench/staleness_rank.h"
#include "cli/commands.h"
#include "common/config_toml.h"

namespace tributary::cli {
namespace {

constexpr const char* kFooter = R"(
Servers, workers and ranks run as processes of their own on this machine. With plain SGD and learning rate 1 the ranks make gradients
from which every parameter counts the pushes of one node; so each rank sees for itself, in every chunk it pulls, what the
servers promise: that its own pushes are in there, each once, and those of all nodes up to its clock minus the bound. One node at a
time is slowed at random.

Prints one JSON object a bound: staleness, clocks, pulls (chunks answered to nodes), violations {own, stale, ahead, torn, lost, end,
total}, first_violation, max_staleness, mean_staleness, histogram (pulls by staleness: the reader's clock minus the slowest
node's push in the chunk), told_agrees (whether the answers' own figures say the same). Exit status 1 if there is any violation.)";

struct Arguments {
  bench::StalenessOptions options;
  std::vector<std::string> bounds = {"3"};
  std::string transport = "shm";
};

// "async" or a number.
std::string check_bound(const std::string& text) {
  const bool digits = !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos;
  return digits || text == "async" ? "" : "use a number of clocks, or async";
}

int run(Arguments& arguments) {
  arguments.options.program = executable_dir() + "/tributary";
  arguments.options.transport = transport_named(arguments.transport);
  int status = 0;
  for (const std::string& bound : arguments.bounds) {
    arguments.options.staleness.reset();
    if (bound != "async") arguments.options.staleness = std::stoull(bound);
    const auto result = bench::run_staleness(arguments.options);
    if (!result) {
      std::fprintf(stderr, "tributary bench staleness: %s\n", result.error().message.c_str());
      return 1;
    }
    std::printf("%s\n", result->dump().c_str());
    std::fflush(stdout);
    if (result->at("violations").at("total").get<std::uint64_t>() != 0) status = 1;
  }
  return status;
}

void add_rank(CLI::App& bench_app, int& exit_status) {
  struct RankArguments {
    bench::StalenessRankOptions options;
    std::string job_file;
  };
  auto arguments = std::make_shared<RankArguments>();
  bench::StalenessRankOptions& o = arguments->options;
  CLI::App* command = bench_app.add_subcommand("staleness-rank", "a rank that counts pushes")->group("");
  command->add_option("--job", arguments->job_file)->required();
  command->add_option("--worker", o.socket)->required();
  command->add_option("--chunks", o.chunks);
  command->add_option("--clocks", o.clocks);
  command->add_option("--slow-us", o.slow_us);
  command->add_option("--seed", o.seed);
  command->callback([arguments, &exit_status] {
    const auto rank = [&]() -> Result<nlohmann::ordered_json> {
      auto job = load_job_config(arguments->job_file);
      if (!job) return tl::unexpected(job.error());
      const auto topology = Topology::from_environment();
      if (!topology) return tl::unexpected(topology.error());
      arguments->options.job = std::move(*job);
      arguments->options.topology = *topology;
      return bench::run_staleness_rank(arguments->options);
    };
    const auto result = rank();
    if (result) {
      std::printf("%s\n", result->dump().c_str());
    } else {
      std::fprintf(stderr, "tributary bench staleness-rank: %s\n", result.error().message.c_str());
    }
    exit_status = result ? 0 : 1;
  });
}

}  // namespace

void add_bench_staleness(CLI::App& bench_app, int& exit_status) {
  auto arguments = std::make_shared<Arguments>();
  bench::StalenessOptions& o = arguments->options;
  CLI::App* command = bench_app.add_subcommand("staleness", "does the bound on staleness hold, as ranks see it?");
  command->footer(kFooter);
  command->add_option("--staleness", arguments->bounds, "bounds, one run each, as 0,1,4,16 or async")
      ->delimiter(',')
      ->check(CLI::Validator([](const std::string& text) { return check_bound(text); }, "BOUND"))
      ->capture_default_str();
  command->add_option("--servers", o.servers)->capture_default_str();
  command->add_option("--nodes", o.nodes)->capture_default_str();
  command->add_option("--ranks-per-node", o.ranks_per_node)->capture_default_str();
  command->add_option("--chunks", o.chunks, "of 4 KiB")->capture_default_str();
  command->add_option("--pulls", o.pulls, "at least, over all nodes")->capture_default_str();
  command->add_option("--slow-us", o.slow_us, "longest sleep of the slow node before a push")->capture_default_str();
  command->add_option("--seed", o.seed)->capture_default_str();
  command->add_option("--transport", arguments->transport)
      ->check(CLI::IsMember({"tcp", "ipc", "shm"}))
      ->capture_default_str();
  command->add_option("--seconds", o.seconds, "at most, for each")->capture_default_str();
  command->callback([arguments, &exit_status] { exit_status = run(*arguments); });
  add_rank(bench_app, exit_status);
}

}  // namespace tributary::cli
