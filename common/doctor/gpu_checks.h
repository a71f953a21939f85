// Judges the facts of a machine's GPUs for a run of Tributary, line by line.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "common/doctor/gpu_facts.h"
#include "common/doctor/machine_facts.h"
#include "common/wire/doctor_messages.h"

namespace tributary {

// interfaces: of the machine, which NCCL's settings name.
std::vector<Check> judge(const GpuFacts& facts, const std::vector<NetworkInterface>& interfaces);
// {"cuda": {...}, "nccl": {...}, "nccl_environment": {...}}
nlohmann::ordered_json gpus_json(const GpuFacts& facts);

}  // namespace tributary
