#include "server/server_job.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/config/job_json.h"
#include "common/config/step_runs.h"

namespace tributary {

SnapshotInfo ServerJob::snapshot(Round round, ShardIndex server) const {
  return {view().job, view().name(), round, view().layout->hash(), plan().config.optimizer.name, status.chunks, server};
}

void ServerJob::decided(const RoundDecision& m) {
  facts.decided(m.round);
  if (m.round <= status.gate_round) return;
  status.gate_round = m.round;
  status.decision = m.decision;
  status.rounds_clipped += m.decision.verdict == GateVerdict::kClipped ? 1 : 0;
  status.rounds_skipped += m.decision.verdict == GateVerdict::kSkipped ? 1 : 0;
}

std::string no_store(ShardIndex server) {
  return "server " + std::to_string(server.value) + " has no store configured; set [store] path in its configuration";
}

Result<ServerJob> lay_out(const OpenJob& m, ShardIndex server, std::size_t lanes, bool store) {
  Result<JobConfig> config = job_from_json(m.job_json);
  if (!config) return tl::unexpected(config.error());
  Result<Layout> made = Layout::with_owners(m.tensors, m.chunk_elements, m.owners);
  if (!made) return tl::unexpected(made.error());
  if (Status known = check_groups(*config, m.tensors); !known) return tl::unexpected(known.error());
  if (m.resume && !store) {
    return fail(ErrorCode::kStore, no_store(server) + " to resume job '" + config->name + "'");
  }
  if (m.nodes == 0) return fail(ErrorCode::kTopology, "job '" + config->name + "' has no nodes");
  Result<ModelRanks> model_ranks = ModelRanks::of(m.model_ranks, m.nodes, m.tensors);
  if (!model_ranks) {
    return fail(model_ranks.error().code, "job '" + config->name + "': " + model_ranks.error().message);
  }
  const auto plan = JobPlan::of(std::move(*config));
  const auto view =
      std::make_shared<const ViewPlan>(ViewPlan{.plan = plan,
                                                .job = m.job,
                                                .view = m.view,
                                                .nodes = m.nodes,
                                                .layout = std::make_shared<const Layout>(std::move(*made)),
                                                .start = m.resume ? m.resume_round : Round(0),
                                                .resumes = m.resume || m.kept,
                                                .model_ranks = std::move(*model_ranks),
                                                .worker_keys = m.worker_keys});
  const Layout& layout = *view->layout;
  ServerJob job;
  job.kept = m.kept;
  ServerJobStatus& status = job.status;
  status.view = view;

  std::vector<std::uint32_t> chunks(lanes, 0);
  for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
    const ChunkOwner owner = layout.owner(ChunkIndex(c));
    if (owner.shard != server) continue;
    if (owner.lane.value >= lanes) {
      return fail(ErrorCode::kTopology, "chunk " + std::to_string(c) + " of job '" + plan->name() +
                                            "' belongs to lane " + std::to_string(owner.lane.value) + ", but server " +
                                            std::to_string(server.value) + " has " + std::to_string(lanes) + " lanes");
    }
    ++chunks[owner.lane.value];
    ++status.chunks;
    const std::uint64_t elements = layout.chunk(ChunkIndex(c)).elements;
    status.elements += elements;
    status.memory.largest_chunk = std::max(status.memory.largest_chunk, elements);
  }
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    if (chunks[lane] == 0) continue;
    job.parts.push_back({view, server, LaneIndex(static_cast<std::uint16_t>(lane)), plan->has_rounds()});
  }

  status.phase = "opening";
  status.resumed = m.resume;
  if (m.resume) status.snapshot_durable = status.snapshot_committed = m.resume_round;
  status.memory.elements = status.elements;
  status.memory.chunks = status.chunks;
  if (!job.parts.empty()) status.memory.arrays = chunk_arrays(job.parts.front());
  status.memory.nodes = m.nodes;
  status.memory.lanes = static_cast<std::uint16_t>(job.parts.size());
  status.memory.push = plan->config.push;
  return job;
}

}  // namespace tributary
