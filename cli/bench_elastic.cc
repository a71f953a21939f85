// tributary bench elastic.
#include <cstdio>
#include <memory>
#include <string>

#include "bench/elastic.h"
#include "cli/commands.h"
#include "cli/stop_signals.h"

namespace tributary::cli {
namespace {

constexpr const char* kFooter = R"(
Trains the job with as many nodes as the first number says; when its share of the rounds is through, nodes join or leave while training
goes on, as the next number says. Nodes leave by SIGTERM to their worker. Real daemons and trainers on this machine.

Prints one JSON object: phases (nodes, rounds, samples_per_s, first_round_after_s: from the order to join or leave until a rank holds
the first round that the new nodes completed), test_accuracy, coverage (rounds_whole: rounds in which the ranks of one view computed, as they told, just
the samples that the round has, each once; rounds_wrong: others; rounds_seen: of which anything was told; rounds_dealt_twice: open when the nodes
changed), fixed (the same job with the first number of nodes throughout).)";

struct Arguments {
  bench::ElasticOptions options;
  std::string transport = "shm";
  bool only = false;
};

}  // namespace

void add_bench_elastic(CLI::App& bench_app, int& exit_status) {
  auto arguments = std::make_shared<Arguments>();
  bench::ElasticOptions& o = arguments->options;
  CLI::App* command = bench_app.add_subcommand("elastic", "nodes that join and leave while a job trains");
  command->footer(kFooter);
  command->add_option("job", o.job_file, "job file (TOML)")->required()->type_name("JOB.toml");
  command->add_option("--set", o.overrides, "override a key of the job file, as train.epochs=2; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--nodes", o.nodes, "of each phase")->delimiter(',')->capture_default_str();
  command->add_option("--servers", o.servers)->capture_default_str();
  command->add_option("--ranks-per-node", o.ranks_per_node)->capture_default_str();
  command->add_option("--transport", arguments->transport)
      ->check(CLI::IsMember({"tcp", "ipc", "shm"}))
      ->capture_default_str();
  command->add_option("--device", o.device, "as tributary-train has it")->capture_default_str();
  command->add_option("--us-per-sample", o.us_per_sample, "that every sample takes more, asleep: a slower computer")
      ->capture_default_str();
  command->add_option("--base-dir", o.base_dir, "where stores and logs go")->required()->type_name("DIR");
  command->add_flag("--only", arguments->only, "without the run with a fixed number of nodes");
  command->callback([arguments, &exit_status] {
    bench::ElasticOptions& options = arguments->options;
    options.transport = transport_named(arguments->transport);
    options.fixed = !arguments->only;
    StopSignals signals;
    options.interrupted = [&signals] { return signals.taken_first(); };
    options.tell = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
    const auto result = bench::run_elastic(options);
    if (result) {
      std::printf("%s\n", result->dump().c_str());
    } else {
      std::fprintf(stderr, "tributary bench elastic: %s\n", result.error().message.c_str());
    }
    exit_status = result ? 0 : 1;
  });
}

}  // namespace tributary::cli
