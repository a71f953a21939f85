// Permitted values of a configuration, independent of its source: the TOML reader adds file and line to these faults,
// the JSON reader the peer's key.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/config.h"

namespace tributary {

inline constexpr std::size_t kMaxJobName = 128;  // characters
inline constexpr std::uint16_t kMaxServers = 1024;
inline constexpr std::uint16_t kMaxLanes = 64;
inline constexpr std::size_t kMaxHiddenLayers = 64;
inline constexpr std::uint32_t kMaxHiddenSize = 1u << 20;
inline constexpr std::uint32_t kMaxLocalSteps = 1'000'000;

// One impossible value. `message` names the permitted values, as the continuation of "optimizer.lr = -1: ".
struct Fault {
  std::string key;         // "optimizer.lr"
  std::string because_of;  // another key whose value makes this one impossible; empty: none
  std::string message;
};

// "optimizer.lr", of "optimizer" and "lr".
inline std::string dotted_key(std::string_view section, std::string_view key) {
  return std::string(section) + "." + std::string(key);
}

std::vector<Fault> faults_of(const JobConfig& config);
std::vector<Fault> faults_of(const ServerConfig& config);
std::vector<Fault> faults_of(const WorkerConfig& config);

// The defaults of [optimizer]: in mode local_sgd plain sgd averages the replicas (lr 1).
OptimizerConfig default_outer_optimizer(Mode mode, std::string_view name);

// Returns the fault of a key that this job does not use ("optimizer.momentum" with adamw), with the key whose choice
// rules it out and the choices that use it; none if the job uses it.
std::optional<Fault> inapplicable(const JobConfig& config, const std::string& key);

}  // namespace tributary
