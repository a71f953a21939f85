#include "worker/local_trainers.h"

#include "common/base/printed.h"

namespace tributary {

std::optional<std::uint32_t> LocalTrainers::local_rank_of(TrainerId id) const {
  for (const auto& [local_rank, trainer] : *this) {
    if (trainer.connected && trainer.id == id) return local_rank;
  }
  return std::nullopt;
}

std::string LocalTrainers::who(std::uint32_t local_rank) const {
  const LocalTrainer& trainer = at(local_rank);
  return printed("trainer rank %u (pid %d) on node %u", trainer.rank, trainer.pid, node_.value);
}

std::string LocalTrainers::who_left() const {
  const auto one = std::ranges::find_if(*this, [](const auto& entry) { return entry.second.has_left(); });
  return who(one->first) + (one->second.stopped() ? " stopped" : " finished");
}

std::string LocalTrainers::missing() const {
  std::string ranks;
  for (std::uint32_t local = 0; local < local_world_size_; ++local) {
    if (!contains(local)) ranks += (ranks.empty() ? "local rank " : ", ") + std::to_string(local);
  }
  return ranks.empty() ? "" : ranks + " of node " + std::to_string(node_.value);
}

void LocalTrainers::tell(const AttachWaits& waits, TrainerPort& port) const {
  for (const auto& [local_rank, trainer] : *this) {
    if (trainer.takes_part() && trainer.hears_waits) port.send(trainer.id, waits);
  }
}

std::vector<std::string> LocalTrainers::devices() const {
  std::vector<std::string> uuids;
  for (const auto& [local_rank, trainer] : *this) uuids.push_back(trainer.device);
  return uuids;
}

std::vector<std::uint32_t> LocalTrainers::model_ranks() const {
  std::vector<std::uint32_t> ranks;
  for (const auto& [local_rank, trainer] : *this) ranks.push_back(trainer.model_rank);
  return ranks;
}

void LocalTrainers::describe_living(JoinJob& join) const {
  for (const auto& [local_rank, trainer] : *this) {
    if (join.held_job == JobId()) join.held_job = trainer.lived_in;
    if (trainer.lived_in != JobId() && trainer.lived_in == join.held_job && local_rank < kMaxRankStates) {
      join.living.push_back(local_rank);
    }
  }
}

Status LocalTrainers::admit(const AttachRequest& request, const std::string& job) const {
  if (request.node_rank != node_.value) {
    return fail(ErrorCode::kTopology,
                printed("this worker serves node_rank %u of %s, the trainer says node_rank %u; every node needs a "
                        "worker daemon with a socket of its own",
                        node_.value, job.c_str(), request.node_rank));
  }
  if (request.world_size != world_size_ || request.local_world_size != local_world_size_) {
    return fail(ErrorCode::kTopology, printed("rank %u says world_size %u and local_world_size %u, the others of %s on "
                                              "this node say %u and %u",
                                              request.rank, request.world_size, request.local_world_size, job.c_str(),
                                              world_size_, local_world_size_));
  }
  const auto taken = find(request.local_rank);
  if (taken == end()) return {};
  const std::string place = "local_rank " + std::to_string(request.local_rank) + " of " + job;
  if (!taken->second.connected) {
    return fail(ErrorCode::kUnavailable,
                place + " has left, but other ranks of this node have not; attach again when they have");
  }
  return fail(ErrorCode::kTopology, place + " is attached already, by pid " + std::to_string(taken->second.pid) +
                                        "; give every trainer its own local_rank, or end that process first");
}

void LocalTrainers::add(TrainerId id, const AttachRequest& request, int peer_pid) {
  const std::int32_t pid = peer_pid > 0 ? peer_pid : request.pid;
  emplace(request.local_rank,
          LocalTrainer{id, request.rank, pid, request.device, request.gradients_move, request.computes_with,
                       request.model_rank, request.hears_waits, request.lived_in});
}

void LocalTrainers::welcome(const JobWelcome& m, const NodeJob& job, std::span<const int> doorbells,
                            const HeldStates& held, TrainerPort& port) {
  AttachReply reply;
  reply.job = m.job;
  reply.view = m.view;
  reply.world_size = m.nodes * job.spec().ranks;
  reply.node_rank = m.node.value;
  reply.resume = m.resume;
  reply.resume_round = m.resume_round;
  reply.chunk_elements = m.chunk_elements;
  reply.owners = m.owners;
  reply.model_ranks = m.model_ranks;
  reply.lanes = static_cast<std::uint16_t>(doorbells.size());
  reply.node_region_bytes = job.node_bytes();
  reply.gradient_region_bytes = job.rank_bytes();
  const std::shared_ptr<RedoRing>& ring = job.spec().redo;
  reply.redo = ring != nullptr;
  if (job.spec().gradients_in_ring) reply.ring = {ring->slots_offset(), ring->slot_bytes(), ring->slots()};
  for (auto& [local_rank, trainer] : *this) {
    reply.state = local_rank < m.rank_states.size() ? m.rank_states[local_rank] : std::vector<std::byte>();
    const KeptState* mine = held.of(m.name, local_rank, m.resume_round);
    reply.held_state = mine ? mine->state.state : std::vector<std::byte>();
    reply.rank = trainer.rank = m.node.value * job.spec().ranks + local_rank;
    reply.first = !m.first_state.empty()  ? FirstState::kComes
                  : m.giver == kNobody    ? FirstState::kNone
                  : m.giver == reply.rank ? FirstState::kGiven
                                          : FirstState::kComes;
    if (const DeviceLender* lender = job.spec().lender()) {
      const DeviceLoan& loan = lender->loan(local_rank);
      reply.device = loan.uuid;
      reply.gradient_handle.assign(loan.gradients.bytes.begin(), loan.gradients.bytes.end());
      reply.parameter_handle.assign(loan.parameters.bytes.begin(), loan.parameters.bytes.end());
      reply.device_bytes = loan.bytes;
    }
    std::vector<int> fds{job.node_fd(), job.rank_fd(local_rank)};
    fds.insert(fds.end(), doorbells.begin(), doorbells.end());
    if (reply.redo) fds.push_back(ring->memory().fd());
    port.send(trainer.id, reply, fds);
  }
}

void LocalTrainers::send(const AttachMessage& message, TrainerPort& port) const {
  for (const auto& [local_rank, trainer] : *this) {
    if (trainer.takes_part()) port.send(trainer.id, message);
  }
}

}  // namespace tributary
