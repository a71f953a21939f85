// tributary chaos: kill -9 while a job trains.
#include <cstdio>
#include <memory>

#include "tools/cli/parts/commands.h"
#include "tools/cli/parts/stop_signals.h"
#include "tools/cli/run/chaos_run.h"

namespace tributary::cli {
namespace {

constexpr const char* kChaosFooter = R"(
Trains the job on a cluster on this machine and kills servers and workers with SIGKILL at random moments, one or several at once, server 0 among them;
each is started again at once. Then the job is stopped cleanly, and a calm run of as many rounds must end in the same parameters, to the bit.
With --lose-disks some strikes kill one server and delete its store, once another server has a copy of all that is on it (docs/copies.md).
The job's own length does not matter. The seed decides who is killed and when; what they were doing at that moment it cannot decide.

With --lose-coordinators two servers may have the coordinator (docs/failover.md), some strikes kill the one that has it and delete its store,
and the server comes back when the other one has taken its place.

--json: {kills, lost_disks, lost_coordinators, strikes [{at_round, killed[], lost_disk, lost_coordinator, restarted_s, recovered_s, recomputed}], recovered_s {median, max}, rounds, digest, calm_digest, same}
  at_round: the newest complete round at the kill
  restarted_s: from the kill until all processes were ready again
  recovered_s: from then until a rank that had attached anew held a round completed since, and told it with its next gradient
  recomputed: rounds that had been complete and were computed again (the open one does not count)
Exit status: 0 same bits; 1 other bits, or it did not go on; 2 it cannot be begun.)";

int chaos(ChaosOptions& options, bool json) {
  StopSignals signals;
  options.interrupted = [&] { return signals.taken_first(); };
  options.tell = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  if (options.cluster.base_dir.empty()) options.cluster.base_dir = "runs/chaos";
  const auto result = run_chaos(options);
  if (!result) {
    std::fprintf(stderr, "tributary chaos: %s\n", result.error().message.c_str());
    return result.error().code == ErrorCode::kInvalidArgument || result.error().code == ErrorCode::kConfig ? 2 : 1;
  }
  const bool same = result->at("same").get<bool>();
  if (json) {
    std::printf("%s\n", result->dump().c_str());
  } else {
    std::printf("%u kills in %llu rounds; back to a complete round in %.2f s (median), %.2f s (longest)\n%s\n",
                result->at("kills").get<unsigned>(), result->at("rounds").get<unsigned long long>(),
                result->at("recovered_s").at("median").get<double>(), result->at("recovered_s").at("max").get<double>(),
                same ? ("the same bits as a calm run: " + result->at("digest").get<std::string>()).c_str()
                     : ("OTHER bits than a calm run: " + result->at("digest").get<std::string>() + " instead of " +
                        result->at("calm_digest").get<std::string>())
                           .c_str());
  }
  return same ? 0 : 1;
}

}  // namespace

void add_chaos(CliCommand app, int& exit_status) {
  struct Arguments {
    ChaosOptions options;
    std::string transport = "shm";
    bool json = false;
  };
  auto a = std::make_shared<Arguments>();
  ChaosOptions& o = a->options;
  o.cluster.servers = o.cluster.nodes = o.cluster.ranks_per_node = 2;
  CliCommand command = app.add_subcommand("chaos", "kill daemons while a job trains; the result must not change");
  command->footer(kChaosFooter);
  command->add_option("job", o.job_file, "the job's TOML file")->required()->type_name("JOB.toml");
  command->add_option("--kills", o.kills, "processes to kill, at least")->capture_default_str();
  command->add_option("--seed", o.seed, "of who and when")->capture_default_str();
  command->add_option("--pause", o.calm_seconds, "mean time from a recovery to the next kill, seconds")
      ->check(positive())
      ->capture_default_str();
  command->add_option("--lose-disks", o.lose_disks, "strikes, among those, that delete a server's store")
      ->capture_default_str();
  command
      ->add_option("--lose-coordinators", o.lose_coordinators,
                   "strikes, among those, that lose the server with the coordinator for good, with its store")
      ->capture_default_str();
  command->add_option("--servers", o.cluster.servers, "server daemons")->capture_default_str();
  command->add_option("--nodes", o.cluster.nodes, "worker daemons")->capture_default_str();
  command->add_option("--ranks-per-node", o.cluster.ranks_per_node, "trainers of each worker")->capture_default_str();
  command->add_option("--transport", a->transport, "between workers and servers: shm, tcp, ipc")
      ->check(one_of({"shm", "tcp", "ipc"}))
      ->capture_default_str();
  command->add_option("--base-dir", o.cluster.base_dir, "folder for all files of both runs (default: runs/chaos)")
      ->type_name("FOLDER");
  command->add_option("--set", o.overrides, "override a key of the job file; may be repeated")
      ->type_name("KEY=VALUE")
      ->once_each();
  command->add_flag("--json", a->json, "print the result as one JSON object");
  command->callback([a, &exit_status] {
    a->options.cluster.transport = transport_named(a->transport);
    exit_status = chaos(a->options, a->json);
  });
}

}  // namespace tributary::cli
