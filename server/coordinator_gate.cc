// The coordinator's part in the round gate: facts of lanes to the job's gate, decisions to the servers.
#include "server/coordinator_core.h"

namespace tributary {

void CoordinatorCore::on(PeerId from, const RoundFacts& m, std::uint64_t) {
  Job* job = job_in_view(m.job, m.view);
  if (!server_at(from) || !job || !job->gate) return;  // of a view that is over
  const Result<RoundGate::Reply> reply = job->gate->on_facts(m);
  if (!reply) return refuse(from, reply.error().code, reply.error().message, job->config.name);
  if (!reply->decision) return;
  if (reply->for_all) {
    send_servers(*job, *reply->decision);
  } else if (!m.decided.known()) {
    output_.send(from, *reply->decision);
  }
}

}  // namespace tributary
