#include "server/status.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "server/coordinator/show/coordinator_status.h"
#include "server/memory_formula.h"

namespace tributary {
namespace {

using Json = nlohmann::ordered_json;

Json lane_json(const Lane& lane) {
  Json json = {{"lane", lane.index().value}, {"endpoint", lane.endpoint()}};
  counts_to_json(json, lane.counters());
  return json;
}

Json job_status_json(const ServerJobStatus& job) {
  Json snapshot = {{"bytes", job.snapshot_bytes}, {"error", job.snapshot_error}};
  snapshot["pending"] = job.snapshot_pending ? Json(job.snapshot_pending->value) : Json(nullptr);
  snapshot["durable"] = job.snapshot_durable ? Json(job.snapshot_durable->value) : Json(nullptr);
  Json clocks = Json::array();
  for (const auto& [last, furthest] : job.clocks()) clocks.push_back({{"min", last.value}, {"max", furthest.value}});
  Json gate = nullptr;
  if (job.view->plan->has_gate()) {
    gate = {{"round", job.gate_round.value},
            {"gradient_norm", job.decision.norm},
            {"loss_scale", job.decision.known() ? Json(job.decision.loss_scale) : Json(nullptr)},
            {"rounds_clipped", job.rounds_clipped},
            {"rounds_skipped", job.rounds_skipped}};
  }
  return {{"name", job.view->name()},
          {"id", std::to_string(job.view->job.value)},
          {"view", job.view->view.value},
          {"phase", job.phase},
          {"nodes", job.view->nodes},
          {"chunks", job.chunks},
          {"parameters", job.elements},
          {"optimizer", job.view->plan->config.optimizer.name},
          {"min_version", job.min_version().value},
          {"max_version", job.max_version().value},
          {"clocks", std::move(clocks)},
          {"withheld_answers", job.withheld()},
          {"resumed_from", job.resumed ? Json(job.view->start.value) : Json(nullptr)},
          {"gate", std::move(gate)},
          {"snapshot", std::move(snapshot)},
          {"memory_formula_bytes", job.memory_terms().total()},
          {"pool_bytes", job.pool_bytes()}};
}

MemoryTerms total_memory(const ServerParts& parts, const ControlStatus& status) {
  MemoryTerms total;
  total.process = process_formula(parts.lanes.size());
  for (const ServerJobStatus& job : status.jobs) total += job.memory_terms();
  return total;
}

std::uint64_t over_lanes(const std::vector<const Lane*>& lanes, LaneCounter LaneCounters::*gauge) {
  std::uint64_t sum = 0;
  for (const Lane* lane : lanes) sum += (lane->counters().*gauge).value();
  return sum;
}

// Anonymous memory, and the shared memory that this process made; without memory that workers share with it.
std::uint64_t owned_bytes(const std::vector<const Lane*>& lanes) {
  return anonymous_bytes() + over_lanes(lanes, &LaneCounters::pool_bytes);
}

// The most of that so far: of shared memory, which is nearly all, each lane's most.
std::uint64_t max_owned_bytes(const std::vector<const Lane*>& lanes) {
  return anonymous_bytes() + over_lanes(lanes, &LaneCounters::max_pool_bytes);
}

}  // namespace

std::string status_json(const ServerParts& parts) {
  const ControlStatus control = parts.control->status();
  Json lanes = Json::array();
  for (const Lane* lane : parts.lanes) lanes.push_back(lane_json(*lane));
  Json jobs = Json::array();
  for (const ServerJobStatus& job : control.jobs) jobs.push_back(job_status_json(job));
  Json not_saved = Json::array();
  for (const NotSaved& lost : control.not_saved) {
    not_saved.push_back({{"job", lost.job}, {"round", lost.round.value}, {"reason", lost.reason}});
  }
  const MemoryTerms memory = total_memory(parts, control);
  Json status = {{"kind", "server"},
                 {"index", parts.config->index},
                 {"servers", parts.config->servers},
                 {"pid", ::getpid()},
                 {"insecure", parts.config->security.insecure},
                 {"uptime_s", static_cast<double>(steady_ms() - parts.started_ms) / 1000.0},
                 {"joined", control.joined},
                 {"coordinator_silent_ms", control.silent_ms},
                 {"store", parts.config->store_path},
                 {"lanes", std::move(lanes)},
                 {"jobs", std::move(jobs)},
                 {"not_saved", std::move(not_saved)},
                 {"memory",
                  {{"owned_bytes", owned_bytes(parts.lanes)},
                   {"max_owned_bytes", max_owned_bytes(parts.lanes)},
                   {"formula_bytes", memory.total()},
                   {"max_bytes", parts.config->max_memory},
                   {"state_bytes", memory.state},
                   {"answers_bytes", memory.answers},
                   {"held_bytes", memory.held},
                   {"arriving_bytes", memory.arriving},
                   {"snapshot_bytes", memory.snapshot},
                   {"process_bytes", memory.process},
                   {"mapped_bytes", over_lanes(parts.lanes, &LaneCounters::mapped_bytes)}}}};
  if (parts.coordinator && parts.coordinator->holds()) status["coordinator"] = coordinator_json(*parts.coordinator);
  if (parts.coordinator && !parts.coordinator->holds()) {
    status["coordinator_elsewhere"] = parts.coordinator->holder_in_words();
  }
  return status.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void register_metrics(Metrics& metrics, const ServerParts& parts) {
  for (const Lane* lane : parts.lanes) {
    metrics.counts("tributary_server_", {{"lane", std::to_string(lane->index().value)}}, lane->counters());
  }
  const Control* control = parts.control;
  metrics.gauge("tributary_owned_bytes", "Memory of the process's own: not what workers share with it.", {},
                [lanes = parts.lanes] { return static_cast<double>(owned_bytes(lanes)); });
  metrics.gauge("tributary_memory_formula_bytes",
                "Memory that the server needs by the formula in server/memory_formula.h.", {},
                [parts] { return static_cast<double>(total_memory(parts, parts.control->status()).total()); });
  metrics.gauge("tributary_server_joined", "1 if the coordinator knows this server.", {},
                [control] { return control->status().joined ? 1.0 : 0.0; });
  const auto per_job = [&](const char* name, const char* help, double (*read)(const ServerJobStatus&)) {
    metrics.gauges(name, help, [control, read] {
      std::vector<Metrics::Sample> samples;
      for (const ServerJobStatus& job : control->status().jobs)
        samples.push_back({{{"job", job.view->name()}}, read(job)});
      return samples;
    });
  };
  per_job("tributary_server_job_min_version", "Rounds that every chunk of this shard has seen.",
          [](const ServerJobStatus& job) { return static_cast<double>(job.min_version().value); });
  per_job("tributary_server_job_max_version", "Rounds that the furthest chunk of this shard has seen.",
          [](const ServerJobStatus& job) { return static_cast<double>(job.max_version().value); });
  per_job("tributary_server_job_durable_round", "Newest round that is durable here.", [](const ServerJobStatus& job) {
    return job.snapshot_durable ? static_cast<double>(job.snapshot_durable->value) : 0.0;
  });
  const auto per_gate = [&](const char* name, const char* help, double (*read)(const ServerJobStatus&)) {
    metrics.gauges(name, help, [control, read] {
      std::vector<Metrics::Sample> samples;
      for (const ServerJobStatus& job : control->status().jobs) {
        if (job.gate_round.value != 0) samples.push_back({{{"job", job.view->name()}}, read(job)});
      }
      return samples;
    });
  };
  metrics.gauges("tributary_server_job_not_saved",
                 "Round of the newest snapshot of a job that was wanted and could not be written.", [control] {
                   std::vector<Metrics::Sample> samples;
                   for (const NotSaved& lost : control->status().not_saved) {
                     samples.push_back({{{"job", lost.job}}, static_cast<double>(lost.round.value)});
                   }
                   return samples;
                 });
  per_gate("tributary_server_job_gradient_norm", "Global norm of the last round's mean gradient (jobs with a gate).",
           [](const ServerJobStatus& job) { return job.decision.norm; });
  per_gate("tributary_server_job_loss_scale", "What trainers multiply their loss by next (jobs with a gate).",
           [](const ServerJobStatus& job) { return static_cast<double>(job.decision.loss_scale); });
  per_gate("tributary_server_job_rounds_clipped", "Rounds of this view whose gradient was clipped (jobs with a gate).",
           [](const ServerJobStatus& job) { return static_cast<double>(job.rounds_clipped); });
  per_gate("tributary_server_job_rounds_skipped",
           "Rounds of this view that were skipped, because they had values that are not finite (jobs with a gate).",
           [](const ServerJobStatus& job) { return static_cast<double>(job.rounds_skipped); });
  metrics.gauges("tributary_server_job_clock",
                 "Where a node's clock is on the chunks where it is last (modes ssp and async).", [control] {
                   std::vector<Metrics::Sample> samples;
                   for (const ServerJobStatus& job : control->status().jobs) {
                     const auto clocks = job.clocks();
                     for (std::size_t node = 0; node < clocks.size(); ++node) {
                       samples.push_back({{{"job", job.view->name()}, {"node", std::to_string(node)}},
                                          static_cast<double>(clocks[node].first.value)});
                     }
                   }
                   return samples;
                 });
  if (const Snapshotter* snapshotter = parts.snapshotter) {
    metrics.gauge("tributary_server_snapshot_waiting_chunks", "Captured chunks that wait for the snapshot writer.", {},
                  [snapshotter] { return static_cast<double>(snapshotter->waiting_chunks()); });
    metrics.counter("tributary_server_snapshot_bytes_total", "Bytes of snapshots that this server has written.", {},
                    [snapshotter] { return static_cast<double>(snapshotter->written() - snapshotter->moved()); });
  }
  if (const CopyFetcher* fetcher = parts.fetcher) {
    metrics.counter("tributary_server_copied_bytes_total", "Bytes of other servers' snapshots that this one has read.",
                    {}, [fetcher] { return static_cast<double>(fetcher->moved()); });
  }
  if (parts.coordinator) register_metrics(metrics, *parts.coordinator);
}

}  // namespace tributary
