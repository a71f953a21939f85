#include "server/coordinator/show/coordinator_status.h"

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "server/coordinator/show/placement_json.h"

namespace tributary {
namespace {

using Json = nlohmann::ordered_json;

// How long the nodes take for a round, and which of them lag.
Json paces_json(const JobStatus& job) {
  Json paces = Json::array();
  for (const StragglerWatch::Node& node : job.paces) {
    Json pace = {{"node", node.node},
                 {"worker", job.members.contains(node.node) ? job.members.at(node.node).worker : ""},
                 {"compute_ms", node.times.compute},
                 {"reduction_ms", node.times.reduction},
                 {"network_ms", node.times.network},
                 {"lags", nullptr}};
    if (node.lag) {
      pace["lags"] = {{"phase", to_text(node.lag->phase)}, {"factor", node.lag->factor}, {"text", in_words(*node.lag)}};
    }
    paces.push_back(std::move(pace));
  }
  return paces;
}

// Returns, for each node, the round of which its ranks have given all gradients.
Json members_json(const JobStatus& job) {
  Json members = Json::array();
  for (const auto& [node, member] : job.members) {
    members.push_back({{"node", node},
                       {"worker", member.worker},
                       {"gradients_of", member.given ? Json(member.given->value) : Json(nullptr)}});
  }
  return members;
}

// The progress of the makers of rounds: servers or, for all-reduce jobs, nodes.
Json versions_json(const JobStatus& job) {
  const char* maker = job.mode == word(Mode::kAllreduce) ? "node" : "server";
  Json versions = Json::array();
  for (const auto& [index, range] : job.made) {
    versions.push_back({{maker, index}, {"min_version", range.first.value}, {"max_version", range.second.value}});
  }
  return versions;
}

Json snapshot_json(const JobStatus& job) {
  return {{"under_way", job.snapshot ? Json(job.snapshot->value) : Json(nullptr)}, {"waits_for", job.snapshot_waits}};
}

// {"round": 40, "means": {"loss": 0.31}}; values that are not finite are null. null: there are no figures.
Json figures_json(const Figures& figures) {
  if (figures.empty()) return nullptr;
  Json means = Json::object();
  for (const Figure& figure : figures.values) means[figure.name] = figure.mean;
  return {{"round", figures.round.value}, {"means", std::move(means)}};
}

}  // namespace

Json jobs_json(const std::vector<JobStatus>& jobs) {
  Json all = Json::array();
  for (const JobStatus& job : jobs) {
    all.push_back({{"name", job.name},
                   {"mode", job.mode},
                   {"id", std::to_string(job.record.job.value)},
                   {"phase", job.phase},
                   {"view", job.record.view.value},
                   {"nodes", job.nodes},
                   {"joined", job.joined},
                   {"waiting_for", job.waiting_for},
                   {"deal", job.deal},
                   {"world_size", job.record.world_size},
                   {"chunks", job.chunks},
                   {"chunk_elements", job.record.chunk_elements},
                   {"min_version", job.min_version.value},
                   {"max_version", job.max_version.value},
                   {"versions", versions_json(job)},
                   {"committed", has_progress(job.record) ? Json(job.record.committed.value) : Json(nullptr)},
                   {"finished", job.record.finished},
                   {"last_stop", job.last_stop},
                   {"not_saved", job.not_saved},
                   {"copies", job.copies},
                   {"not_copied", job.not_copied},
                   {"computed_with", job.record.computed_with},
                   {"stalled_ms", job.stall ? Json(job.stall->ms) : Json(nullptr)},
                   {"why_no_round", job.stall ? job.stall->why : ""},
                   {"figures", figures_json(job.figures)},
                   {"members", members_json(job)},
                   {"paces", paces_json(job)},
                   {"snapshot", snapshot_json(job)},
                   {"checkpoint", job.checkpoint.empty() ? Json(nullptr) : Json(job.checkpoint)},
                   {"no_checkpoint", job.no_checkpoint},
                   {"placement", job.placement ? placement_json(*job.placement) : Json(nullptr)}});
  }
  return all;
}

Json peers_json(const std::vector<CoordinatorCore::PeerStatus>& peers, std::uint64_t now_ms) {
  Json all = Json::array();
  for (const CoordinatorCore::PeerStatus& peer : peers) {
    all.push_back({{"kind", peer.kind},
                   {"name", peer.name},
                   {"alive", peer.alive},
                   {"last_heard_ms", now_ms > peer.last_heard_ms ? now_ms - peer.last_heard_ms : 0},
                   {"bytes_in", peer.bytes_in},
                   {"bytes_out", peer.bytes_out},
                   {"clock", peer.clock}});
  }
  return all;
}

Json events_json(const std::vector<EventList::Event>& events) {
  static constexpr const char* kLevels[] = {"info", "warning", "error"};
  Json all = Json::array();
  for (const EventList::Event& event : events) {
    all.push_back(
        {{"time", event.time}, {"level", kLevels[static_cast<std::size_t>(event.level)]}, {"text", event.words}});
  }
  return all;
}

Json coordinator_json(const Coordinator& coordinator) {
  return {{"endpoint", coordinator.endpoint()},          {"time", utc_now()},
          {"jobs", jobs_json(coordinator.jobs())},       {"peers", peers_json(coordinator.peers(), steady_ms())},
          {"events", events_json(coordinator.events())}, {"messages", coordinator.messages()},
          {"malformed", coordinator.malformed()}};
}

void register_metrics(Metrics& metrics, const Coordinator& coordinator) {
  metrics.gauge("tributary_coordinator_here", "1 if this server has the coordinator; one of all servers has it.", {},
                [&coordinator] { return coordinator.holds() ? 1.0 : 0.0; });
  metrics.gauges("tributary_coordinator_job_stalled_seconds",
                 "For how long a running job has had no round, if that is longer than usual; else 0.", [&coordinator] {
                   std::vector<Metrics::Sample> samples;
                   for (const JobStatus& job : coordinator.jobs()) {
                     const double ms = job.stall ? static_cast<double>(job.stall->ms) : 0.0;
                     if (job.phase == "running") samples.push_back({{{"job", job.name}}, ms * 1e-3});
                   }
                   return samples;
                 });
  metrics.gauges("tributary_coordinator_job_figure",
                 "What trainers said last (trib.log): means over all ranks by samples; by name.", [&coordinator] {
                   std::vector<Metrics::Sample> samples;
                   for (const JobStatus& job : coordinator.jobs()) {
                     for (const Figure& figure : job.figures.values)
                       samples.push_back({{{"job", job.name}, {"figure", figure.name}}, figure.mean});
                   }
                   return samples;
                 });
  metrics.gauges("tributary_coordinator_clock_differs",
                 "1 if a daemon's time of day is not the coordinator's; by daemon. Log and status say by how much.",
                 [&coordinator] {
                   std::vector<Metrics::Sample> samples;
                   for (const CoordinatorCore::PeerStatus& peer : coordinator.peers())
                     samples.push_back({{{"kind", peer.kind}, {"name", peer.name}}, peer.clock.empty() ? 0.0 : 1.0});
                   return samples;
                 });
  metrics.counters(
      "tributary_coordinator_losses_total",
      "Daemons that were lost: silent for the peer timeout, restarted, or their key revoked.", [&coordinator] {
        std::vector<Metrics::Sample> samples;
        const LossCounts losses = coordinator.losses();
        const auto add = [&](const char* kind, const auto& counts) {
          for (std::size_t i = 0; i < counts.size(); ++i)
            samples.push_back({{{"kind", kind}, {"reason", kLossWords[i]}}, static_cast<double>(counts[i])});
        };
        add("server", losses.servers);
        add("worker", losses.workers);
        return samples;
      });
  metrics.counter("tributary_coordinator_messages_total", "Control messages received.", {},
                  [&coordinator] { return static_cast<double>(coordinator.messages()); });
  metrics.counter("tributary_coordinator_malformed_total", "Control messages that are none of ours.", {},
                  [&coordinator] { return static_cast<double>(coordinator.malformed()); });
  metrics.gauges(
      "tributary_coordinator_node_lag",
      "How many times as long as the others a node takes for a round, if it lags; by phase.", [&coordinator] {
        std::vector<Metrics::Sample> samples;
        for (const JobStatus& job : coordinator.jobs()) {
          for (const StragglerWatch::Node& node : job.paces) {
            if (!node.lag) continue;
            samples.push_back(
                {{{"job", job.name}, {"node", std::to_string(node.node)}, {"phase", to_text(node.lag->phase)}},
                 node.lag->factor});
          }
        }
        return samples;
      });
}

}  // namespace tributary
