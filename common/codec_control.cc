#include <cmath>

#include "common/codec.h"
#include "common/codec_checkpoint.h"
#include "common/codec_peers.h"
#include "common/codec_util.h"
#include "schema/control.capnp.h"

namespace tributary {
namespace {

using Root = wire::ControlMessage;
using namespace codec;

constexpr std::string_view kKind = "control message";

static_assert(static_cast<int>(wire::LeaveKind::FINISHED) == static_cast<int>(LeaveKind::kFinished));
static_assert(static_cast<int>(wire::LeaveKind::STOPPED) == static_cast<int>(LeaveKind::kStopped));
static_assert(static_cast<int>(wire::LeaveKind::FAILED) == static_cast<int>(LeaveKind::kFailed));
static_assert(static_cast<int>(wire::StopKind::FINISHED) == static_cast<int>(StopKind::kFinished));
static_assert(static_cast<int>(wire::StopKind::STOPPED) == static_cast<int>(StopKind::kStopped));
static_assert(static_cast<int>(wire::StopKind::RESTART) == static_cast<int>(StopKind::kRestart));

// ---- Writing: one overload a message, in the order of common/messages.h (others are in the headers above). ----

void write_lists(auto out, const std::vector<std::vector<std::string>>& lists) {
  for (unsigned i = 0; i < out.size(); ++i) write_texts(out.init(i, size_of(lists[i])), lists[i]);
}

void write(Root::Builder out, const JoinJob& m) {
  auto body = out.initJoinJob();
  body.setJobJson(text(m.job_json));
  write_tensors(body.initTensors(size_of(m.tensors)), m.tensors);
  body.setNode(m.node.value);
  body.setNodes(m.nodes);
  body.setLocalWorldSize(m.local_world_size);
  body.setWorldSize(m.world_size);
  body.setCheckpointRound(m.checkpoint_round.value);
  body.setRedoJob(m.redo_job.value);
  body.setRedoFirst(m.redo_first.value);
  body.setRedoLast(m.redo_last.value);
  body.setRedoCapacity(m.redo_capacity);
  body.setRedoMembers(m.redo_members);
  body.setResidualFirst(m.residual_first.value);
  body.setResidualLast(m.residual_last.value);
  write_texts(body.initComputesWith(size_of(m.computes_with)), m.computes_with);
  body.setOnDevices(m.on_devices);
}

void write(Root::Builder out, const OpenJob& m) {
  auto body = out.initOpenJob();
  body.setJob(m.job.value);
  body.setView(m.view.value);
  body.setJobJson(text(m.job_json));
  auto layout = body.initLayout();
  write_tensors(layout.initTensors(size_of(m.tensors)), m.tensors);
  write_owners(layout, m.chunk_elements, m.owners);
  body.setNodes(m.nodes);
  body.setResume(m.resume);
  body.setResumeRound(m.resume_round.value);
  body.setKept(m.kept);
}

void write(Root::Builder out, const ShardKept& m) {
  auto body = out.initShardKept();
  body.setJob(m.job.value);
  body.setView(m.view.value);
  body.setAny(m.any);
  body.setMinVersion(m.min_version.value);
  body.setMaxVersion(m.max_version.value);
}

void write(Root::Builder out, const RoundFacts& m) {
  auto body = out.initRoundFacts();
  body.setJob(m.job.value);
  body.setView(m.view.value);
  body.setRound(m.round.value);
  write_gate(body.initBefore(), m.before);
  write_gate(body.initDecided(), m.decided);
  auto chunks = body.initChunks(size_of(m.chunks));
  for (unsigned i = 0; i < chunks.size(); ++i) {
    const ChunkFacts& chunk = m.chunks[i];
    chunks[i].setChunk(chunk.chunk.value);
    chunks[i].setFinite(chunk.facts.finite);
    chunks[i].setSumSquares(chunk.facts.sum_squares);
    chunks[i].setWeight(chunk.facts.weight);
  }
}

void write(Root::Builder out, const RoundDecision& m) {
  auto body = out.initRoundDecision();
  body.setJob(m.job.value);
  body.setView(m.view.value);
  body.setRound(m.round.value);
  write_gate(body.initDecision(), m.decision);
}

void write(Root::Builder out, const ShardReady& m) {
  auto body = out.initShardReady();
  body.setJob(m.job.value);
  body.setView(m.view.value);
  body.setOk(m.ok);
  body.setCode(static_cast<std::uint16_t>(m.code));
  body.setMessage(text(clipped(m.message)));
}

void write(Root::Builder out, const JobWelcome& m) {
  auto body = out.initJobWelcome();
  body.setJob(m.job.value);
  body.setView(m.view.value);
  write_owners(body.initLayout(), m.chunk_elements, m.owners);
  write_lists(body.initEndpoints(size_of(m.endpoints)), m.endpoints);
  body.setResume(m.resume);
  body.setResumeRound(m.resume_round.value);
  body.setName(text(m.name));
  write_lists(body.initLocals(size_of(m.locals)), m.locals);
  auto redo = body.initRedoAfter(size_of(m.redo_after));
  for (unsigned i = 0; i < redo.size(); ++i) redo.set(i, m.redo_after[i].value);
  body.setCommitted(m.committed.value);
  body.setRedo(m.redo);
  body.setNode(m.node.value);
  body.setNodes(m.nodes);
  body.setMembers(m.members);
  auto states = body.initRankStates(size_of(m.rank_states));
  for (unsigned i = 0; i < states.size(); ++i) states.set(i, data(m.rank_states[i]));
}

void write(Root::Builder out, const NodeRankState& m) {
  auto body = out.initNodeRankState();
  body.setJob(m.job.value);
  body.setView(m.view.value);
  body.setNode(m.node.value);
  body.setLocalRank(m.local_rank);
  body.setRound(m.kept.round.value);
  body.setState(data(m.kept.state));
}

void write(Root::Builder out, const PeerAddress& m) {
  auto body = out.initPeerAddress();
  body.setJob(m.job.value);
  body.setView(m.view.value);
  body.setNode(m.node.value);
  body.setKey(text(m.key));
  body.setValue(kj::arrayPtr(reinterpret_cast<const kj::byte*>(m.value.data()), m.value.size()));
}

void write(Root::Builder out, const PrepareSnapshot& m) {
  auto body = out.initPrepareSnapshot();
  body.setJob(m.job.value);
  body.setView(m.view.value);
}

void write(Root::Builder out, const SnapshotAt& m) {
  auto body = out.initSnapshotAt();
  body.setJob(m.job.value);
  body.setView(m.view.value);
  body.setRound(m.round.value);
}

void write(Root::Builder out, const SnapshotDone& m) {
  auto body = out.initSnapshotDone();
  body.setJob(m.job.value);
  body.setView(m.view.value);
  body.setRound(m.round.value);
  body.setOk(m.ok);
  body.setBytes(m.bytes);
  body.setMessage(text(clipped(m.message)));
}

void write(Root::Builder out, const SnapshotCommit& m) {
  auto body = out.initSnapshotCommit();
  body.setJob(m.job.value);
  body.setRound(m.round.value);
}

void write(Root::Builder out, const StopRequest& m) {
  auto body = out.initStopRequest();
  body.setJob(m.job.value);
  body.setView(m.view.value);
  body.setReason(text(clipped(m.reason)));
}

void write(Root::Builder out, const LeaveJob& m) {
  auto body = out.initLeaveJob();
  body.setJob(m.job.value);
  body.setView(m.view.value);
  body.setNode(m.node.value);
  body.setKind(static_cast<wire::LeaveKind>(m.kind));
  body.setRound(m.round.value);
  body.setMessage(text(clipped(m.message)));
  body.setName(text(m.name));
}

void write(Root::Builder out, const StopJob& m) {
  auto body = out.initStopJob();
  body.setJob(m.job.value);
  body.setView(m.view.value);
  body.setKind(static_cast<wire::StopKind>(m.kind));
  body.setRound(m.round.value);
  body.setReason(text(clipped(m.reason)));
}

void write(Root::Builder out, const DrainRequest& m) {
  out.initDrainRequest().setIncarnation(m.incarnation);
}

void write(Root::Builder out, const DrainDone&) {
  out.setDrainDone();
}

void write(Root::Builder out, const ControlError& m) {
  auto body = out.initError();
  body.setCode(static_cast<std::uint16_t>(m.code));
  body.setMessage(text(clipped(m.message)));
  body.setJob(text(clipped(m.job)));
}

// ---- Reading, in the same order. ----

PeerAddress read(wire::PeerAddress::Reader in) {
  const auto value = in.getValue();
  check_count(value.size(), kMaxPeerAddressBytes, "the peer's address");
  const auto* bytes = reinterpret_cast<const std::byte*>(value.begin());
  return {JobId(in.getJob()),
          ViewId(in.getView()),
          NodeRank(in.getNode()),
          read_text(in.getKey(), kMaxNameBytes, "the key of the peer's address"),
          {bytes, bytes + value.size()}};
}

std::vector<std::vector<std::string>> read_lists(capnp::List<capnp::List<capnp::Text>>::Reader in, const char* what) {
  check_count(in.size(), kMaxShards, "the list of servers");
  std::vector<std::vector<std::string>> lists;
  lists.reserve(in.size());
  for (auto lanes : in) lists.push_back(read_texts(lanes, kMaxLaneEndpoints, what));
  return lists;
}

JoinJob read(wire::JoinJob::Reader in) {
  JoinJob m;
  m.job_json = read_text(in.getJobJson(), kMaxJobJsonBytes, "the job configuration");
  m.tensors = read_tensors(in.getTensors());
  m.node = NodeRank(in.getNode());
  m.nodes = in.getNodes();
  m.local_world_size = in.getLocalWorldSize();
  m.world_size = in.getWorldSize();
  m.checkpoint_round = Round(in.getCheckpointRound());
  m.redo_job = JobId(in.getRedoJob());
  m.redo_first = Round(in.getRedoFirst());
  m.redo_last = Round(in.getRedoLast());
  m.redo_capacity = in.getRedoCapacity();
  m.redo_members = in.getRedoMembers();
  m.residual_first = Round(in.getResidualFirst());
  m.residual_last = Round(in.getResidualLast());
  m.computes_with = read_kinds(in.getComputesWith());
  m.on_devices = in.getOnDevices();
  return m;
}

RoundFacts read(wire::RoundFacts::Reader in) {
  RoundFacts m;
  m.job = JobId(in.getJob());
  m.view = ViewId(in.getView());
  m.round = Round(in.getRound());
  m.before = read_gate(in.getBefore());
  m.decided = read_gate(in.getDecided());
  for (const auto chunk : in.getChunks()) {
    if (chunk.getFinite() && !(std::isfinite(chunk.getSumSquares()) && chunk.getSumSquares() >= 0.0)) {
      throw Malformed{"the sum of squares of finite gradients is negative or not finite"};
    }
    m.chunks.push_back({ChunkIndex(chunk.getChunk()), {chunk.getSumSquares(), chunk.getWeight(), chunk.getFinite()}});
  }
  return m;
}

RoundDecision read(wire::RoundDecision::Reader in) {
  RoundDecision m;
  m.job = JobId(in.getJob());
  m.view = ViewId(in.getView());
  m.round = Round(in.getRound());
  m.decision = read_gate(in.getDecision());
  return m;
}

OpenJob read(wire::OpenJob::Reader in) {
  OpenJob m;
  m.job = JobId(in.getJob());
  m.view = ViewId(in.getView());
  m.job_json = read_text(in.getJobJson(), kMaxJobJsonBytes, "the job configuration");
  const auto layout = in.getLayout();
  m.tensors = read_tensors(layout.getTensors());
  m.chunk_elements = layout.getChunkElements();
  m.owners = read_owners(layout);
  m.nodes = in.getNodes();
  m.resume = in.getResume();
  m.resume_round = Round(in.getResumeRound());
  m.kept = in.getKept();
  return m;
}

JobWelcome read(wire::JobWelcome::Reader in) {
  JobWelcome m;
  m.job = JobId(in.getJob());
  m.view = ViewId(in.getView());
  const auto layout = in.getLayout();
  m.chunk_elements = layout.getChunkElements();
  m.owners = read_owners(layout);
  m.endpoints = read_lists(in.getEndpoints(), "the list of lane endpoints");
  m.resume = in.getResume();
  m.resume_round = Round(in.getResumeRound());
  m.name = read_text(in.getName(), kMaxNameBytes, "the job's name");
  m.locals = read_lists(in.getLocals(), "the list of the lanes' local names");
  const auto redo = in.getRedoAfter();
  check_count(redo.size(), kMaxShards, "the list of versions to redo after");
  for (const std::uint64_t version : redo) m.redo_after.emplace_back(version);
  m.committed = Round(in.getCommitted());
  m.redo = in.getRedo();
  m.node = NodeRank(in.getNode());
  m.nodes = in.getNodes();
  m.members = in.getMembers();
  const auto states = in.getRankStates();
  check_count(states.size(), kMaxRankStates, "the list of the ranks' states");
  for (const auto state : states) m.rank_states.push_back(read_data(state, kMaxRankState, "a rank's state"));
  return m;
}

std::string read_reason(capnp::Text::Reader in) {
  return read_text(in, kMaxTextBytes, "the message's text");
}

ControlMessage read(Root::Reader root) {
  switch (root.which()) {
    case Root::SERVER_HELLO:
    case Root::WORKER_HELLO:
    case Root::HELLO_REPLY:
    case Root::HEARTBEAT:
    case Root::HEARTBEAT_REPLY:
      return read_peer(root);
    case Root::JOIN_JOB:
      return read(root.getJoinJob());
    case Root::OPEN_JOB:
      return read(root.getOpenJob());
    case Root::SHARD_KEPT: {
      const auto body = root.getShardKept();
      return ShardKept{JobId(body.getJob()), ViewId(body.getView()), body.getAny(), Version(body.getMinVersion()),
                       Version(body.getMaxVersion())};
    }
    case Root::NODE_RANK_STATE: {
      const auto body = root.getNodeRankState();
      return NodeRankState{JobId(body.getJob()),
                           ViewId(body.getView()),
                           NodeRank(body.getNode()),
                           body.getLocalRank(),
                           {Round(body.getRound()), read_data(body.getState(), kMaxRankState, "the rank's state")}};
    }
    case Root::ROUND_FACTS:
      return read(root.getRoundFacts());
    case Root::ROUND_DECISION:
      return read(root.getRoundDecision());
    case Root::SHARD_READY: {
      const auto in = root.getShardReady();
      return ShardReady{JobId(in.getJob()), ViewId(in.getView()), in.getOk(), read_error_code(in.getCode()),
                        read_reason(in.getMessage())};
    }
    case Root::JOB_WELCOME:
      return read(root.getJobWelcome());
    case Root::PREPARE_SNAPSHOT: {
      const auto in = root.getPrepareSnapshot();
      return PrepareSnapshot{JobId(in.getJob()), ViewId(in.getView())};
    }
    case Root::SNAPSHOT_AT: {
      const auto in = root.getSnapshotAt();
      return SnapshotAt{JobId(in.getJob()), ViewId(in.getView()), Round(in.getRound())};
    }
    case Root::SNAPSHOT_DONE: {
      const auto in = root.getSnapshotDone();
      return SnapshotDone{JobId(in.getJob()), ViewId(in.getView()), Round(in.getRound()),
                          in.getOk(),         in.getBytes(),        read_reason(in.getMessage())};
    }
    case Root::SNAPSHOT_COMMIT: {
      const auto in = root.getSnapshotCommit();
      return SnapshotCommit{JobId(in.getJob()), Round(in.getRound())};
    }
    case Root::STOP_REQUEST: {
      const auto in = root.getStopRequest();
      return StopRequest{JobId(in.getJob()), ViewId(in.getView()), read_reason(in.getReason())};
    }
    case Root::LEAVE_JOB: {
      const auto in = root.getLeaveJob();
      return LeaveJob{JobId(in.getJob()),
                      ViewId(in.getView()),
                      NodeRank(in.getNode()),
                      read_enum(in.getKind(), LeaveKind::kFailed, "the kind of leave"),
                      Round(in.getRound()),
                      read_reason(in.getMessage()),
                      read_text(in.getName(), kMaxNameBytes, "the job's name")};
    }
    case Root::STOP_JOB: {
      const auto in = root.getStopJob();
      return StopJob{JobId(in.getJob()), ViewId(in.getView()),
                     read_enum(in.getKind(), StopKind::kRestart, "the kind of stop"), Round(in.getRound()),
                     read_reason(in.getReason())};
    }
    case Root::DRAIN_REQUEST:
      return DrainRequest{root.getDrainRequest().getIncarnation()};
    case Root::DRAIN_DONE:
      return DrainDone{};
    case Root::ERROR: {
      const auto in = root.getError();
      return ControlError{read_error_code(in.getCode()), read_reason(in.getMessage()), read_reason(in.getJob())};
    }
    case Root::PEER_ADDRESS:
      return read(root.getPeerAddress());
    case Root::WRITE_CHECKPOINT:
    case Root::SEAL_CHECKPOINT:
    case Root::LOAD_CHECKPOINT:
    case Root::DROP_CHECKPOINT:
    case Root::CHECKPOINT_DONE:
      return read_checkpoint(root);
  }
  throw Malformed{"its kind is " + std::to_string(static_cast<unsigned>(root.which())) +
                  ", which no known message has"};
}

}  // namespace

std::vector<std::byte> encode_control_as_version(const ControlMessage& message, std::uint16_t version) {
  capnp::MallocMessageBuilder builder;
  auto root = builder.initRoot<Root>();
  root.setProtocol(version);
  std::visit([&](const auto& m) { write(root, m); }, message);
  return to_bytes(builder);
}

std::vector<std::byte> encode_control(const ControlMessage& message) {
  return encode_control_as_version(message, kProtocolVersion);
}

Result<ControlMessage> decode_control(std::span<const std::byte> bytes) {
  if (auto status = check_protocol(kKind, bytes, kMaxControlBytes); !status) {
    return tl::unexpected<Error>(std::move(status.error()));
  }
  return decode_message<ControlMessage, Root>(bytes, [](Root::Reader root) { return read(root); })
      .map_error([&](const std::string& why) { return malformed(kKind, bytes.size(), why); });
}

}  // namespace tributary
