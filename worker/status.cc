#include "worker/status.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "server/coordinator/show/coordinator_status.h"

namespace tributary {
namespace {

using Json = nlohmann::ordered_json;

// "host", or the devices in the order of their NCCL ranks.
Json reduced_on(const NodeJob& job) {
  const DeviceLender* lender = job.spec().lender();
  if (!lender) return "host";
  Json devices = Json::array();
  for (std::uint32_t position = 0; position < lender->width(); ++position) {
    devices.push_back(lender->describe(position));
  }
  return devices;
}

Json devices_json(const NodeDevices& devices) {
  Json list = Json::array();
  if (devices.api()) {
    for (const DeviceInfo& info : devices.api()->devices()) {
      list.push_back(
          {{"name", info.name}, {"uuid", info.uuid}, {"memory_bytes", info.memory}, {"numa_node", info.numa_node}});
    }
  }
  Json out = {{"mode", word(devices.mode())}, {"devices", std::move(list)}};
  if (devices.api()) out["mps"] = !devices.mps().empty();
  if (!devices.api()) out["why_no_devices"] = devices.why_none();
  if (const std::string lost = devices.lost(); !lost.empty()) out["lost"] = lost;
  if (!devices.collectives().empty()) out["nccl"] = devices.collectives();
  out["nccl_settings"] = devices.settings();
  return out;
}

std::uint32_t redo_rounds_of(const NodeJob& job) {
  return job.spec().redo ? job.spec().redo->rounds() : 0;
}

Json job_json(const NodeJobSummary& summary) {
  Json ranks = Json::array();
  for (const auto& rank : summary.attached) {
    ranks.push_back({{"rank", rank.rank}, {"local_rank", rank.local_rank}, {"pid", rank.pid}});
  }
  Json out = {{"name", summary.name},
              {"phase", summary.phase},
              {"node_rank", summary.node},
              {"local_world_size", summary.local_world_size},
              {"world_size", summary.world_size},
              {"ranks_attached", std::move(ranks)}};
  if (!summary.last_refusal.empty()) out["waiting_because"] = summary.last_refusal;
  if (!summary.job) return out;
  const NodeJob& job = *summary.job;
  out["mode"] = word(job.plan().config.mode);
  out["id"] = std::to_string(job.view().job.value);
  out["view"] = job.view().view.value;
  out["parameters"] = job.layout().parameters();
  out["chunks"] = job.layout().chunks();
  out["chunk_bytes"] = job.layout().chunk_elements() * sizeof(float);
  out["min_version"] = job.min_version().value;
  out["max_version"] = job.max_version().value;
  counts_to_json(out, totals_of(job));
  const NodePace pace = job.pace();
  out["pace"] = {{"rounds", pace.rounds},
                 {"compute_seconds", static_cast<double>(pace.compute_ns) / 1e9},
                 {"reduce_seconds", static_cast<double>(pace.reduce_ns) / 1e9},
                 {"network_seconds", static_cast<double>(pace.network_ns) / 1e9}};
  if (job.plan().has_clocks()) {
    const auto get = [](const std::atomic<std::uint64_t>& total) { return total.load(std::memory_order_relaxed); };
    const NodeHeader& node = job.header();
    const std::uint64_t pulls = get(node.pulls);
    out["staleness"] = {
        {"pulls", pulls},
        {"mean", pulls == 0 ? 0.0 : static_cast<double>(get(node.staleness_sum)) / static_cast<double>(pulls)},
        {"max", get(node.staleness_max)}};
  }
  // The rounds kept for lost servers, and pushed again for them.
  if (!job.plan().on_servers()) {
    out.erase("redo");
  } else {
    out["redo"]["rounds"] = redo_rounds_of(job);
  }
  out["memory_bytes"] = job.budget_bytes();
  out["reduced_on"] = reduced_on(job);
  if (!job.plan().on_servers()) {
    const auto& devices = job.spec().allreduce_devices;
    out["transport"] = !devices ? "gloo" : devices->plan().collectives() ? "nccl" : "none";  // none: a rank alone
    if (!job.spec().why_host.empty()) out["why_host"] = job.spec().why_host;
  }
  if (job.spec().devices) {
    const DeviceTimes times = job.spec().devices->times();
    out["device_times"] = {{"groups_reduced", times.groups_reduced},
                           {"reduce_seconds", static_cast<double>(times.reduce_ns) / 1e9},
                           {"groups_delivered", times.groups_delivered},
                           {"deliver_seconds", static_cast<double>(times.deliver_ns) / 1e9}};
  }
  return out;
}

// A sample per running job.
std::function<std::vector<Metrics::Sample>()> per_job(const AttachServer* attach,
                                                      std::function<double(const NodeJob&)> value) {
  return [attach, value] {
    std::vector<Metrics::Sample> samples;
    for (const NodeJobSummary& summary : attach->summaries()) {
      if (summary.job) samples.push_back({{{"job", summary.name}}, value(*summary.job)});
    }
    return samples;
  };
}

// Returns the times of the phases, by running job, over all its lanes.
std::vector<Metrics::Times> phase_times(const AttachServer& attach) {
  std::vector<Metrics::Times> all;
  for (const NodeJobSummary& summary : attach.summaries()) {
    if (!summary.job) continue;
    const auto add = [&](const char* phase, Histogram PhaseTimes::*of) {
      Histogram::Counts counts;
      for (std::size_t lane = 0; lane < summary.job->lanes(); ++lane)
        counts.add((summary.job->lane_stats(lane).times.*of).counts());
      all.push_back({{{"job", summary.name}, {"phase", phase}}, counts});
    };
    add("all", &PhaseTimes::round);
    add("compute", &PhaseTimes::compute);
    add("network", &PhaseTimes::network);
  }
  return all;
}

}  // namespace

JobTotals totals_of(const NodeJob& job) {
  JobTotals totals;
  for (std::size_t lane = 0; lane < job.lanes(); ++lane) add_counts(totals, job.lane_stats(lane));
  return totals;
}

std::string status_json(const WorkerParts& parts) {
  Json jobs = Json::array();
  for (const NodeJobSummary& summary : parts.attach->summaries()) jobs.push_back(job_json(summary));
  Json coordinator = {{"address", parts.control->coordinator_address()}, {"connected", parts.control->connected()}};
  if (parts.coordinator) coordinator.update(coordinator_json(*parts.coordinator));
  const NodeTraffic traffic = parts.attach->traffic();
  const Json status = {{"kind", "worker"},
                       {"name", parts.config->name},
                       {"pid", ::getpid()},
                       {"insecure", parts.config->security.insecure},
                       {"uptime_s", static_cast<double>(steady_ms() - parts.started_ms) / 1e3},
                       {"socket", parts.config->socket},
                       {"coordinator", std::move(coordinator)},
                       {"lanes", parts.lanes.size()},
                       {"node_reduction", devices_json(*parts.devices)},
                       {"memory_bytes", parts.attach->memory_used()},
                       {"max_memory_bytes", parts.max_memory},
                       {"refused", parts.attach->refused()},
                       {"bytes_pushed", traffic.pushed},
                       {"bytes_pulled", traffic.pulled},
                       {"jobs", std::move(jobs)}};
  return status.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void register_metrics(Metrics& metrics, const WorkerParts& parts) {
  const AttachServer* attach = parts.attach;
  const WorkerControl* control = parts.control;
  metrics.gauge("tributary_worker_memory_bytes", "Shared memory and reduction frames of all jobs.", {},
                [attach] { return static_cast<double>(attach->memory_used()); });
  metrics.gauge("tributary_worker_coordinator_connected", "1 if the coordinator was heard within the peer timeout.", {},
                [control] { return control->connected() ? 1.0 : 0.0; });
  metrics.counter("tributary_worker_refused_total", "Trainers and connections that were refused.", {},
                  [attach] { return static_cast<double>(attach->refused()); });
  metrics.gauge("tributary_worker_jobs", "Jobs that trainers are attached to.", {},
                [attach] { return static_cast<double>(attach->summaries().size()); });
  metrics.gauge("tributary_worker_link_stated_bytes_per_second",
                "What the interface towards the coordinator can do, as its driver says; 0: it does not.", {},
                [stated = parts.link_bytes_per_s] { return stated; });
  metrics.gauges("tributary_worker_job_version", "Lowest version among the job's chunks on this node.",
                 per_job(attach, [](const NodeJob& job) { return static_cast<double>(job.min_version().value); }));
  const JobTotals none;
  none.visit(
      [&, line = std::size_t{0}](const CountField& field, const auto&) mutable {
        const auto read = per_job(
            attach, [line = line++, field](const NodeJob& job) { return field.shown(count_at(totals_of(job), line)); });
        const std::string name = field.metric_name("tributary_worker_");
        field.grows() ? metrics.counters(name, field.help, read) : metrics.gauges(name, field.help, read);
      },
      none);
  metrics.counters(
      "tributary_worker_compute_seconds_total",
      "Time from the last answer of a round to the last gradient of the next.",
      per_job(attach, [](const NodeJob& job) { return static_cast<double>(job.pace().compute_ns) / 1e9; }));
  metrics.counters(
      "tributary_worker_network_seconds_total", "Time from the last gradient of a round until servers have all of it.",
      per_job(attach, [](const NodeJob& job) { return static_cast<double>(job.pace().network_ns) / 1e9; }));
  metrics.histograms(
      "tributary_worker_round_seconds",
      "How long a round takes as each lane sees it: in all, and of that what computing and the network take.",
      [attach] { return phase_times(*attach); });
  metrics.counters("tributary_worker_rounds_total", "Rounds that the times of this node are about.",
                   per_job(attach, [](const NodeJob& job) { return static_cast<double>(job.pace().rounds); }));
  metrics.gauges("tributary_worker_redo_rounds", "Rounds whose pushes are kept for lost servers; 0: none are.",
                 per_job(attach, [](const NodeJob& job) { return static_cast<double>(redo_rounds_of(job)); }));
  if (parts.coordinator) register_metrics(metrics, *parts.coordinator);
}

}  // namespace tributary
