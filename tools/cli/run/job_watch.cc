#include "tools/cli/run/job_watch.h"

#include <algorithm>

#include "common/config/json_text.h"
#include "common/daemon/http_client.h"

namespace tributary::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kWatchTimeout{1'000};
constexpr std::chrono::seconds kPause{1};

Json status_of(Daemon& daemon) {
  if (!daemon.process.running()) return {};
  const auto text = http_get(daemon.admin, "/status", kWatchTimeout);
  const Json status = text ? ordered_json_in(*text) : Json();
  return status.is_object() ? status : Json();
}

}  // namespace

Json cluster_jobs(LocalCluster& cluster) {
  const Json status = status_of(cluster.coordinator_daemon());
  if (!status.is_object() || !status.contains("coordinator")) return Json::array();
  return status.at("coordinator").value("jobs", Json::array());
}

JobWatch::JobWatch(LocalCluster& cluster) : cluster_(cluster) {
  for (const Json& job : cluster_jobs(cluster_))
    before_[job.value("id", "")] = {job.value("view", 0ull), job.value("max_version", 0ull)};
  asked_ = Clock::now();
}

void JobWatch::ask(bool now) {
  if (!now && Clock::now() - asked_ < kPause) return;
  std::uint64_t rounds = 0;
  for (const Json& job : cluster_jobs(cluster_)) {
    const auto found = before_.find(job.value("id", ""));
    const Known before = found == before_.end() ? Known() : found->second;
    const auto version = job.value("max_version", std::uint64_t{0});
    rounds += version - std::min(version, before.version);
    if (job.value("view", std::uint64_t{0}) > before.view) job_ = job;
  }
  rounds_ = std::max(rounds_, rounds);
  asked_ = Clock::now();
}

bool somebody_waits(LocalCluster& cluster) {
  return std::ranges::any_of(cluster.workers(), [](Daemon& worker) {
    const Json status = status_of(worker);
    if (!status.is_object()) return false;
    const Json jobs = status.value("jobs", Json::array());
    return std::ranges::any_of(jobs, [](const Json& job) {
      const std::string phase = job.value("phase", "");
      return phase == "gathering" || phase == "joining";
    });
  });
}

Json node_traffic(LocalCluster& cluster) {
  Json nodes = Json::array();
  for (Daemon& worker : cluster.workers()) {
    const Json status = status_of(worker);
    const auto bytes = [&](const char* key) { return status.is_object() ? status.value(key, Json()) : Json(); };
    nodes.push_back({{"bytes_pushed", bytes("bytes_pushed")}, {"bytes_pulled", bytes("bytes_pulled")}});
  }
  return nodes;
}

}  // namespace tributary::cli
