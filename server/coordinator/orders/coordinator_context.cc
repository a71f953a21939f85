#include "server/coordinator/orders/coordinator_context.h"

#include <optional>

#include "common/base/quantity.h"
#include "server/coordinator/cluster/job_record_seal.h"

namespace tributary {
namespace {

bool keeps_copies(const Peers::Server& server) {
  return server.alive && server.hello.store && server.hello.shard != ShardIndex(0);
}

// Nothing: it is too large for a message.
std::optional<JobRecordCopy> copy_of(const JobRecord& record, CoordinatorOutput& output) {
  const std::string sealed = records::seal(record);
  const auto bytes = std::as_bytes(std::span(sealed));
  if (bytes.size() <= kMaxRecordCopy) return JobRecordCopy{record.job, {bytes.begin(), bytes.end()}};
  output.log("the record of job id " + std::to_string(record.job.value) + " has " +
                 bytes_in_words(static_cast<double>(bytes.size())) + ", over the " +
                 bytes_in_words(static_cast<double>(kMaxRecordCopy)) + " of a message: only server 0's store has it",
             LogLevel::kWarning);
  return std::nullopt;
}

}  // namespace

void CoordinatorContext::copy(const JobRecord& record) {
  if (peers.servers().size() < 2) return;
  const auto copy = copy_of(record, output);
  for (const auto& [index, server] : peers.servers()) {
    if (copy && keeps_copies(server)) output.send(server.peer, *copy);
  }
}

void CoordinatorContext::copy_to(const JobRecord& record, const Peers::Server& server) {
  if (!keeps_copies(server) || record.job.value == 0) return;
  if (const auto copy = copy_of(record, output)) output.send(server.peer, *copy);
}

}  // namespace tributary
