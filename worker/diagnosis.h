// A worker's diagnosis of itself, on request (docs/doctor.md).
#pragma once

#include <atomic>
#include <memory>

#include "common/config/config.h"
#include "common/security/keys.h"
#include "common/wire/doctor_messages.h"

namespace tributary {

struct DiagnosedWorker {
  WorkerConfig config;                 // as the worker runs
  WorkerConfig configured;             // as its file has it
  std::shared_ptr<const KeyPair> own;  // null without keys
};
// Blocks for some seconds, and while it measures until `stopping`. Any thread.
Diagnosed diagnose(const DiagnosedWorker& worker, const Diagnose& order, const std::atomic<bool>& stopping);

}  // namespace tributary
