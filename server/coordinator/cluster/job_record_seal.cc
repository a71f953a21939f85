#include "server/coordinator/cluster/job_record_seal.h"

#include <span>

#include "common/wire/codec_fields.h"
#include "schema/records.capnp.h"

namespace tributary::records {
namespace {

using codec::Reader;
using codec::Writer;

void job_fields(auto& m, auto&& field) {
  field(m.job, TRIB_WIRE(Job));
  field(m.job_json, TRIB_WIRE(JobJson), AtMost{kMaxJobJsonBytes, "the job configuration"});
  field.inside(TRIB_WIRE(Layout), [&](const auto& layout) {
    layout(m.tensors, TRIB_WIRE(Tensors), AtMost{kMaxTensors, "the list of tensors"});
    layout(m.chunk_elements, TRIB_WIRE(ChunkElements));
    layout.owners(m.owners);
  });
  field(m.world_size, TRIB_WIRE(WorldSize));
  field(m.edition, TRIB_WIRE(Edition));
  field(m.provisional, TRIB_WIRE(Provisional));
  field(m.view, TRIB_WIRE(View));
  field(m.committed, TRIB_WIRE(Committed));
  field(m.initialised, TRIB_WIRE(Initialised));
  field(m.finished, TRIB_WIRE(Finished));
  field(m.members, TRIB_WIRE(Members));
  field(m.view_nodes.hash, TRIB_WIRE(MembersHash));
  field(m.view_nodes.since, TRIB_WIRE(MembersSince));
  field(m.view_nodes.first, TRIB_WIRE(MembersFirst));
  field(m.last_stop, TRIB_WIRE(LastStop), CutAt{kMaxTextBytes, "the reason of the last stop"});
  field(m.computed_with, TRIB_WIRE(ComputedWith), AtMost{kMaxComputeKinds, "the list of what ranks compute with"},
        AtMost{kMaxComputeKindBytes, "what a rank computes with"});
}

}  // namespace

std::string seal(const JobRecord& record, std::uint32_t format) {
  capnp::MallocMessageBuilder builder;
  auto out = builder.initRoot<record::JobRecord>();
  out.setFormat(format);
  job_fields(record, Writer(out));
  auto states = out.initRankStates(codec::size_of(record.rank_states));
  for (unsigned i = 0; const auto& [rank, state] : record.rank_states) {
    auto entry = states[i++];
    entry.setNode(rank.node);
    entry.setLocalRank(rank.local_rank);
    entry.setState(codec::data(state));
  }
  return seal_message(builder);
}

Result<JobRecord> unseal_job(std::string_view bytes, std::string_view what) {
  return unseal_message<JobRecord, record::JobRecord>(bytes, what, [](record::JobRecord::Reader in) {
    JobRecord out;
    job_fields(out, Reader(in));
    for (const auto entry : in.getRankStates()) {
      out.rank_states[{entry.getNode(), entry.getLocalRank()}] =
          codec::read_data(entry.getState(), {kMaxRankState, "a rank's state"});
    }
    return out;
  });
}

JobRecordCopy copy_of(const JobRecord& record) {
  const std::string sealed = seal(record);
  const auto bytes = std::as_bytes(std::span(sealed));
  return {record.job, {bytes.begin(), bytes.end()}};
}

Result<JobRecord> record_in(const JobRecordCopy& copy, const std::string& what) {
  const std::string_view bytes(reinterpret_cast<const char*>(copy.record.data()), copy.record.size());
  Result<JobRecord> record = unseal_job(bytes, what);
  if (!record || record->job == copy.job) return record;
  return fail(ErrorCode::kStore, what + " is that of job id " + std::to_string(record->job.value));
}

}  // namespace tributary::records
