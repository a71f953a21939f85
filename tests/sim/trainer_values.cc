// Values that a simulated trainer gives to all ranks, and gets (Session::gather()).
#include "tests/sim/job_world.h"
#include "tests/sim/trainer_sim.h"

namespace tributary::sim {

// As Session does. A program goes on from its loop's last top, which may be a round before; what it has passed since,
// and knows, a rank that has lived does not ask again.
void TrainerSim::begin_values(const AttachReply& reply) {
  asks_.clear();
  answers_.begin(reply.job, reply.resume_round);
  world_.values_judge.begins(reply.job, reply.view, reply.resume_round);
  for (const SharedValues* answer : answers_.all()) {
    // A node of an elastic job that was away may have others than those that went on.
    if (!world_.scenario.elastic) world_.values_judge.gets(reply.job, reply.view, *answer);
    say([&clock = world_.clock, answer = *answer](NodeJobs& jobs, TrainerId id) {
      jobs.values(id, answer, clock.now_ns() / 1'000'000);
    });
  }
  if (reply.resume_round.value > 0) ask_after(Round(reply.resume_round.value - 1));
  ask_after(reply.resume_round);
}

void TrainerSim::ask_after(Round round) {
  const std::uint32_t count = world_.scenario.values_after(round);
  for (std::uint32_t index = 0; index < count; ++index) {
    if (!answers_.of({round, index})) asks_.push_back({round, index});
  }
}

// Its value is another one whenever it is asked.
void TrainerSim::gather() {
  if (asks_.empty()) return next();
  phase_ = Phase::kGathering;
  const ValueKey key = asks_.front();
  const std::uint64_t number = Random(world_.clock.now_ns() ^ rank_).next();
  std::vector<std::byte> data(number % 20);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(number >> (8 * (i % 8)));
  const SharedValues value{key.round, key.index, false, {{view_rank_, std::move(data)}}};
  say([&clock = world_.clock, value](NodeJobs& jobs, TrainerId id) {
    jobs.values(id, value, clock.now_ns() / 1'000'000);
  });
}

void TrainerSim::on(const SharedValues& answer) {
  if (phase_ != Phase::kGathering || !job_ || answer.key() != asks_.front()) return;
  asks_.pop_front();
  world_.values_judge.gets(job_->view().job, job_->view().view, answer);
  answers_.add(answer);
  gather();
}

}  // namespace tributary::sim
