#include "common/codec_checkpoint.h"

#include "common/assert.h"

namespace tributary::codec {

using Root = wire::ControlMessage;

void write(wire::ControlMessage::Builder out, const WriteCheckpoint& m) {
  auto body = out.initWriteCheckpoint();
  body.setOperation(m.operation);
  body.setJob(m.job.value);
  body.setRound(m.round.value);
  body.setDirectory(text(m.directory));
}

void write(wire::ControlMessage::Builder out, const SealCheckpoint& m) {
  auto body = out.initSealCheckpoint();
  body.setOperation(m.operation);
  body.setDirectory(text(m.directory));
  body.setTarget(text(m.target));
  body.setManifest(text(m.manifest));
}

void write(wire::ControlMessage::Builder out, const LoadCheckpoint& m) {
  auto body = out.initLoadCheckpoint();
  body.setOperation(m.operation);
  body.setJob(m.job.value);
  body.setName(text(m.name));
  body.setManifest(text(m.manifest));
  body.setDirectory(text(m.directory));
  write_owners(body.initOwners(), 0, m.owners);
}

void write(wire::ControlMessage::Builder out, const DropCheckpoint& m) {
  auto body = out.initDropCheckpoint();
  body.setJob(m.job.value);
  body.setDirectory(text(m.directory));
}

void write(wire::ControlMessage::Builder out, const CheckpointDone& m) {
  auto body = out.initCheckpointDone();
  body.setOperation(m.operation);
  body.setOk(m.ok);
  body.setCode(static_cast<std::uint16_t>(m.code));
  body.setMessage(text(clipped(m.message)));
  body.setBytes(m.bytes);
  body.setChecksum(text(m.checksum));
  body.setUnchanged(m.unchanged);
}

namespace {

std::string read_reason(capnp::Text::Reader in) {
  return read_text(in, kMaxTextBytes, "the message's text");
}

std::string read_path(capnp::Text::Reader in) {
  return read_text(in, kMaxPathBytes, "a checkpoint's path");
}

LoadCheckpoint read(wire::LoadCheckpoint::Reader in) {
  return {in.getOperation(),
          JobId(in.getJob()),
          read_text(in.getName(), kMaxNameBytes, "the job's name"),
          read_text(in.getManifest(), kMaxNameBytes, "the manifest's checksum"),
          read_path(in.getDirectory()),
          read_owners(in.getOwners())};
}

}  // namespace

ControlMessage read_checkpoint(Root::Reader root) {
  switch (root.which()) {
    case Root::WRITE_CHECKPOINT: {
      const auto in = root.getWriteCheckpoint();
      return WriteCheckpoint{in.getOperation(), JobId(in.getJob()), Round(in.getRound()), read_path(in.getDirectory())};
    }
    case Root::SEAL_CHECKPOINT: {
      const auto in = root.getSealCheckpoint();
      return SealCheckpoint{in.getOperation(), read_path(in.getDirectory()), read_path(in.getTarget()),
                            read_text(in.getManifest(), kMaxControlBytes, "a checkpoint's manifest")};
    }
    case Root::LOAD_CHECKPOINT:
      return read(root.getLoadCheckpoint());
    case Root::DROP_CHECKPOINT: {
      const auto in = root.getDropCheckpoint();
      return DropCheckpoint{JobId(in.getJob()), read_path(in.getDirectory())};
    }
    case Root::CHECKPOINT_DONE: {
      const auto in = root.getCheckpointDone();
      return CheckpointDone{in.getOperation(),
                            in.getOk(),
                            read_error_code(in.getCode()),
                            read_reason(in.getMessage()),
                            in.getBytes(),
                            read_text(in.getChecksum(), kMaxNameBytes, "a file's checksum"),
                            in.getUnchanged()};
    }
    default:
      break;
  }
  TRIB_ASSERT(false);
  return DropCheckpoint{};
}

}  // namespace tributary::codec
