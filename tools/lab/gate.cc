#include "tools/lab/gate.h"

#include <filesystem>
#include <fstream>
#include <thread>

namespace tributary::lab {
namespace {

constexpr std::chrono::milliseconds kGatePoll{2};

Status touch(const std::string& path) {
  std::ofstream out(path);
  out << "\n";
  out.close();
  if (!out) return fail(ErrorCode::kIo, "cannot write " + path);
  return {};
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

std::string rank_file(const std::string& folder, const std::string& name, std::uint32_t rank) {
  return folder + "/" + name + "." + std::to_string(rank);
}

std::string open_file(const std::string& folder, const std::string& name) {
  return folder + "/" + name + ".open";
}

}  // namespace

Status pass_gate(const std::string& folder, const std::string& name, std::uint32_t rank) {
  if (folder.empty()) return {};
  if (auto ok = touch(rank_file(folder, name, rank)); !ok) return ok;
  const auto until = std::chrono::steady_clock::now() + kGatePatience;
  while (!exists(open_file(folder, name))) {
    if (std::chrono::steady_clock::now() >= until)
      return fail(ErrorCode::kTimeout, "the gate \"" + name + "\" in " + folder + " was not opened");
    std::this_thread::sleep_for(kGatePoll);
  }
  return {};
}

bool at_gate(const std::string& folder, const std::string& name, std::uint32_t rank) {
  return exists(rank_file(folder, name, rank));
}

Status open_gate(const std::string& folder, const std::string& name) {
  return touch(open_file(folder, name));
}

}  // namespace tributary::lab
