#include "tools/cluster/script.h"

#include <filesystem>

#include "tools/cluster/process.h"

namespace tributary {

Result<std::string> script_named(const std::string& name) {
  const std::filesystem::path tool = executable_dir();
  std::string sought;
  for (const char* relative : {"../bench/", "../../../bench/"}) {
    const std::filesystem::path path = (tool / (relative + name)).lexically_normal();
    std::error_code error;
    if (std::filesystem::exists(path, error)) return path.string();
    sought += (sought.empty() ? "" : " nor ") + path.string();
  }
  return fail(ErrorCode::kNotFound,
              "the script " + name + " is neither " + sought + "; use the tool from where it was built or installed");
}

}  // namespace tributary
