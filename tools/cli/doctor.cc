// tributary doctor: is this machine fit for a run; would a daemon with this configuration work here; what is wrong with
// a cluster (docs/doctor.md)?
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/printed.h"
#include "common/config/config_toml.h"
#include "common/doctor/check_list.h"
#include "common/doctor/daemon_checks.h"
#include "common/doctor/gpu_checks.h"
#include "common/doctor/machine_checks.h"
#include "common/security/credentials.h"
#include "common/system/host_identity.h"
#include "tools/cli/cluster_checks.h"
#include "tools/cli/cluster_question.h"
#include "tools/cli/install_checks.h"
#include "tools/cli/parts/commands.h"
#include "tools/cli/parts/orders.h"

namespace tributary::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kDiagnosisPoll{250};
constexpr std::uint64_t kSayMs = 10'000;  // between two lines with the awaited daemons

constexpr const char* kDoctorFooter = R"(
Each line is ok, a note (it works, but you may want to know), or a problem; below notes and problems stands what to do. Nothing is changed.

  tributary doctor                            this machine, as a run would use it
  tributary doctor --config worker.toml       and a daemon with this configuration: its keys, addresses, folders, and whether it reaches
                                              the coordinator and the servers' lanes. On the daemon's machine, as its user
  tributary doctor --all --base-dir runs/demo     a cluster: every daemon looks at itself, and answers over the coordinator (docs/doctor.md)
    --measure       and workers measure their links to servers, one after the other; servers the disks of their stores
    --path PATH     and every daemon looks whether PATH is there; may be repeated

Exit status: 0 no problem, 1 there is one, 2 it cannot be asked.)";

struct DoctorOptions {
  Cluster cluster;
  std::string config;
  bool all = false, measure = false, json = false;
  std::vector<std::string> paths;
};

