// Copies of the coordinator's job records on servers (docs/recovery.md, "The registry"): every daemon <-> the coordinator.
#pragma once

#include <cstddef>
#include <vector>

#include "common/base/ids.h"
#include "common/base/message_fields.h"

namespace tributary {

inline constexpr std::size_t kMaxRecordCopy = 48u << 20;  // bytes; a message of kMaxControlBytes has it, and more

// Coordinator -> servers: saved before anything that comes after it is answered. Server -> coordinator: reply to
// WantRecord.
struct JobRecordCopy {
  JobId job;                      // 0, in a reply: the server has no more
  std::vector<std::byte> record;  // server/coordinator/cluster/job_record_seal.h

  static constexpr auto kWire = TRIB_WIRE(JobRecordCopy);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.record, TRIB_WIRE(Record), AtMost{kMaxRecordCopy, "a copy of a job's record"});
  }
};
// Coordinator -> server: asks for its copy with the least job id after this one.
struct WantRecord {
  JobId after;

  static constexpr auto kWire = TRIB_WIRE(WantRecord);
  static void fields(auto& m, auto&& field) { field(m.after, TRIB_WIRE(After)); }
};

}  // namespace tributary
