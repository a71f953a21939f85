#include "tools/cluster/run_folder.h"

#include <filesystem>
#include <regex>
#include <system_error>
#include <vector>

#include "common/files/durable_file.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

constexpr char kMarkerText[] = "Tributary keeps a run here; --fresh removes it.\n";
// Files that LocalCluster and `tributary up` write.
bool is_run_file(const std::string& name) {
  static const std::regex names(R"((cluster|summary)\.json(\.new)?|(server|worker)-\d+\.toml(\.new)?|admin\.token)");
  return std::regex_match(name, names);
}
bool is_store(const std::string& name) {
  static const std::regex names(R"(store-(worker-)?\d+)");
  return std::regex_match(name, names);
}
bool is_log(const std::string& name) {
  static const std::regex names(R"((server|worker|trainer|gloo)-\d+\.(log|out))");
  return std::regex_match(name, names);
}

bool has_marker(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / kRunMarker, error);
}

Status remove_path(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return fail(ErrorCode::kIo, "cannot remove " + path.string() + ": " + error.message());
  return {};
}

Result<std::vector<fs::path>> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(at->path());
  }
  if (error) return fail(ErrorCode::kIo, "cannot list " + folder.string() + ": " + error.message());
  return entries;
}

}  // namespace

Status claim_run_folder(const std::string& folder) {
  if (has_marker(folder)) return {};
  const fs::path path(folder);
  const auto entries = entries_of(path);
  if (!entries) return tl::unexpected(entries.error());
  for (const fs::path& entry : *entries) {
    const std::string name = entry.filename();
    if (!is_run_file(name) && !is_store(name) && name != "logs" && name != "sockets" && name != kKeysFolder) continue;
    std::error_code error;
    if (fs::is_directory(entry, error) && fs::is_empty(entry, error)) continue;  // a disk mounted there, for instance
    return fail(ErrorCode::kInvalidArgument,
                "the folder " + folder + " is no run of tributary, and has " + name +
                    ", which a run would write over; give an empty folder or a new one (--base-dir)");
  }
  return write_small_file((path / kRunMarker).string(), kMarkerText);
}

Status remove_run(const std::string& folder) {
  const auto entries = entries_of(folder);
  if (!entries) return tl::unexpected(entries.error());
  for (const fs::path& entry : *entries) {
    const std::string name = entry.filename();
    Status removed;
    if (is_run_file(name) || is_store(name) || name == "sockets" || name == kKeysFolder) removed = remove_path(entry);
    if (name == "logs") {
      const auto logs = entries_of(entry);
      if (!logs) return tl::unexpected(logs.error());
      for (const fs::path& log : *logs) {
        if (removed && is_log(log.filename())) removed = remove_path(log);
      }
    }
    if (!removed) return removed;
  }
  return {};
}

Status renew_scratch_folder(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error) && !has_marker(path) && !fs::is_empty(path, error)) {
    return fail(ErrorCode::kInvalidArgument,
                "the folder " + path +
                    " would be emptied, and tributary did not make it; move it away, or give another "
                    "folder with --base-dir");
  }
  if (Status removed = remove_path(path); !removed) return removed;
  fs::create_directories(path, error);
  if (error) return fail(ErrorCode::kIo, "cannot create the folder " + path + ": " + error.message());
  return write_small_file((fs::path(path) / kRunMarker).string(), kMarkerText);
}

}  // namespace tributary
