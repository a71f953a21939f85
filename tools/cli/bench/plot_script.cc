#include "tools/cli/bench/plot_script.h"

#include <chrono>
#include <filesystem>

#include "tools/cluster/process.h"
#include "tools/cluster/script.h"

namespace tributary::cli {
namespace {

constexpr std::chrono::minutes kPlotTimeout{2};
constexpr int kNoMatplotlib = 3;

// Debian's python3-matplotlib belongs to the first; another one on PATH may not see it.
std::vector<std::string> python() {
  std::error_code error;
  if (std::filesystem::exists("/usr/bin/python3", error)) return {"/usr/bin/python3"};
  return {"/usr/bin/env", "python3"};
}

}  // namespace

Status draw_plots(const std::string& kind, const std::string& data, const std::string& page) {
  const auto path = script_named("draw.py");
  if (!path) return tl::unexpected<Error>(path.error());
  ProcessOptions options;
  options.argv = python();
  const std::string interpreter = options.argv.back();
  options.argv.push_back(*path);
  options.argv.insert(options.argv.end(), {kind, data, page});
  auto child = Process::spawn(options);
  if (!child) {
    return fail(ErrorCode::kNotFound, "plots need Python: " + child.error().message + "; install python3-matplotlib");
  }
  const auto status = child->wait(kPlotTimeout);
  if (!status) return fail(ErrorCode::kTimeout, *path + " did not make " + page + " within two minutes");
  if (status->code == kNoMatplotlib) {
    return fail(ErrorCode::kNotFound,
                "plots need matplotlib, which " + interpreter + " does not have; install python3-matplotlib");
  }
  if (!status->ok()) return fail(ErrorCode::kIo, *path + " could not make " + page + ": it " + status->describe());
  return {};
}

}  // namespace tributary::cli
