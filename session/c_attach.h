// What tributary_attach() is told (session/tributary.h), as the session takes it. Everything in it is the caller's:
// what cannot be is kInvalidArgument or kConfig, with the member's name.
#pragma once

#include <memory>
#include <vector>

#include "session/session.h"
#include "session/tributary.h"

struct tributary_keepsake {
  std::shared_ptr<tributary::SessionKeepsake> kept = std::make_shared<tributary::SessionKeepsake>();
};

namespace tributary::c {

struct AttachArguments {
  SessionOptions options;
  std::vector<TensorSpec> tensors;
};
Result<AttachArguments> arguments_of(const tributary_options* options);

}  // namespace tributary::c
