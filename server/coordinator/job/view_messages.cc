#include "server/coordinator/job/view_messages.h"

#include <iterator>

namespace tributary {

namespace {

// By node of the view; empty: the cluster has none.
std::vector<std::string> worker_keys(const Peers& peers, const JobMembers& members) {
  std::vector<std::string> keys;
  bool some = false;
  for (const auto& [node, member] : members) {
    const Peers::Worker* worker = peers.worker(member.worker);
    keys.push_back(worker ? worker->hello.key : "");
    some |= !keys.back().empty();
  }
  return some ? keys : std::vector<std::string>();
}

}  // namespace

OpenJob open_message(const JobLedger& ledger, const JobView& view, std::uint16_t shard) {
  const JobRecord& record = ledger.record();
  OpenJob open;
  open.job = record.job;
  open.view = record.view;
  open.job_json = record.job_json;
  open.tensors = record.tensors;
  open.chunk_elements = record.chunk_elements;
  open.owners = record.owners;
  open.nodes = static_cast<std::uint32_t>(view.members.size());
  open.model_ranks = model_ranks_of(view.members);
  open.resume = view.start.resume;
  open.resume_round = view.start.loaded;
  open.kept = view.start.kept.contains(shard);
  open.worker_keys = worker_keys(ledger.context.peers, view.members);
  if (open.resume && !open.kept) {
    const Peers& peers = ledger.context.peers;
    const ShardIndex holder = peers.holder_of_copy(shard, record.job, open.resume_round);
    if (holder != kNoShard) open.copy = peers.entry(holder.value);
  }
  return open;
}

// The first node that named a checkpoint of that round, or else the newest one: nodes keep the one before, too.
NodeRank values_from(const JobMembers& members, Round round) {
  const auto named = [](const auto& entry) { return entry.second.join.checkpoint_round; };
  auto from = std::ranges::find(members, round, named);
  if (from == members.end()) from = std::ranges::max_element(members, {}, named);
  return NodeRank(static_cast<std::uint32_t>(std::distance(members.begin(), from)));
}

JobWelcome welcome_message(const JobLedger& ledger, const JobView& view, std::uint32_t node) {
  const auto& [members, start, gate, first] = view;
  const JobRecord& record = ledger.record();
  const Peers& peers = ledger.context.peers;
  JobWelcome welcome;
  welcome.name = ledger.config().name;
  welcome.job = record.job;
  welcome.view = record.view;
  welcome.chunk_elements = record.chunk_elements;
  welcome.owners = record.owners;
  welcome.resume = !start.anew();
  welcome.resume_round = start.round;
  welcome.committed = record.committed;
  welcome.redo = keeps_redo(ledger.config(), members, peers);
  // In a view nodes count from 0, in the order of the ranks that they are known by.
  welcome.node = NodeRank(static_cast<std::uint32_t>(std::distance(members.begin(), members.find(node))));
  welcome.nodes = ledger.nodes;
  welcome.join = members.at(node).join.number;
  welcome.members = record.view_nodes.hash;
  welcome.model_ranks = model_ranks_of(members);
  ledger.keeper.rank_states(welcome, node, start);
  welcome.first_state = first.state;
  welcome.giver = first.giver;
  if (ledger.servers() == 0) {
    welcome.values_from = values_from(members, start.round);
    return welcome;
  }
  const std::set<std::uint16_t> owning = ledger.shards();
  const bool keys = std::ranges::any_of(owning, [&](std::uint16_t index) { return !peers.entry(index).key.empty(); });
  static const ServerHello kAway;  // it has no chunks
  for (std::uint16_t index = 0; index < ledger.servers(); ++index) {
    const Peers::Server* there = peers.alive(index);
    const ServerHello& server = there ? there->hello : kAway;
    welcome.endpoints.push_back(server.lane_endpoints);
    welcome.locals.push_back(server.lane_locals);
    if (keys) welcome.server_keys.push_back(server.key);
    if (server.plain) welcome.plain.emplace_back(index);
    if (start.round == start.loaded) continue;
    const bool has = start.kept.contains(index) || !owning.contains(index);  // those without chunks lack nothing
    const auto behind = start.behind.find(index);
    welcome.redo_after.push_back(behind != start.behind.end() ? behind->second
                                                              : Version(has ? start.round.value : start.loaded.value));
  }
  return welcome;
}

}  // namespace tributary
