#include "common/wire/messages.h"

namespace tributary {

ControlMessage::ControlMessage() = default;
ControlMessage::ControlMessage(const ControlMessage& other) = default;
ControlMessage::ControlMessage(ControlMessage&& other) noexcept = default;
ControlMessage& ControlMessage::operator=(const ControlMessage& other) = default;
ControlMessage& ControlMessage::operator=(ControlMessage&& other) noexcept = default;
ControlMessage::~ControlMessage() = default;

}  // namespace tributary
