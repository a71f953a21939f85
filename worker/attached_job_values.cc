// Values that the ranks of this node give each other and all others (docs/values.md): between trainers, the view's
// values, and the coordinator.
#include "worker/attached_job.h"

namespace tributary {

using namespace attached;

void AttachedJob::values(std::uint32_t local_rank, const SharedValues& said, std::uint64_t now_ms) {
  Running* running = std::get_if<Running>(&phase_);
  if (!running || !trainers_.at(local_rank).takes_part()) return;
  const Result<NodeValues::Actions> actions = running->values.on(local_rank, said, now_ms);
  if (actions) return carry_out(*actions);
  const Error& error = actions.error();
  context_.refuse(trainers_.at(local_rank).id, error);
  lose(*running, local_rank, "broke the rules: " + error.message);
}

void AttachedJob::carry_out(const NodeValues::Actions& actions) {
  for (const RankValues& said : actions.say) context_.coordinator.send(said);
  for (const std::uint32_t local_rank : actions.answered) {
    const LocalTrainer& trainer = trainers_.at(local_rank);
    if (trainer.takes_part()) context_.trainers.send(trainer.id, actions.answer);
  }
}

void AttachedJob::say_values() {
  const Running* running = std::get_if<Running>(&phase_);
  if (!running) return;
  for (const RankValues& said : running->values.all()) context_.coordinator.send(said);
}

void AttachedJob::on(const RankValues& m, std::uint64_t) {
  Running* running = std::get_if<Running>(&phase_);
  if (!running) return;
  if (m.message.empty()) return carry_out(running->values.on(m.shared));
  leave(LeaveKind::kFailed, running->reached(), m.message);
  fail_with({m.code, m.message});
}

}  // namespace tributary
