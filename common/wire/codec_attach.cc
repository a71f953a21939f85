#include "common/wire/codec.h"
#include "common/wire/codec_fields.h"
#include "schema/attach.capnp.h"

namespace tributary {

std::vector<std::byte> encode_attach_as_version(const AttachMessage& message, std::uint16_t version) {
  return codec::encode_message<wire::AttachMessage>(message, version);
}

std::vector<std::byte> encode_attach(const AttachMessage& message) {
  return encode_attach_as_version(message, kProtocolVersion);
}

Result<AttachMessage> decode_attach(std::span<const std::byte> bytes) {
  return codec::decode_message<wire::AttachMessage, AttachMessage>("attach message", bytes, kMaxAttachBytes);
}

}  // namespace tributary
