// tributary job: orders about a job as a whole.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tools/cli/parts/commands.h"
#include "tools/cli/parts/orders.h"
#include "tools/cli/parts/table.h"

namespace tributary::cli {
namespace {

constexpr std::chrono::milliseconds kRemovalPoll{200};

using Json = nlohmann::ordered_json;

Result<Json> order(const AdminPort& admin, const char* path, const std::string& name, Json more = Json::object()) {
  more["name"] = name;
  return ask(admin, path, more.dump(-1, ' ', false, Json::error_handler_t::replace));
}

int remove(const Cluster& cluster, const std::string& name) {
  const Result<AdminPort> admin = coordinator_admin(cluster);
  if (!admin) return complain("job", admin.error());
  const auto answer = order(*admin, "/job/remove", name);
  if (!answer) return complain("job", answer.error());
  std::printf("removed job '%s', with all that servers had of it\n", name.c_str());
  return 0;
}

// Reads the jobs of the coordinator's status.
Result<Json> jobs_of(const AdminPort& admin) {
  auto status = ask(admin, "/status", std::nullopt);
  if (!status) return status;
  if (!status->contains("coordinator")) {
    const std::string holder = status->value("coordinator_elsewhere", "");
    return fail(ErrorCode::kInvalidArgument, admin.address +
                                                 " is not the server that has the coordinator, which knows the jobs" +
                                                 (holder.empty() ? "" : ": " + holder + " has it"));
  }
  return status->at("coordinator").value("jobs", Json::array());
}

int list_jobs(const Cluster& cluster, bool json) {
  const Result<AdminPort> admin = coordinator_admin(cluster);
  if (!admin) return complain("job", admin.error());
  const auto jobs = jobs_of(*admin);
  if (!jobs) return complain("job", jobs.error());
  if (json) {
    std::printf("%s\n", jobs->dump().c_str());
    return 0;
  }
  Table table({"JOB", "PHASE", "NODES", "RANKS", "ROUND", "DURABLE", "MODE"});
  for (const Json& job : *jobs) {
    const auto number = [&](const char* key) { return job.value(key, Json()).dump(); };
    table.add({job.value("name", ""), job.value("finished", false) ? "finished" : job.value("phase", ""),
               number("joined") + " of " + number("nodes"), number("world_size"), number("max_version"),
               job.value("committed", Json()).is_null() ? "-" : number("committed"), job.value("mode", "")});
  }
  table.print();
  if (jobs->empty()) std::printf("no job is known\n");
  return 0;
}

// A job of the coordinator's status; null: it knows none of that name.
Result<Json> job_of(const AdminPort& admin, const std::string& name) {
  const auto jobs = jobs_of(admin);
  if (!jobs) return tl::unexpected(jobs.error());
  const auto job = std::ranges::find_if(*jobs, [&](const Json& one) { return one.value("name", "") == name; });
  return job == jobs->end() ? Json() : *job;
}

// The job when `over` says that it is; null: it is gone.
Result<Json> wait_for(const AdminPort& admin, const std::string& name, const std::function<bool(const Json&)>& over) {
  while (true) {
    auto job = job_of(admin, name);
    if (!job || job->is_null() || over(*job)) return job;
    std::this_thread::sleep_for(kRemovalPoll);
  }
}

// Waits until it is idle: its last state is saved then.
int stop(const Cluster& cluster, const std::string& name, bool wait) {
  const Result<AdminPort> admin = coordinator_admin(cluster);
  if (!admin) return complain("job", admin.error());
  const auto answer = order(*admin, "/job/stop", name);
  if (!answer) return complain("job", answer.error());
  if (!wait) {
    std::printf("job '%s' stops after its open round\n", name.c_str());
    return 0;
  }
  const auto job = wait_for(*admin, name, [](const Json& one) { return one.value("phase", "") == "idle"; });
  if (!job) return complain("job", job.error());
  const Json round = job->is_null() ? Json() : job->value("committed", Json());
  std::printf("stopped job '%s'; saved is round %s\n", name.c_str(), round.is_null() ? "-" : round.dump().c_str());
  return 0;
}

// Waits until its chunks are on the other servers.
int deal(const Cluster& cluster, const std::string& name, const std::vector<std::uint32_t>& without, bool wait) {
  const Result<AdminPort> admin = coordinator_admin(cluster);
  if (!admin) return complain("job", admin.error());
  const auto answer = order(*admin, "/job/deal", name, Json{{"without", without}});
  if (!answer) return complain("job", answer.error());
  const std::string servers = answer->value("servers", Json()).dump() + " servers";
  if (!wait) {
    std::printf("the chunks of job '%s' are dealt to %s after its next snapshot\n", name.c_str(), servers.c_str());
    return 0;
  }
  const auto job = wait_for(*admin, name, [said = std::string()](const Json& one) mutable {
    const std::string deal = one.value("deal", "");
    if (!deal.empty() && std::exchange(said, deal) != deal) std::fprintf(stderr, "%s\n", deal.c_str());
    return deal.empty();
  });
  if (!job) return complain("job", job.error());
  std::printf("dealt the chunks of job '%s' to %s\n", name.c_str(), servers.c_str());
  return 0;
}

}  // namespace

void add_job(CliCommand app, int& exit_status) {
  struct JobOptions {
    Cluster cluster;
    std::string name;
    bool json = false, wait = true;
    std::vector<std::uint32_t> without;
  };
  CliCommand job = app.add_subcommand("job", "orders about a job as a whole");
  job->require_subcommand(1);
  auto options = std::make_shared<JobOptions>();
  const auto add = [&](const char* name, const char* help, bool about_one) {
    CliCommand command = job->add_subcommand(name, help);
    if (about_one) command->add_option("JOB", options->name, "the job's name")->required();
    add_cluster_options(command, options->cluster);
    return command;
  };
  CliCommand all = add("list", "the jobs that the cluster knows, and how far they are", false);
  all->add_flag("--json", options->json, "print them as the coordinator's status has them");
  all->callback([options, &exit_status] { exit_status = list_jobs(options->cluster, options->json); });
  CliCommand end = add("stop", "let a job's ranks leave after their round, as Ctrl-C does; it can go on later", true);
  end->add_flag("--wait,!--no-wait", options->wait, "until its last state is saved (default)");
  end->callback([options, &exit_status] { exit_status = stop(options->cluster, options->name, options->wait); });
  CliCommand dealt = add("deal", "let a job's chunks go to the servers that are there now", true);
  dealt->add_option("--without", options->without, "but not to this server (may be repeated)");
  dealt->add_flag("--wait,!--no-wait", options->wait, "until they are there (default)");
  dealt->callback([options, &exit_status] {
    exit_status = deal(options->cluster, options->name, options->without, options->wait);
  });
  CliCommand forget = add(
      "remove", "delete a stopped job with all that any server has of that name; the next run begins at round 0", true);
  forget->callback([options, &exit_status] { exit_status = remove(options->cluster, options->name); });
}

}  // namespace tributary::cli
