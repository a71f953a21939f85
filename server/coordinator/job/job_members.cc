#include "server/coordinator/job/job_members.h"

#include <algorithm>
#include <tuple>

#include "common/base/model_ranks.h"
#include "common/config/job_json.h"
#include "common/wire/redo_plan.h"
#include "kernels/tree_sum.h"

namespace tributary {

JobMembers::iterator member_of(JobMembers& members, std::uint64_t worker) {
  return std::ranges::find_if(members, [&](const auto& entry) { return entry.second.worker == worker; });
}

JobMembers::const_iterator member_of(const JobMembers& members, std::uint64_t worker) {
  return std::ranges::find_if(members, [&](const auto& entry) { return entry.second.worker == worker; });
}

const JobMember* one_that_left(const JobMembers& members) {
  const auto left = std::ranges::find_if(members, [](const auto& entry) { return entry.second.left.has_value(); });
  return left == members.end() ? nullptr : &left->second;
}

bool all_left(const JobMembers& members) {
  return std::ranges::all_of(members, [](const auto& entry) { return entry.second.left.has_value(); });
}

std::uint64_t answers_of(const JobMembers& members) {
  std::uint64_t answers = 0;
  for (const auto& [node, member] : members) answers += member.answers;
  return answers;
}

std::vector<std::uint32_t> nodes_of(const JobMembers& members) {
  std::vector<std::uint32_t> nodes;
  for (const auto& [node, member] : members) nodes.push_back(node);
  return nodes;
}

std::uint32_t ranks_of(const JobMembers& members) {
  std::uint32_t ranks = 0;
  for (const auto& [node, member] : members) ranks += member.join.local_world_size;
  return ranks;
}

std::uint32_t nodes_said(const JobMembers& members) {
  std::uint32_t nodes = 0;
  for (const auto& [node, member] : members) nodes = std::max(nodes, member.join.nodes);
  return nodes;
}

std::vector<std::uint32_t> model_ranks_of(const JobMembers& members) {
  std::vector<std::uint32_t> ranks;
  for (const auto& [node, member] : members) {
    std::vector<std::uint32_t> mine = member.join.model_ranks;
    mine.resize(member.join.local_world_size);
    ranks.insert(ranks.end(), mine.begin(), mine.end());
  }
  if (std::ranges::all_of(ranks, [](std::uint32_t part) { return part == 0; })) ranks.clear();
  return ranks;
}

Status check_model_ranks(const JobMembers& members, const JobConfig& config) {
  const std::vector<std::uint32_t> ranks = model_ranks_of(members);
  const auto nodes = static_cast<std::uint32_t>(members.size());
  const auto made = ModelRanks::of(ranks, nodes, members.begin()->second.join.tensors);
  if (!made) return tl::unexpected(made.error());
  const bool split = !made->whole() || have_holders(members.begin()->second.join.tensors);
  if (split && !has_rounds(config)) {
    return fail(ErrorCode::kTopology,
                "its ranks hold parts of the model, which goes with the modes \"sync\" and "
                "\"local_sgd\", and not with mode = \"" +
                    std::string(word(config.mode)) + "\"");
  }
  if (made->whole() || !is_elastic(config)) return {};
  for (std::uint32_t node = 0; node < nodes; ++node) {
    const std::span<const std::uint32_t> mine = made->of_node(NodeRank(node), nodes);
    if (ModelRanks::of({mine.begin(), mine.end()}, 1, members.begin()->second.join.tensors)) continue;
    return fail(ErrorCode::kTopology,
                "membership.on_worker_loss = \"continue\" needs nodes that hold the whole model each, but replicas of "
                "this one lie on several; put all ranks of a replica on one node, or set \"wait\"");
  }
  return {};
}

std::uint32_t redo_capacity(const JobMembers& members) {
  std::uint32_t capacity = ~0u;
  for (const auto& [node, member] : members) capacity = std::min(capacity, member.join.redo_capacity);
  return capacity;
}

bool keeps_redo(const JobConfig& config, const JobMembers& members, const Peers& peers) {
  return has_rounds(config) && redo_capacity(members) >= kMinRedoRounds && peers.all_have_stores();
}

Status check_join(const JoinJob& m, const std::string& job) {
  const std::string node = "node " + std::to_string(m.node.value);
  if (m.nodes == 0 || m.node.value >= m.nodes || m.local_world_size == 0 ||
      std::uint64_t{m.nodes} * m.local_world_size != m.world_size) {
    return fail(ErrorCode::kTopology, node + " of " + std::to_string(m.nodes) + " with " +
                                          std::to_string(m.local_world_size) + " ranks cannot be part of world_size " +
                                          std::to_string(m.world_size) +
                                          "; every node needs the same number of ranks (torchrun --nproc-per-node)");
  }
  if (m.nodes > kernels::kMaxSumInputs || m.local_world_size > kernels::kMaxSumInputs) {
    return fail(ErrorCode::kLimit, std::to_string(m.nodes) + " nodes with " + std::to_string(m.local_world_size) +
                                       " ranks each are more than the " + std::to_string(kernels::kMaxSumInputs) +
                                       " that one sum can have; use fewer nodes or fewer ranks per node");
  }
  if (!m.model_ranks.empty() && m.model_ranks.size() != m.local_world_size) {
    return fail(ErrorCode::kMalformed, node + " of " + job + " says " + std::to_string(m.model_ranks.size()) +
                                           " model ranks, but has " + std::to_string(m.local_world_size) +
                                           " ranks; worker and coordinator must be of the same release");
  }
  if (m.redo_job.value != 0 && m.redo_last >= m.redo_first &&
      m.redo_last.value - m.redo_first.value >= m.redo_capacity) {
    return fail(ErrorCode::kMalformed,
                node + " of " + job + " says that it keeps the pushes of rounds " + std::to_string(m.redo_first.value) +
                    " to " + std::to_string(m.redo_last.value) + ", and of at most " + std::to_string(m.redo_capacity) +
                    " rounds; start its worker and its trainers again");
  }
  return {};
}

bool same_join(const JoinJob& a, const JoinJob& b) {
  const auto all = [](const JoinJob& m) {
    return std::tie(m.job_json, m.tensors, m.node, m.nodes, m.local_world_size, m.world_size, m.checkpoint_round,
                    m.checkpoint_flaw, m.redo_job, m.redo_first, m.redo_last, m.redo_capacity, m.redo_members,
                    m.computes_with, m.on_devices, m.model_ranks, m.number);
  };
  return all(a) == all(b);
}

Status same_as(const std::string& job, const std::vector<TensorSpec>& tensors, const std::string& job_json,
               bool has_state, const JoinJob& m) {
  const std::string node = "node " + std::to_string(m.node.value);
  if (const std::string difference = describe_difference(tensors, m.tensors); !difference.empty()) {
    return fail(ErrorCode::kLayoutMismatch, job + " has other tensors than those of " + node + ": " + difference +
                                                "; start the same model on every node, or give the job another name");
  }
  if (const std::string difference = describe_config_difference(job_json, m.job_json); !difference.empty()) {
    return fail(ErrorCode::kConfigMismatch,
                job + " was opened with another configuration than that of " + node + ": " + difference +
                    (has_state ? "; what is kept of it goes on with the settings that it began with. To start over, "
                                 "tributary up takes --fresh or another --base-dir"
                               : ""));
  }
  return {};
}

Status same_as_others(const std::string& job, const JobRecord& record, bool keeps, const JobMembers& members,
                      const JoinJob& m, const JobConfig& config) {
  const std::string node = "node " + std::to_string(m.node.value);
  const auto found = std::ranges::find_if(members, [&](const auto& entry) { return entry.first != m.node.value; });
  const JobMember* other = found == members.end() ? nullptr : &found->second;
  if (other || keeps || has_progress(record)) {
    Status same = same_as(job, other ? other->join.tensors : record.tensors,
                          other ? other->join.job_json : record.job_json, keeps || record.initialised, m);
    if (!same) return same;
  }
  if (!other) return {};
  const JoinJob& theirs = other->join;
  const JobConfig& a = other->config;
  if ((m.nodes != theirs.nodes && !is_elastic(a)) || m.local_world_size != theirs.local_world_size) {
    return fail(ErrorCode::kTopology,
                node + " believes in " + std::to_string(m.nodes) + " nodes with " + std::to_string(m.local_world_size) +
                    " ranks each, but " + job + " is gathering " + std::to_string(theirs.nodes) + " nodes with " +
                    std::to_string(theirs.local_world_size) + "; start torchrun alike on every node");
  }
  // A resumed job may go on for longer than before, but all of its nodes for equally long: one that finished early
  // would leave the others waiting for its gradients.
  if (a.train.epochs != config.train.epochs || a.train.max_rounds != config.train.max_rounds) {
    const auto length = [](const JobConfig& c) {
      return "train.epochs = " + std::to_string(c.train.epochs) +
             ", train.max_rounds = " + std::to_string(c.train.max_rounds);
    };
    return fail(ErrorCode::kConfigMismatch, job + " goes on for " + length(a) + " on the other nodes, but for " +
                                                length(config) + " on " + node +
                                                "; use the same job file on every node");
  }
  const auto agree = [&](const char* key, auto member) -> Status {
    const auto others = a.membership.*member, here = config.membership.*member;
    if (others == here) return {};
    return fail(ErrorCode::kConfigMismatch, job + " has membership." + key + " = \"" + word(others) +
                                                "\" on the other nodes, but \"" + word(here) + "\" on " + node +
                                                "; use the same job file on every node");
  };
  Status same = agree("on_state_lost", &MembershipConfig::on_state_lost);
  if (same) same = agree("on_server_loss", &MembershipConfig::on_server_loss);
  if (same) same = agree("on_worker_loss", &MembershipConfig::on_worker_loss);
  return same;
}

std::optional<std::string> add_kinds(ComputeKinds& kinds, const JobMembers& members) {
  const std::size_t known = kinds.size();
  for (const auto& [node, member] : members) {
    for (const std::string& kind : member.join.computes_with) add_kind(kinds, kind);
  }
  if (kinds.size() < 2 || kinds.size() == known) return std::nullopt;
  std::string text;
  for (const std::string& kind : kinds) {
    std::string nodes;
    for (const auto& [node, member] : members) {
      if (member.join.computes_with.contains(kind)) nodes += (nodes.empty() ? "" : ", ") + std::to_string(node);
    }
    text += (text.empty() ? "" : "; ") + kind + (nodes.empty() ? " before this view" : " on node " + nodes);
  }
  return "is not computed with one kind of kernels: " + text +
         ". They add in other orders, so its digest will not be that of a run on one kind";
}

void AwaitedNodes::view_over(const JobMembers& members, std::uint64_t until_ms) {
  nodes_.clear();
  for (const auto& [node, member] : members) nodes_[node] = member.worker;
  until_ms_ = until_ms;
}

void AwaitedNodes::recorded(const std::vector<std::uint32_t>& nodes, std::uint64_t until_ms) {
  for (const std::uint32_t node : nodes) nodes_[node] = 0;
  until_ms_ = until_ms;
}

bool AwaitedNodes::forget_worker(std::uint64_t worker) {
  return std::erase_if(nodes_, [&](const auto& entry) { return entry.second == worker; }) > 0;
}

bool AwaitedNodes::over(const JobMembers& members, std::uint64_t now_ms) const {
  return now_ms >= until_ms_ || missing(members).empty();
}

std::vector<std::uint32_t> AwaitedNodes::missing(const JobMembers& members) const {
  std::vector<std::uint32_t> nodes;
  for (const auto& [node, worker] : nodes_) {
    if (!members.contains(node)) nodes.push_back(node);
  }
  return nodes;
}

bool gathered(const JobMembers& members, const AwaitedNodes& awaited, const JobConfig& config, std::uint32_t nodes,
              std::uint64_t now_ms) {
  if (!is_elastic(config)) return members.size() == nodes;
  if (members.size() < config.membership.min_nodes) return false;
  return awaited.any() ? awaited.over(members, now_ms) : members.size() >= nodes_said(members);
}

std::string missing_in_words(const JobMembers& members, const AwaitedNodes& awaited, const JobConfig& config,
                             std::uint32_t nodes) {
  std::string text;
  const auto add = [&](std::uint32_t node) { text += (text.empty() ? "node " : ", node ") + std::to_string(node); };
  if (!is_elastic(config)) {
    for (std::uint32_t node = 0; node < nodes; ++node) {
      if (!members.contains(node)) add(node);
    }
  } else if (awaited.any()) {
    for (const std::uint32_t node : awaited.missing(members)) add(node);
    const std::uint32_t least = config.membership.min_nodes;
    if (text.empty() && members.size() < least) text = "more nodes (of at least " + std::to_string(least) + ")";
  } else if (const std::uint32_t all = nodes_said(members); members.size() < all) {
    text = std::to_string(all - members.size()) + " more of " + std::to_string(all) + " nodes";
  }
  return text;
}

}  // namespace tributary
