#include "tools/cli/cluster_checks.h"

#include <algorithm>
#include <set>

#include "common/base/printed.h"
#include "common/base/quantity.h"
#include "common/doctor/check_list.h"
#include "common/doctor/settings.h"
#include "common/math/median.h"

namespace tributary::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kAlike = 0.5;  // of the middle one of all rates; a slower link is named

CheckLevel level_of(const std::string& name) {
  for (const CheckLevel level : {CheckLevel::kOk, CheckLevel::kNote}) {
    if (name == level_name(level)) return level;
  }
  return CheckLevel::kProblem;
}

DaemonDiagnosis daemon_of(const Json& json) {
  DaemonDiagnosis daemon{.name = json.at("name"),
                         .server = json.at("kind") == "server",
                         .silent_because = json.at("silent_because"),
                         .settings = {},
                         .checks = {},
                         .rates = {}};
  for (const Json& setting : json.at("settings")) daemon.settings.push_back({setting.at("key"), setting.at("value")});
  for (const Json& check : json.at("checks")) {
    daemon.checks.push_back(
        {check.at("section"), check.at("name"), level_of(check.at("level")), check.at("found"), check.at("advice")});
  }
  for (const Json& rate : json.at("rates")) {
    daemon.rates.push_back({ShardIndex(rate.at("server").get<std::uint16_t>()), rate.at("local"),
                            rate.at("bytes_per_s"), rate.at("round_trip_s")});
  }
  return daemon;
}

void who_is_there(const ClusterDiagnosis& diagnosis, CheckList& out) {
  std::size_t servers = 0;
  std::vector<std::string> missing;
  for (const DaemonDiagnosis& daemon : diagnosis.daemons) {
    servers += daemon.server ? 1 : 0;
    if (!daemon.silent_because.empty())
      out.problem(daemon.name, daemon.silent_because, "look at its log, and whether it runs");
  }
  for (std::uint32_t index = 0; index < diagnosis.servers; ++index) {
    const std::string name = "server " + std::to_string(index);
    if (std::ranges::find(diagnosis.daemons, name, &DaemonDiagnosis::name) == diagnosis.daemons.end())
      missing.push_back(name);
  }
  const std::string found = std::to_string(servers) + " of " + counted(diagnosis.servers, "server") + ", " +
                            counted(diagnosis.daemons.size() - servers, "worker");
  if (missing.empty()) return out.ok("daemons", found);
  out.problem("daemons", found + "; not there: " + listed(missing),
              "start them, or run `tributary doctor --config` on their machines: it says why they do not reach the "
              "coordinator");
}

void clocks(const Json& coordinator, CheckList& out) {
  bool all = true;
  for (const Json& peer : coordinator.value("peers", Json::array())) {
    const std::string clock = peer.value("clock", std::string());
    if (clock.empty()) continue;
    all = false;
    const bool server = peer.value("kind", std::string()) == "server";
    out.problem("clock of " + std::string(server ? "" : "worker ") + peer.value("name", std::string()), clock,
                "chronyc makestep, or timedatectl set-ntp true, on its machine");
  }
  if (all) out.ok("clocks", "as the coordinator's, all of them");
}

// As the page has it.
void jobs(const Json& coordinator, CheckList& out) {
  for (const Json& job : coordinator.value("jobs", Json::array())) {
    const auto text = [&](const char* key) { return job.value(key, std::string()); };
    const std::string name = "job " + text("name"), phase = text("phase");
    if (!text("why_no_round").empty()) {
      out.problem(name, "no round is getting done: " + text("why_no_round"),
                  "`tributary status` shows the whole of it");
    } else if (!text("waiting_for").empty()) {
      out.problem(name, "it waits for " + text("waiting_for"), "start what is missing, or look at its log");
    } else if (!text("not_saved").empty()) {
      out.problem(name, "not saved: " + text("not_saved"), "look at the servers' disks and logs");
    } else if (!text("not_copied").empty()) {
      out.problem(name, "a snapshot has fewer copies than it is to have: " + text("not_copied"),
                  "look at the servers' disks and logs, and whether they reach each other's ports");
    } else if (!text("no_checkpoint").empty()) {
      out.problem(name, "no checkpoint: " + text("no_checkpoint"),
                  "look at the disk of [checkpoint] dir and at the logs");
    } else {
      out.ok(name, phase);
    }
  }
}

// A link is slow compared with the others: no configuration says how fast links should be.
void rates(const ClusterDiagnosis& diagnosis, CheckList& out) {
  std::vector<double> all;
  for (const DaemonDiagnosis& daemon : diagnosis.daemons) {
    for (const LinkRate& rate : daemon.rates) {
      if (!rate.local) all.push_back(rate.bytes_per_s);
    }
  }
  if (all.empty()) return;
  const double middle = median(all);
  std::size_t slow = 0;
  for (const DaemonDiagnosis& daemon : diagnosis.daemons) {
    for (const LinkRate& rate : daemon.rates) {
      if (rate.local || rate.bytes_per_s >= kAlike * middle) continue;
      ++slow;
      out.problem(daemon.name + " to server " + std::to_string(rate.shard.value),
                  bandwidth_in_words(rate.bytes_per_s) + " each way; the middle one of all links has " +
                      bandwidth_in_words(middle),
                  "look at the cable, the switch's port and the interface of the machine that all its slow links have "
                  "in common; if it is to stay, say so: [server] or [worker] bandwidth");
    }
  }
  if (slow == 0) {
    out.ok("links", std::to_string(all.size()) + (all.size() == 1 ? " link" : " links, alike") + ": " +
                        bandwidth_in_words(middle) + " each way");
  }
}

}  // namespace

Result<ClusterDiagnosis> diagnosis_of(const Json& json) {
  try {
    ClusterDiagnosis diagnosis;
    diagnosis.servers = json.at("servers");
    for (const Json& daemon : json.at("daemons")) diagnosis.daemons.push_back(daemon_of(daemon));
    return diagnosis;
  } catch (const Json::exception& e) {
    return fail(ErrorCode::kMalformed, std::string("server 0 answers with no diagnosis of ours: ") + e.what());
  }
}

std::vector<Check> checks_of_cluster(const ClusterDiagnosis& diagnosis, const Json& status) {
  CheckList out;
  out.section("cluster");
  const Json coordinator = status.value("coordinator", Json::object());
  who_is_there(diagnosis, out);
  clocks(coordinator, out);
  jobs(coordinator, out);
  rates(diagnosis, out);
  std::vector<Check> checks = out.take();
  for (const bool server : {true, false}) {
    std::vector<DaemonSettings> settings;
    for (const DaemonDiagnosis& daemon : diagnosis.daemons) {
      if (daemon.server == server && !daemon.settings.empty()) settings.push_back({daemon.name, daemon.settings});
    }
    append(checks, differences(settings));
  }
  return checks;
}

}  // namespace tributary::cli
