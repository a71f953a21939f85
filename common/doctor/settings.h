// Settings that a cluster's daemons of one kind should have in common: their program, and the keys of their
// configuration that are not about their own machine. Pure, except for the program's file.
#pragma once

#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/wire/doctor_messages.h"

namespace tributary {

// "program" first: its version, and an identification of the build.
std::vector<Setting> settings_of(const ServerConfig& config);
std::vector<Setting> settings_of(const WorkerConfig& config);

struct DaemonSettings {
  std::string daemon;  // "worker w1"
  std::vector<Setting> settings;
};
// Returns a note for each setting in which daemons differ, with each daemon's value. REQUIRES: all of one kind.
std::vector<Check> differences(const std::vector<DaemonSettings>& daemons);

}  // namespace tributary
