#include "worker/node_view.h"

#include "worker/allreduce/allreduce_lane.h"
#include "worker/reduce/host_reducer.h"

namespace tributary {
namespace {

// May a view of the job begin so? Lanes and reducers rely on the welcome's redo fields.
Status redo_fits(const JobConfig& config, const Layout& layout, const JobWelcome& m) {
  if (m.redo && !has_rounds(config)) {
    return fail(ErrorCode::kMalformed, "the coordinator wants the pushes of " + job_in_words(config.name) +
                                           " to be kept, whose configuration rules that out; coordinator and workers "
                                           "must be of the same release");
  }
  for (std::uint32_t c = 0; c < layout.chunks() && !m.redo_after.empty(); ++c) {
    const std::uint16_t shard = layout.owner(ChunkIndex(c)).shard.value;
    if (shard < m.redo_after.size()) continue;
    return fail(ErrorCode::kMalformed, "the coordinator gave chunks of " + job_in_words(config.name) + " to server " +
                                           std::to_string(shard) + " but said what is to be pushed again to " +
                                           std::to_string(m.redo_after.size()) + " servers only");
  }
  return {};
}

}  // namespace

Result<NodeJobSpec> spec_of(const std::shared_ptr<const JobPlan>& plan, const std::vector<TensorSpec>& tensors,
                            std::uint32_t ranks, const JobWelcome& m) {
  Result<Layout> made = Layout::with_owners(tensors, m.chunk_elements, m.owners);
  if (!made) return tl::unexpected(made.error());
  if (Status fits = redo_fits(plan->config, *made, m); !fits) return tl::unexpected(fits.error());
  Result<ModelRanks> model_ranks = ModelRanks::of(m.model_ranks, m.nodes, tensors);
  if (!model_ranks || (!model_ranks->whole() && model_ranks->by_rank().size() != std::size_t{m.nodes} * ranks)) {
    return fail(ErrorCode::kMalformed,
                "the coordinator gave " + job_in_words(plan->name()) + " model ranks that cannot be: " +
                    (model_ranks ? std::to_string(model_ranks->by_rank().size()) + " of them, for " +
                                       std::to_string(m.nodes) + " nodes with " + std::to_string(ranks) + " ranks each"
                                 : model_ranks.error().message));
  }
  if (m.values_from.value >= m.nodes) {
    return fail(ErrorCode::kMalformed, "the coordinator lets " + job_in_words(plan->name()) + " begin with what node " +
                                           std::to_string(m.values_from.value) + " has, of " + std::to_string(m.nodes) +
                                           " nodes");
  }
  NodeJobSpec spec;
  const auto layout = std::make_shared<const Layout>(made->part(model_ranks->of_node(m.node, m.nodes)).value());
  spec.view = std::make_shared<const ViewPlan>(
      ViewPlan{plan, m.job, m.view, m.nodes, layout, m.resume_round, m.resume, std::move(*model_ranks)});
  spec.node = m.node;
  spec.ranks = ranks;
  spec.endpoints = m.endpoints;
  spec.locals = m.locals;
  spec.server_keys = m.server_keys;
  spec.plain = m.plain;
  spec.redo_after = m.redo_after;
  spec.values_from = m.values_from;
  return spec;
}

Result<std::shared_ptr<NodeJob>> open_view(NodeJobsContext& context, NodeJobSpec spec, const JobWelcome& m,
                                           NodeRank node, const LocalTrainers& trainers, std::uint64_t now_ms) {
  const JobPlan& plan = *spec.view->plan;
  // Parameters of earlier views may take the memory that this one needs.
  const auto with_room = [&](auto&& make) {
    auto made = make();
    if (!made && made.error().code == ErrorCode::kLimit && context.parameters.give_way()) made = make();
    return made;
  };
  auto redo = with_room([&] { return context.redo.begin(plan.config, node, *spec.view->layout, m, now_ms); });
  if (!redo) return tl::unexpected(redo.error());
  spec.redo = std::move(*redo);
  if (!plan.on_servers()) {
    spec.lane_memory = AllreduceLane::bytes_needed(spec);
  } else if (context.options.devices) {
    auto opened = context.options.devices->open(*spec.view, trainers.devices());
    if (!opened) return tl::unexpected(opened.error());
    spec.devices = std::move(*opened);
  }
  // Keeping what a single rank sends as it is would be a copy else.
  spec.gradients_in_ring = spec.redo && !spec.devices && HostReducer::sends_gradients(spec.ranks, plan.config.push) &&
                           trainers.begin()->second.gradients_move;
  const std::size_t lanes = context.lanes.doorbells(!plan.on_servers()).size();
  auto created = with_room([&] {
    return NodeJob::create(spec, static_cast<std::uint16_t>(lanes), context.budget,
                           context.parameters.of(plan.name(), *spec.view->layout));
  });
  if (created) context.lanes.open(*created);
  return created;
}

}  // namespace tributary
