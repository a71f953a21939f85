#include "common/doctor/settings.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <string_view>
#include <type_traits>

#include "common/base/checksum.h"
#include "common/base/printed.h"
#include "common/base/version.h"
#include "common/config/daemon_fields.h"
#include "common/doctor/check_list.h"

namespace tributary {
namespace {

constexpr std::string_view kProgram = "program";
// Keys of a machine or of one daemon, whose values may differ.
constexpr std::string_view kOwn[] = {"server.index",
                                     "server.bind",
                                     "server.advertise",
                                     "server.admin",
                                     "server.host",
                                     "server.bandwidth",
                                     "server.coordinator",
                                     "worker.name",
                                     "worker.socket",
                                     "worker.admin",
                                     "worker.host",
                                     "worker.bandwidth",
                                     "worker.address",
                                     "worker.coordinator",
                                     "worker.serve_coordinator",
                                     "security.keys",
                                     "security.coordinator_key",
                                     "security.authorized",
                                     "security.admin_token",
                                     "security.admin_hosts",
                                     "limits.max_memory",
                                     "limits.max_shared_memory",
                                     "log.file",
                                     "log.level",
                                     "store.path"};

std::string text_of(const std::string& value) {
  return value;
}
std::string text_of(bool value) {
  return value ? "true" : "false";
}
template <class Number>
requires std::is_arithmetic_v<Number> std::string text_of(Number value) {
  return std::to_string(value);
}
template <IsChoice Choice>
std::string text_of(Choice value) {
  return word(value);
}
std::string text_of(const std::vector<std::string>& values) {
  return listed(values);
}

// Identifies this process's program: two processes of one program have the same text.
std::string program() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  Checksum128 checksum;
  std::vector<char> piece(1u << 20);
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
    checksum.add(piece.data(), static_cast<std::size_t>(file.gcount()));
  }
  constexpr std::size_t kDigits = 12;
  return std::string(kVersion) + " (build " + checksum.hex().substr(0, kDigits) + ")";
}

template <class Config>
std::vector<Setting> all_of(const Config& config, const auto& visit) {
  std::vector<Setting> settings{{std::string(kProgram), program()}};
  visit(config, [&](const std::string& section, const std::string& name, const auto& value) {
    const std::string key = section + "." + name;
    if (std::ranges::find(kOwn, key) == std::end(kOwn)) settings.push_back({key, text_of(value)});
  });
  return settings;
}

}  // namespace

std::vector<Setting> settings_of(const ServerConfig& config) {
  return all_of(config, [](const auto& c, const auto& key) { visit_server_fields(c, key); });
}

std::vector<Setting> settings_of(const WorkerConfig& config) {
  return all_of(config, [](const auto& c, const auto& key) { visit_worker_fields(c, key); });
}

std::vector<Check> differences(const std::vector<DaemonSettings>& daemons) {
  CheckList out;
  out.section("configurations");
  std::vector<std::string> keys;  // in the order of the first that has them
  std::map<std::string, std::map<std::string, std::vector<std::string>>> who;  // by key and value
  for (const DaemonSettings& daemon : daemons) {
    for (const Setting& setting : daemon.settings) {
      if (!who.contains(setting.key)) keys.push_back(setting.key);
      who[setting.key][setting.value].push_back(daemon.daemon);
    }
  }
  for (const std::string& key : keys) {
    if (who[key].size() < 2) continue;
    std::string found;
    for (const auto& [value, names] : who[key])
      found += (found.empty() ? "" : "; ") + ("\"" + value + "\" on ") + listed(names, " and ");
    out.note(key, found,
             key == kProgram ? "the same program everywhere leaves less to wonder about: install one release"
                             : "make it the same everywhere, unless it is meant to differ");
  }
  return out.take();
}

}  // namespace tributary
