#include "common/wire/codec.h"
#include "common/wire/codec_fields.h"
#include "schema/control.capnp.h"

namespace tributary {
namespace {

static_assert(static_cast<int>(wire::LeaveKind::FINISHED) == static_cast<int>(LeaveKind::kFinished));
static_assert(static_cast<int>(wire::LeaveKind::STOPPED) == static_cast<int>(LeaveKind::kStopped));
static_assert(static_cast<int>(wire::LeaveKind::FAILED) == static_cast<int>(LeaveKind::kFailed));
static_assert(static_cast<int>(wire::LeaveKind::FINISHES_ALL) == static_cast<int>(LeaveKind::kFinishesAll));
static_assert(static_cast<int>(wire::StopKind::FINISHED) == static_cast<int>(StopKind::kFinished));
static_assert(static_cast<int>(wire::StopKind::STOPPED) == static_cast<int>(StopKind::kStopped));
static_assert(static_cast<int>(wire::StopKind::RESTART) == static_cast<int>(StopKind::kRestart));

}  // namespace

std::vector<std::byte> encode_control_as_version(const ControlMessage& message, std::uint16_t version) {
  return codec::encode_message<wire::ControlMessage>(message, version);
}

std::vector<std::byte> encode_control(const ControlMessage& message) {
  return encode_control_as_version(message, kProtocolVersion);
}

Result<ControlMessage> decode_control(std::span<const std::byte> bytes) {
  return codec::decode_message<wire::ControlMessage, ControlMessage>("control message", bytes, kMaxControlBytes);
}

}  // namespace tributary
