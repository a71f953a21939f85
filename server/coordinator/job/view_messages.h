// The messages with which servers and nodes learn of a view.
#pragma once

#include <cstdint>

#include "common/wire/messages.h"
#include "server/coordinator/job/job_ledger.h"

namespace tributary {

OpenJob open_message(const JobLedger& ledger, const JobView& view, std::uint16_t shard);
// REQUIRES: the node is a member.
JobWelcome welcome_message(const JobLedger& ledger, const JobView& view, std::uint32_t node);

}  // namespace tributary
