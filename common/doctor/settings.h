// What a cluster's daemons of one kind are expected to have in common: their program, and the keys of their
// configuration that are not about their own machine. Pure, but for the program's file.
#pragma once

#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/wire/doctor_messages.h"

namespace tributary {

// "program" first: its version, and what tells one build from another.
std::vector<Setting> settings_of(const ServerConfig& config);
std::vector<Setting> settings_of(const WorkerConfig& config);

struct DaemonSettings {
  std::string daemon;  // "worker w1"
  std::vector<Setting> settings;
};
// A note for each setting in which some differ, with who has what. All of one kind.
std::vector<Check> differences(const std::vector<DaemonSettings>& daemons);

}  // namespace tributary
