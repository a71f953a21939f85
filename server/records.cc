#include "server/records.h"

#include "schema/records.capnp.h"
#include "server/record_seal.h"

namespace tributary::records {
using namespace codec;

std::string seal(const StoreIdentity& record, std::uint32_t format) {
  capnp::MallocMessageBuilder builder;
  auto out = builder.initRoot<record::StoreIdentity>();
  out.setFormat(format);
  out.setServerIndex(record.server_index);
  return seal_message(builder);
}

Result<StoreIdentity> unseal_identity(std::string_view bytes, std::string_view what) {
  return unseal_message<StoreIdentity, record::StoreIdentity>(
      bytes, what, [](record::StoreIdentity::Reader in) { return StoreIdentity{in.getServerIndex()}; });
}

std::string seal(const SnapshotRecord& record, std::uint32_t format) {
  capnp::MallocMessageBuilder builder;
  auto out = builder.initRoot<record::SnapshotRecord>();
  out.setFormat(format);
  out.setJob(record.info.job.value);
  out.setJobName(text(record.info.job_name));
  out.setRound(record.info.round.value);
  out.setLayoutHash(record.info.layout_hash);
  out.setOptimizer(text(record.info.optimizer));
  out.setGeneration(record.generation);
  out.setBytes(record.bytes);
  auto chunks = out.initChunks(static_cast<unsigned>(record.chunks.size()));
  for (unsigned i = 0; i < chunks.size(); ++i) chunks.set(i, record.chunks[i].value);
  return seal_message(builder);
}

Result<SnapshotRecord> unseal_snapshot(std::string_view bytes, std::string_view what) {
  return unseal_message<SnapshotRecord, record::SnapshotRecord>(bytes, what, [](record::SnapshotRecord::Reader in) {
    SnapshotRecord out;
    out.info.job = JobId(in.getJob());
    out.info.job_name = read_text(in.getJobName(), kMaxNameBytes, "the job's name");
    out.info.round = Round(in.getRound());
    out.info.layout_hash = in.getLayoutHash();
    out.info.optimizer = read_text(in.getOptimizer(), kMaxNameBytes, "the optimizer's name");
    out.generation = in.getGeneration();
    out.bytes = in.getBytes();
    const auto chunks = in.getChunks();
    out.chunks.reserve(chunks.size());
    for (auto chunk : chunks) out.chunks.emplace_back(chunk);
    out.info.chunks = static_cast<std::uint32_t>(out.chunks.size());
    return out;
  });
}

std::string seal(const JobRecord& record, std::uint32_t format) {
  capnp::MallocMessageBuilder builder;
  auto out = builder.initRoot<record::JobRecord>();
  out.setFormat(format);
  out.setJob(record.job.value);
  out.setJobJson(text(record.job_json));
  auto layout = out.initLayout();
  write_tensors(layout.initTensors(static_cast<unsigned>(record.tensors.size())), record.tensors);
  write_owners(layout, record.chunk_elements, record.owners);
  out.setWorldSize(record.world_size);
  out.setView(record.view.value);
  out.setCommitted(record.committed.value);
  out.setInitialised(record.initialised);
  out.setFinished(record.finished);
  auto members = out.initMembers(static_cast<unsigned>(record.members.size()));
  for (unsigned i = 0; i < members.size(); ++i) members.set(i, record.members[i]);
  out.setMembersHash(record.view_nodes.hash);
  out.setMembersSince(record.view_nodes.since.value);
  out.setMembersFirst(record.view_nodes.first.value);
  out.setLastStop(text(clipped(record.last_stop)));
  codec::write_texts(out.initComputedWith(static_cast<unsigned>(record.computed_with.size())), record.computed_with);
  auto states = out.initRankStates(static_cast<unsigned>(record.rank_states.size()));
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
    out.job = JobId(in.getJob());
    out.job_json = read_text(in.getJobJson(), kMaxJobJsonBytes, "the job configuration");
    const auto layout = in.getLayout();
    out.tensors = read_tensors(layout.getTensors());
    out.chunk_elements = layout.getChunkElements();
    out.owners = read_owners(layout);
    out.world_size = in.getWorldSize();
    out.view = ViewId(in.getView());
    out.committed = Round(in.getCommitted());
    out.initialised = in.getInitialised();
    out.finished = in.getFinished();
    for (const std::uint32_t node : in.getMembers()) out.members.push_back(node);
    out.view_nodes = {in.getMembersHash(), ViewId(in.getMembersSince()), Round(in.getMembersFirst())};
    out.last_stop = read_text(in.getLastStop(), kMaxTextBytes, "the reason of the last stop");
    out.computed_with = read_kinds(in.getComputedWith());
    for (const auto entry : in.getRankStates()) {
      out.rank_states[{entry.getNode(), entry.getLocalRank()}] =
          read_data(entry.getState(), kMaxRankState, "a rank's state");
    }
    return out;
  });
}

}  // namespace tributary::records
