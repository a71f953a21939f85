#include "common/codec.h"
#include "common/codec_util.h"
#include "schema/attach.capnp.h"

namespace tributary {
namespace {

using Root = wire::AttachMessage;
using namespace codec;

constexpr std::string_view kKind = "attach message";

void write(Root::Builder out, const AttachRequest& m) {
  auto body = out.initRequest();
  body.setJobJson(text(m.job_json));
  body.setRank(m.rank);
  body.setLocalRank(m.local_rank);
  body.setWorldSize(m.world_size);
  body.setLocalWorldSize(m.local_world_size);
  body.setNodeRank(m.node_rank);
  body.setPid(m.pid);
  write_tensors(body.initTensors(size_of(m.tensors)), m.tensors);
  body.setDevice(text(m.device));
  body.setGradientsMove(m.gradients_move);
  body.setComputesWith(text(clipped(m.computes_with, kMaxComputeKindBytes)));
}

void write(Root::Builder out, const AttachReply& m) {
  auto body = out.initReply();
  body.setJob(m.job.value);
  body.setView(m.view.value);
  body.setResume(m.resume);
  body.setResumeRound(m.resume_round.value);
  write_owners(body.initLayout(), m.chunk_elements, m.owners);
  body.setLanes(m.lanes);
  body.setNodeRegionBytes(m.node_region_bytes);
  body.setGradientRegionBytes(m.gradient_region_bytes);
  body.setDevice(text(m.device));
  body.setGradientHandle(data(m.gradient_handle));
  body.setParameterHandle(data(m.parameter_handle));
  body.setDeviceBytes(m.device_bytes);
  body.setRedo(m.redo);
  body.setRank(m.rank);
  body.setWorldSize(m.world_size);
  body.setNodeRank(m.node_rank);
  body.setState(data(m.state));
  body.setRingOffset(m.ring.offset);
  body.setRingSlotBytes(m.ring.slot_bytes);
  body.setRingSlots(m.ring.slots);
}

void write(Root::Builder out, const RankState& m) {
  auto body = out.initRankState();
  body.setRound(m.round.value);
  body.setState(data(m.state));
}

void write(Root::Builder out, const InitialValues&) {
  out.setInitialValues();
}

void write(Root::Builder out, const Detach& m) {
  auto body = out.initDetach();
  body.setKind(static_cast<wire::LeaveKind>(m.kind));
  body.setMessage(text(clipped(m.message)));
}

void write(Root::Builder out, const DetachReply&) {
  out.setDetachReply();
}

void write(Root::Builder out, const AttachStopped& m) {
  auto body = out.initStopped();
  body.setKind(static_cast<wire::StopKind>(m.kind));
  body.setRound(m.round.value);
  body.setReason(text(clipped(m.reason)));
}

void write(Root::Builder out, const AttachError& m) {
  auto body = out.initError();
  body.setCode(static_cast<std::uint16_t>(m.code));
  body.setMessage(text(clipped(m.message)));
}

AttachRequest read(wire::AttachRequest::Reader in) {
  AttachRequest m;
  m.job_json = read_text(in.getJobJson(), kMaxJobJsonBytes, "the job configuration");
  m.rank = in.getRank();
  m.local_rank = in.getLocalRank();
  m.world_size = in.getWorldSize();
  m.local_world_size = in.getLocalWorldSize();
  m.node_rank = in.getNodeRank();
  m.pid = in.getPid();
  m.tensors = read_tensors(in.getTensors());
  m.device = read_text(in.getDevice(), kMaxDeviceUuid, "the device");
  m.gradients_move = in.getGradientsMove();
  m.computes_with = read_text(in.getComputesWith(), kMaxComputeKindBytes, "what the rank computes with");
  return m;
}

AttachReply read(wire::AttachReply::Reader in) {
  AttachReply m;
  m.job = JobId(in.getJob());
  m.view = ViewId(in.getView());
  m.resume = in.getResume();
  m.resume_round = Round(in.getResumeRound());
  const auto layout = in.getLayout();
  m.chunk_elements = layout.getChunkElements();
  m.owners = read_owners(layout);
  m.lanes = in.getLanes();
  m.node_region_bytes = in.getNodeRegionBytes();
  m.gradient_region_bytes = in.getGradientRegionBytes();
  m.device = read_text(in.getDevice(), kMaxDeviceUuid, "the device");
  m.gradient_handle = read_data(in.getGradientHandle(), kMaxMemoryHandle, "the gradients' memory handle");
  m.parameter_handle = read_data(in.getParameterHandle(), kMaxMemoryHandle, "the parameters' memory handle");
  m.device_bytes = in.getDeviceBytes();
  m.redo = in.getRedo();
  m.rank = in.getRank();
  m.world_size = in.getWorldSize();
  m.node_rank = in.getNodeRank();
  m.state = read_data(in.getState(), kMaxRankState, "the rank's state");
  m.ring = {in.getRingOffset(), in.getRingSlotBytes(), in.getRingSlots()};
  return m;
}

AttachMessage read(Root::Reader root) {
  switch (root.which()) {
    case Root::REQUEST:
      return read(root.getRequest());
    case Root::REPLY:
      return read(root.getReply());
    case Root::INITIAL_VALUES:
      return InitialValues{};
    case Root::RANK_STATE: {
      const auto in = root.getRankState();
      return RankState{Round(in.getRound()), read_data(in.getState(), kMaxRankState, "the rank's state")};
    }
    case Root::DETACH: {
      const auto in = root.getDetach();
      return Detach{read_enum(in.getKind(), LeaveKind::kFailed, "the kind of leave"),
                    read_text(in.getMessage(), kMaxTextBytes, "the message's text")};
    }
    case Root::DETACH_REPLY:
      return DetachReply{};
    case Root::STOPPED: {
      const auto in = root.getStopped();
      return AttachStopped{read_enum(in.getKind(), StopKind::kRestart, "the kind of stop"), Round(in.getRound()),
                           read_text(in.getReason(), kMaxTextBytes, "the message's text")};
    }
    case Root::ERROR: {
      const auto in = root.getError();
      return AttachError{read_error_code(in.getCode()),
                         read_text(in.getMessage(), kMaxTextBytes, "the message's text")};
    }
  }
  throw Malformed{"its kind is " + std::to_string(static_cast<unsigned>(root.which())) +
                  ", which no known message has"};
}

}  // namespace

std::vector<std::byte> encode_attach_as_version(const AttachMessage& message, std::uint16_t version) {
  capnp::MallocMessageBuilder builder;
  auto root = builder.initRoot<Root>();
  root.setProtocol(version);
  std::visit([&](const auto& m) { write(root, m); }, message);
  return to_bytes(builder);
}

std::vector<std::byte> encode_attach(const AttachMessage& message) {
  return encode_attach_as_version(message, kProtocolVersion);
}

Result<AttachMessage> decode_attach(std::span<const std::byte> bytes) {
  if (auto status = check_protocol(kKind, bytes, kMaxAttachBytes); !status) {
    return tl::unexpected<Error>(std::move(status.error()));
  }
  return decode_message<AttachMessage, Root>(bytes, [](Root::Reader root) { return read(root); })
      .map_error([&](const std::string& why) { return malformed(kKind, bytes.size(), why); });
}

}  // namespace tributary
