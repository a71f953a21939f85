// Copies on servers of what the coordinator keeps in server 0's store: job records (docs/recovery.md, "The registry"),
// and large parts of what ranks keep (docs/copies.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/base/message_fields.h"
#include "common/wire/state_head.h"

namespace tributary {

inline constexpr std::size_t kMaxParts = 8192;            // large parts of what ranks of a job keep
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
// Coordinator -> server: of the large parts of what ranks of this job keep, have copies of these, and of no others.
// Repeated as long as parts are missing.
struct CopyParts {
  JobId job;
  std::vector<LargePart> parts;
  std::uint32_t number = 0;  // of the order

  static constexpr auto kWire = TRIB_WIRE(CopyParts);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.parts, TRIB_WIRE(Parts), AtMost{kMaxParts, "the list of large parts"});
    field(m.number, TRIB_WIRE(Number));
  }
};
// Server -> coordinator: the copies that it has, now.
struct HeldParts {
  JobId job;
  std::vector<LargePart> parts;
  bool coming = false;       // it is fetching others, or is about to
  std::uint32_t number = 0;  // of the last order that it has had; 0: of none

  static constexpr auto kWire = TRIB_WIRE(HeldParts);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.parts, TRIB_WIRE(Parts), AtMost{kMaxParts, "the list of large parts"});
    field(m.coming, TRIB_WIRE(Coming));
    field(m.number, TRIB_WIRE(Number));
  }
  bool operator==(const HeldParts&) const = default;
};

}  // namespace tributary
