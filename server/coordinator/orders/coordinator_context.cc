#include "server/coordinator/orders/coordinator_context.h"

#include <cstddef>
#include <optional>

#include "common/base/quantity.h"
#include "server/coordinator/cluster/job_record_seal.h"

namespace tributary {
namespace {

constexpr std::uint64_t kNotYet = ~0ull / 2;  // before the first tick no server has been away

// Nothing: it is too large for a message.
std::optional<JobRecordCopy> copy_of(const JobRecord& record, CoordinatorContext& context) {
  JobRecordCopy copy = records::copy_of(record);
  const std::size_t bytes = copy.record.size();
  if (bytes <= kMaxRecordCopy) return copy;
  if (context.refusals.is_news(PeerId(), ErrorCode::kLimit, "copy " + std::to_string(record.job.value))) {
    context.output.log("the record of job id " + std::to_string(record.job.value) + " has " +
                           bytes_in_words(static_cast<double>(bytes)) + ", over the " +
                           bytes_in_words(static_cast<double>(kMaxRecordCopy)) + " of a message: only " +
                           context.peers.home_in_words() + "'s store has it",
                       LogLevel::kWarning);
  }
  return std::nullopt;
}

}  // namespace

std::uint64_t CoordinatorContext::since_ms(std::uint16_t server) const {
  const std::uint64_t since = peers.since_ms(server);
  const auto heard = options.known.heard_ms.find(server);
  if (since == 0 && heard != options.known.heard_ms.end()) return heard->second;
  return began_ms == 0 ? kNotYet : std::max(since, began_ms);
}

KnownServers CoordinatorContext::known_servers() const {
  KnownServers known{options.known.heard_ms, began_ms, given_up};
  for (const auto& [index, server] : peers.servers()) known.heard_ms[index] = server.heard_ms;
  return known;
}

bool CoordinatorContext::record_is_copied(const JobRecord& record) const {
  std::size_t keepers = 0, copied = 0;
  for (const auto& [index, server] : peers.servers()) {
    keepers += keeps_copies(server) ? 1 : 0;
    copied += keeps_copies(server) && copies.has(index, record.job) ? 1 : 0;
  }
  // A coordinator that may decide later (may_decide()) has one of them.
  const bool most = 2 * (copied + 1) + given_up.size() > options.servers;
  return keepers == 0 || most || records::copy_of(record).record.size() > kMaxRecordCopy;
}

void CoordinatorContext::copy_to(const Peers::Server& server, const JobRecord& record, std::uint64_t now_ms) {
  if (record.job.value == 0 || !keeps_copies(server)) return;
  if (const auto copy = copy_of(record, *this)) output.send(server.peer, *copy);
  copies.sent(server.hello.shard.value, record, now_ms);
}

void CoordinatorContext::copy(const JobRecord& record, std::uint64_t now_ms) {
  std::optional<JobRecordCopy> copy;  // made once, if there is anybody to have it
  for (const auto& [index, server] : peers.servers()) {
    if (!keeps_copies(server)) continue;
    if (!copy && !(copy = copy_of(record, *this))) return;
    output.send(server.peer, *copy);
    copies.sent(index, record, now_ms);
  }
}

}  // namespace tributary
