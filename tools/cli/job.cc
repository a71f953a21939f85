// tributary job: orders about a job as a whole.
#include <cstdio>
#include <memory>
#include <string>

#include "tools/cli/commands.h"
#include "tools/cli/orders.h"

namespace tributary::cli {
namespace {

int complain(const Error& error) {
  std::fprintf(stderr, "tributary job: %s\n", error.message.c_str());
  return error.code == ErrorCode::kInvalidArgument ? 2 : 1;
}

int remove(const Cluster& cluster, const std::string& name) {
  const Result<AdminPort> admin = coordinator_admin(cluster);
  if (!admin) return complain(admin.error());
  const nlohmann::ordered_json order = {{"name", name}};
  const auto answer =
      ask(*admin, "/job/remove", order.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  if (!answer) return complain(answer.error());
  std::printf("removed job '%s', with all that servers had of it\n", name.c_str());
  return 0;
}

}  // namespace

void add_job(CliCommand app, int& exit_status) {
  struct RemoveOptions {
    Cluster cluster;
    std::string name;
  };
  CliCommand job = app.add_subcommand("job", "orders about a job as a whole");
  job->require_subcommand(1);
  auto options = std::make_shared<RemoveOptions>();
  CliCommand command = job->add_subcommand(
      "remove", "delete a stopped job with all that any server has of that name; the next run begins at round 0");
  command->add_option("JOB", options->name, "the job's name")->required();
  add_cluster_options(*command, options->cluster);
  command->callback([options, &exit_status] { exit_status = remove(options->cluster, options->name); });
}

}  // namespace tributary::cli
