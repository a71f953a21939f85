#include "common/doctor/gpu_facts.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "common/devices/cuda_libraries.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

LibraryFact nccl_fact() {
  const Result<DynamicLibrary> nccl = open_nccl();
  if (!nccl) return {.file = {}, .version = {}, .problem = nccl.error().message, .left_out = nccl_left_out()};
  return {.file = nccl->path(), .version = nccl_version(*nccl), .problem = {}, .left_out = nccl_left_out()};
}

}  // namespace

GpuFacts gather_gpu_facts(GpuLook look) {
  GpuFacts facts;
  facts.cuda = inspect_cuda();
  const int count = static_cast<int>(facts.cuda.devices.size());
  for (int from = 0; from < count; ++from) {
    for (int to = 0; to < count; ++to) {
      if (from != to && !cuda_peer_access(from, to)) facts.no_peer_access.emplace_back(from, to);
    }
    const bool usable = facts.cuda.devices[static_cast<std::size_t>(from)].unusable.empty();
    if (look == GpuLook::kThorough) facts.ipc_problems.push_back(usable ? cuda_ipc_problem(from) : std::string());
  }
  facts.nccl = nccl_fact();
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const auto equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    auto* list = text.starts_with("NCCL_")   ? &facts.nccl_environment
                 : text.starts_with("CUDA_") ? &facts.cuda_environment
                                             : nullptr;
    if (list != nullptr) list->emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  std::ranges::sort(facts.nccl_environment);
  std::ranges::sort(facts.cuda_environment);
  const char* home = std::getenv("HOME");
  for (const std::string& file :
       {std::string("/etc/nccl.conf"), home == nullptr ? std::string() : std::string(home) + "/.nccl.conf"}) {
    std::error_code ignored;
    if (!file.empty() && fs::exists(file, ignored)) facts.nccl_files.push_back(file);
  }
  return facts;
}

}  // namespace tributary
