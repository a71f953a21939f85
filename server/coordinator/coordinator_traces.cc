// Orders for traces (docs/trace.md), and the daemons' parts of them.
#include <algorithm>
#include <cmath>
#include <utility>

#include "server/coordinator/coordinator_core.h"

namespace tributary {

// Names the rounds of a trace. By estimate the order reaches all lanes half a second before the first round begins. A
// lane that gets the order later lacks the beginning; the trace shows the gap.
Result<TraceRounds> CoordinatedJob::name_trace(std::uint64_t rounds, std::uint64_t now_ms) const {
  const RunningView* running = std::get_if<RunningView>(&phase_);
  if (!running || running->stop_requested()) {
    return fail(ErrorCode::kInvalidArgument,
                in_words() + " does not run (it is " + status().phase + "): there are no rounds to come");
  }
  if (servers() == 0 || !has_rounds(config())) {
    return fail(ErrorCode::kInvalidArgument,
                in_words() + " has mode \"" + word(config().mode) +
                    "\"; traces are of jobs on servers with synchronous rounds (sync, local_sgd)");
  }
  std::uint64_t ranks = 0;
  for (const auto& [node, member] : members()) ranks += member.join.local_world_size;
  const std::uint64_t nodes = members().size(), chunks = record().owners.size();
  const std::uint64_t a_round =
      nodes * (chunks * (kWorkerEventsPerChunk + kServerEventsPerPush) + kWorkerEventsPerRound) + chunks +
      ranks * kTrainerEventsPerRound;
  const std::uint64_t most = std::min<std::uint64_t>(kMaxTraceRounds, TraceKeeper::kMaxEvents / a_round);
  if (rounds == 0 || rounds > most) {
    return fail(ErrorCode::kInvalidArgument, std::to_string(rounds) + " rounds are asked for; of " + in_words() +
                                                 ", with " + std::to_string(chunks) + " chunks on " +
                                                 std::to_string(nodes) + " nodes, a trace can have 1 to " +
                                                 std::to_string(most));
  }
  const std::optional<double> reach = ledger_.paces.reach(kTraceLeadMs, 1.0, now_ms);
  if (!reach) {
    return fail(ErrorCode::kUnavailable,
                in_words() + " has just begun: how fast its rounds are is not known yet; try again in a moment");
  }
  const Round first(std::max(static_cast<std::uint64_t>(std::ceil(*reach)), newest_round().value + 1) + 1);
  return TraceRounds{record().job, record().view, first, Round(first.value + rounds - 1)};
}

Result<std::uint64_t> CoordinatorCore::trace_job(const std::string& name, std::uint64_t rounds, std::uint64_t now_ms) {
  const auto known = jobs_.find(name);
  if (known == jobs_.end()) return fail(ErrorCode::kUnknownJob, "nobody in the cluster has a job '" + name + "'");
  if (const TraceRounds* other = traces_.order()) {
    return fail(ErrorCode::kInvalidArgument, "a trace of job '" + traces_.job() + "' is being recorded, of rounds " +
                                                 std::to_string(other->first.value) + " to " +
                                                 std::to_string(other->last.value) +
                                                 "; there is one at a time: wait until it is over");
  }
  const CoordinatedJob& job = known->second;
  const Result<TraceRounds> order = job.name_trace(rounds, now_ms);
  if (!order) return tl::unexpected(order.error());
  std::map<std::uint64_t, TraceSource> sources;
  for (const auto& [index, server] : context_.peers.servers()) {
    if (server.alive) sources[server.hello.incarnation] = {true, index};
  }
  for (std::uint32_t number = 0; const auto& [node, member] : job.members()) sources[member.worker] = {false, number++};
  const std::uint64_t id = traces_.begin(name, *order, std::move(sources), now_ms);
  send_to_traced(job, *order);
  context_.output.log("rounds " + std::to_string(order->first.value) + " to " + std::to_string(order->last.value) +
                      " of " + job.in_words() + " are traced");
  return id;
}

void CoordinatorCore::send_to_traced(const CoordinatedJob& job, const TraceRounds& order) {
  context_.send_servers(order);
  for (const auto& [node, member] : job.members()) context_.send_worker(member.worker, order);
}

void CoordinatorCore::look_at_trace(std::uint64_t now_ms) {
  const TraceRounds* order = traces_.order();
  if (!order) return;
  const CoordinatedJob* job = job_with(order->job);
  const bool runs = job && job->runs(order->view);
  const auto cut =
      traces_.tick(runs ? job->newest_round() : Round(), runs, job ? job->status().last_stop : "it is gone", now_ms);
  if (cut && job) send_to_traced(*job, *cut);
}

void CoordinatorCore::on(PeerId from, const TracePart& m, std::uint64_t now_ms) {
  look_at_trace(now_ms);  // a view that has ended explains missing parts
  const Peers::Server* server = context_.peers.server_at(from);
  const Peers::Worker* worker = context_.peers.worker_at(from);
  if (server) traces_.on(server->hello.incarnation, m);
  if (worker) traces_.on(worker->hello.incarnation, m);
}

}  // namespace tributary