// Environment variables and files' names may hold any bytes.
void print(const Json& json) {
  std::printf("%s\n", json.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

Json summary(const std::vector<Check>& checks) {
  return {{"ok", !has_problem(checks)},
          {"problems", count_of(checks, CheckLevel::kProblem)},
          {"notes", count_of(checks, CheckLevel::kNote)},
          {"checks", checks_json(checks)}};
}

bool has_coordinator(const ServerConfig& config) {
  return may_coordinate(config);
}
bool has_coordinator(const WorkerConfig& config) {
  return config.serve_coordinator;
}

// Appends the checks that a daemon with this configuration would make.
template <class Config>
void look_at_daemon(const Config& config, Around around, std::vector<Check>& checks) {
  const auto credentials = credentials_of(config);
  if (!has_coordinator(config) && credentials) {
    Asked asked = ask_cluster(config.coordinators, *credentials);
    append(checks, asked.checks);
    if (asked.cluster) append(checks, checks_of_coordinator(*asked.cluster, wall_ms()));
    around.cluster = std::move(asked.cluster);
  }
  around.host = host_identity(config.host);
  append(checks, checks_of(config, around));
}

// If the configuration cannot be read, that is the last check.
void look_at_config(const std::string& path, const Around& around, std::vector<Check>& checks) {
  const auto config = load_daemon_config(path);
  if (config) return std::visit([&](const auto& daemons) { look_at_daemon(daemons, around, checks); }, *config);
  CheckList file;
  file.section("configuration");
  file.problem("file", config.error().message, "see configs/ and `--check-config` of the daemon");
  append(checks, file.take());
}

int look_here(const DoctorOptions& options) {
  const MachineFacts machine = gather_machine_facts();
  const GpuFacts gpus = gather_gpu_facts(GpuLook::kThorough);
  std::vector<Check> checks = judge(gather_install_facts());
  append(checks, judge(machine));
  append(checks, judge(gpus, machine.interfaces));
  const std::atomic<bool> never{false};
  if (options.config.empty()) {
    append(checks, checks_of_paths({never, {}, {}, options.paths, {}}));
  } else {
    look_at_config(options.config, {never, machine.interfaces, {}, options.paths, {}}, checks);
  }
  if (options.json) {
    Json json = summary(checks);
    json.update(gpus_json(gpus));
    json["interfaces"] = interfaces_json(machine.interfaces);
    print(json);
  } else {
    std::printf("%s\n%s\n", checks_text(checks).c_str(), counts_text(checks).c_str());
  }
  return has_problem(checks) ? 1 : 0;
}

// With what each of them has said, which is asked for one by one: there can be much.
Result<Json> with_daemons(const AdminPort& admin, const std::string& path, Json diagnosis) {
  Json& daemons = diagnosis["daemons"];
  for (std::size_t i = 0; i < daemons.size(); ++i) {
    auto said = ask(admin, path + "/" + std::to_string(i), std::nullopt);
    if (!said) return said;
    daemons[i] = std::move(*said);
  }
  return diagnosis;
}

// Always ends: the coordinator gives up daemons that do not answer.
Result<Json> diagnose(const AdminPort& admin, const DoctorOptions& options) {
  const Json order = {{"measure", options.measure}, {"paths", options.paths}};
  const auto accepted = ask(admin, "/doctor/order", order.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (!accepted) return accepted;
  const std::string path = "/doctor/" + accepted->value("id", Json(0)).dump();
  for (std::uint64_t said = steady_ms();; std::this_thread::sleep_for(kDiagnosisPoll)) {
    auto diagnosis = ask(admin, path, std::nullopt);
    if (!diagnosis) return diagnosis;
    if (diagnosis->value("over", false)) return with_daemons(admin, path, std::move(*diagnosis));
    if (steady_ms() < said + kSayMs) continue;
    said = steady_ms();
    for (const Json& daemon : diagnosis->value("daemons", Json::array())) {
      const bool waited = daemon.value("asked", false) && !daemon.value("said", false) &&
                          daemon.value("silent_because", std::string()).empty();
      if (waited) std::fprintf(stderr, "waiting for %s\n", daemon.value("name", std::string()).c_str());
    }
  }
}

void print_cluster(const ClusterDiagnosis& diagnosis, const std::vector<Check>& cluster) {
  std::fputs(checks_text(cluster).c_str(), stdout);
  std::size_t problems = count_of(cluster, CheckLevel::kProblem), notes = count_of(cluster, CheckLevel::kNote);
  for (const DaemonDiagnosis& daemon : diagnosis.daemons) {
    if (!daemon.silent_because.empty()) continue;
    std::printf("\n%s: %s, %zu checks\n", daemon.name.c_str(), counts_text(daemon.checks).c_str(),
                daemon.checks.size());
    std::fputs(checks_text(daemon.checks, true).c_str(), stdout);
    problems += count_of(daemon.checks, CheckLevel::kProblem);
    notes += count_of(daemon.checks, CheckLevel::kNote);
  }
  std::printf("\n%s, %s\n", counted(problems, "problem").c_str(), counted(notes, "note").c_str());
}

Result<int> look_at_cluster(const DoctorOptions& options) {
  const auto admin = coordinator_admin(options.cluster);
  if (!admin) return tl::unexpected(admin.error());
  const auto json = diagnose(*admin, options);
  if (!json) return tl::unexpected(json.error());
  const auto diagnosis = diagnosis_of(*json);
  if (!diagnosis) return tl::unexpected(diagnosis.error());
  const auto status = ask(*admin, "/status", std::nullopt);
  if (!status) return tl::unexpected(status.error());
  const std::vector<Check> cluster = checks_of_cluster(*diagnosis, *status);
  bool problem = has_problem(cluster);
  for (const DaemonDiagnosis& daemon : diagnosis->daemons) problem |= has_problem(daemon.checks);
  if (options.json) {
    Json all = summary(cluster);
    all["ok"] = !problem;
    all["daemons"] = json->at("daemons");
    print(all);
  } else {
    print_cluster(*diagnosis, cluster);
  }
  return problem ? 1 : 0;
}

}  // namespace

void add_doctor(CliCommand app, int& exit_status) {
  const auto options = std::make_shared<DoctorOptions>();
  CliCommand doctor = app.add_subcommand("doctor", "check this machine, a daemon's configuration, or a whole cluster");
  doctor->footer(kDoctorFooter);
  doctor->add_option("--config", options->config, "a daemon's configuration: would it work here?")->type_name("FILE");
  doctor->add_flag("--all", options->all, "all daemons of a cluster");
  doctor->add_flag("--measure", options->measure, "with --all: links to servers and stores' disks, too");
  doctor->add_option("--path", options->paths, "is it there on every machine?")->type_name("PATH");
  doctor->add_flag("--json", options->json, "print one JSON object");
  add_cluster_options(doctor, options->cluster);
  doctor->callback([options, &exit_status] {
    const bool cluster =
        options->all || options->measure || !options->cluster.admin.empty() || !options->cluster.base_dir.empty();
    if (cluster && !options->config.empty()) {
      std::fprintf(stderr, "tributary doctor: --config looks at this machine, --all at a cluster; give one of them\n");
      exit_status = 2;
      return;
    }
    const Result<int> looked = cluster ? look_at_cluster(*options) : Result<int>(look_here(*options));
    if (!looked) std::fprintf(stderr, "tributary doctor: %s\n", looked.error().message.c_str());
    exit_status = looked ? *looked : 2;
  });
}

}  // namespace tributary::cli
