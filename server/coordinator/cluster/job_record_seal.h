// A job's record as bytes (schema/records.capnp, server/chunk/record_seal.h): on a server's disk, and on its way there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/wire/record_messages.h"
#include "server/chunk/record_seal.h"
#include "server/coordinator/cluster/job_record.h"

namespace tributary::records {

// `format`: for tests of refusal, as if written by another version of the program.
std::string seal(const JobRecord& record, std::uint32_t format = kStoreFormat);
// `what`: the record in words, for errors.
Result<JobRecord> unseal_job(std::string_view bytes, std::string_view what);

// The same in a message. kStore also for a record of another job than the copy names.
JobRecordCopy copy_of(const JobRecord& record);
Result<JobRecord> record_in(const JobRecordCopy& copy, const std::string& what);

}  // namespace tributary::records
