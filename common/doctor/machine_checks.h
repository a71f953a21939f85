// Judges the facts of a machine for a run of Tributary, line by line.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "common/doctor/machine_facts.h"
#include "common/wire/doctor_messages.h"

namespace tributary {

std::vector<Check> judge(const MachineFacts& facts);
// [{"name", "addresses", "mbit_per_s", "mtu"}]
nlohmann::ordered_json interfaces_json(const std::vector<NetworkInterface>& interfaces);

}  // namespace tributary
