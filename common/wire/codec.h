// Messages <-> Cap'n Proto bytes. Decoding never trusts its input: truncated, oversized, misaligned or nonsensical
// bytes give kMalformed, another protocol version gives kProtocolVersion with both numbers, an unknown kind
// kUnknownKind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/wire/messages.h"

namespace tributary {

// Encodes into `out` (at least kMaxErrorHeader bytes, 8-byte aligned) and returns the used prefix. Allocates only for
// ErrorReply. place: of the payload, if it has no frame.
std::span<const std::byte> encode_data(const DataMessage& message, std::span<std::byte> out,
                                       const PayloadPlace& place = {});
// Decodes `bytes` of any alignment; copies into an aligned buffer on the stack. Allocates only an ErrorReply's text.
// place: set to the message's place, unchecked.
Result<DataMessage> decode_data(std::span<const std::byte> bytes, PayloadPlace* place = nullptr);

std::vector<std::byte> encode_control(const ControlMessage& message);
Result<ControlMessage> decode_control(std::span<const std::byte> bytes);

std::vector<std::byte> encode_attach(const AttachMessage& message);
Result<AttachMessage> decode_attach(std::span<const std::byte> bytes);

// For tests of version refusal: the same bytes as if written by a peer of another protocol version.
std::vector<std::byte> encode_control_as_version(const ControlMessage& message, std::uint16_t version);
std::vector<std::byte> encode_data_as_version(const DataMessage& message, std::uint16_t version);
std::vector<std::byte> encode_attach_as_version(const AttachMessage& message, std::uint16_t version);

}  // namespace tributary
