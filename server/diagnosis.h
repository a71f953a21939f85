// A server's diagnosis of itself, on request (docs/doctor.md).
#pragma once

#include <atomic>

#include "common/config/config.h"
#include "common/wire/doctor_messages.h"

namespace tributary {

// Blocks for some seconds, unless `stopping`. Any thread.
Diagnosed diagnose(const ServerConfig& config, const Diagnose& order, const std::atomic<bool>& stopping);

}  // namespace tributary
