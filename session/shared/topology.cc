#include "session/shared/topology.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>

namespace tributary {
namespace {

bool is_set(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0';
}

Status read_number(const std::string& name, std::uint32_t& out) {
  if (!is_set(name.c_str())) {
    return fail(ErrorCode::kTopology,
                "environment variable " + name +
                    " is not set; start the trainer with `tributary run` or torchrun, or set RANK, WORLD_SIZE, "
                    "LOCAL_RANK, LOCAL_WORLD_SIZE and GROUP_RANK as torchrun does (or each with TRIBUTARY_ in front)");
  }
  const char* text = std::getenv(name.c_str());
  const char* end = text + std::strlen(text);
  const auto [stopped, error] = std::from_chars(text, end, out);
  if (error != std::errc{} || stopped != end) {
    return fail(ErrorCode::kTopology, "environment variable " + name + "='" + text +
                                          "' is no number from 0 to 4294967295; `tributary run` and torchrun set it");
  }
  return {};
}

std::string number(std::uint32_t value) {
  return std::to_string(value);
}

}  // namespace

std::string Topology::variable(const std::string& torchruns) {
  const std::string ours = "TRIBUTARY_" + torchruns;
  return is_set(ours.c_str()) ? ours : torchruns;
}

Result<Topology> Topology::from_environment() {
  Topology topology;
  const struct {
    const char* name;
    std::uint32_t* value;
  } variables[] = {{"RANK", &topology.rank},
                   {"WORLD_SIZE", &topology.world_size},
                   {"LOCAL_RANK", &topology.local_rank},
                   {"LOCAL_WORLD_SIZE", &topology.local_world_size},
                   {"GROUP_RANK", &topology.node_rank}};
  for (const auto& variable : variables) {
    if (auto status = read_number(Topology::variable(variable.name), *variable.value); !status)
      return tl::unexpected(status.error());
  }
  if (auto status = topology.validate(); !status) return tl::unexpected(status.error());
  return topology;
}

Status Topology::validate() const {
  if (world_size == 0) return fail(ErrorCode::kTopology, "world_size is 0; it counts all ranks and is at least 1");
  if (local_world_size == 0) {
    return fail(ErrorCode::kTopology, "local_world_size is 0; it counts the ranks of a node and is at least 1");
  }
  if (world_size % local_world_size != 0) {
    return fail(ErrorCode::kTopology, "world_size " + number(world_size) + " is no multiple of local_world_size " +
                                          number(local_world_size) + "; every node must have the same number of ranks");
  }
  if (local_rank >= local_world_size) {
    return fail(ErrorCode::kTopology, "local_rank " + number(local_rank) + " is not below local_world_size " +
                                          number(local_world_size) + "; local ranks count from 0");
  }
  const std::uint32_t nodes = world_size / local_world_size;
  if (node_rank >= nodes) {
    return fail(ErrorCode::kTopology, "node_rank " + number(node_rank) + " is not below the number of nodes " +
                                          number(nodes) + " (world_size / local_world_size)");
  }
  if (rank != std::uint64_t{node_rank} * local_world_size + local_rank) {
    return fail(ErrorCode::kTopology, "rank " + number(rank) + " does not fit node_rank " + number(node_rank) +
                                          " and local_rank " + number(local_rank) + ": with local_world_size " +
                                          number(local_world_size) + " it would be " +
                                          std::to_string(std::uint64_t{node_rank} * local_world_size + local_rank));
  }
  return {};
}

Result<std::chrono::milliseconds> attach_timeout_of_environment() {
  const char* text = std::getenv(kAttachTimeoutVariable);
  if (!text || !*text) return kAttachTimeout;
  std::uint32_t seconds = 0;
  const char* end = text + std::strlen(text);
  const auto [stopped, error] = std::from_chars(text, end, seconds);
  if (error != std::errc{} || stopped != end || seconds == 0 || seconds > kMaxAttachTimeout.count()) {
    return fail(ErrorCode::kInvalidArgument, std::string("environment variable ") + kAttachTimeoutVariable + "='" +
                                                 text + "' is no number of seconds from 1 to " +
                                                 std::to_string(kMaxAttachTimeout.count()));
  }
  return std::chrono::seconds(seconds);
}

}  // namespace tributary
