// The arguments of tributary_attach() (session/tributary.h), in the session's types. The caller sets all of them: an
// impossible value is kInvalidArgument or kConfig, with the member's name.
#pragma once

#include <memory>
#include <vector>

#include "session/session.h"
#include "session/tributary.h"

struct tributary_recovery_handle {
  std::shared_ptr<tributary::RecoveryHandle> kept = std::make_shared<tributary::RecoveryHandle>();
};

namespace tributary::c {

struct AttachArguments {
  SessionOptions options;
  std::vector<TensorSpec> tensors;
};
Result<AttachArguments> arguments_of(const tributary_options* options);

}  // namespace tributary::c
