// Copies of the coordinator's job records on servers (docs/recovery.md, "The registry").
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/base/message_fields.h"

namespace tributary {

inline constexpr std::size_t kMaxRecordCopy = 48u << 20;  // bytes; a message of kMaxControlBytes has it, and more

// A copy that a server has, in its hello; and server -> coordinator: reply to JobRecordCopy, when the copy is durable.
struct HeldRecord {
  JobId job;
  std::uint64_t edition = 0;  // JobFacts::edition

  static constexpr auto kWire = TRIB_WIRE(HeldRecord);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.edition, TRIB_WIRE(Edition));
  }
  bool operator==(const HeldRecord&) const = default;
};
// Coordinator -> servers: save it. Server -> coordinator: reply to WantRecord.
struct JobRecordCopy {
  JobId job;
  std::vector<std::byte> record;  // server/coordinator/cluster/job_record_seal.h; empty, in a reply: it can't be read

  static constexpr auto kWire = TRIB_WIRE(JobRecordCopy);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.record, TRIB_WIRE(Record), AtMost{kMaxRecordCopy, "a copy of a job's record"});
  }
};
// Coordinator -> server: asks for its copy of this job's record.
struct WantRecord {
  JobId job;

  static constexpr auto kWire = TRIB_WIRE(WantRecord);
  static void fields(auto& m, auto&& field) { field(m.job, TRIB_WIRE(Job)); }
};

}  // namespace tributary
