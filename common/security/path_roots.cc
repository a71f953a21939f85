#include "common/security/path_roots.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace tributary {

namespace fs = std::filesystem;

Status PathRoots::check(const std::string& path) const {
  if (roots_.empty() && !required_) return {};
  const Result<Place> place = find(path);
  return place ? Status() : tl::unexpected(place.error());
}

Result<Folder> PathRoots::open(const std::string& path, bool make) const {
  const Result<Place> place = find(path);
  if (!place) return tl::unexpected(place.error());
  return Folder::below(place->root, place->below, make);
}

Result<PathRoots::Place> PathRoots::find(const std::string& path) const {
  const auto refused = [&](const std::string& why) {
    return fail(ErrorCode::kInvalidArgument,
                "checkpoints in " + path + " are not allowed on this server: " + why + " ([store] checkpoint_roots)");
  };
  if (roots_.empty() && required_) return refused("it has keys, and no folder is named for them");
  // Follows all links in the existing part of the path; the rest is taken as it is written.
  std::error_code error;
  const fs::path real = fs::weakly_canonical(path, error);
  // The system reads a path to its first NUL: another one than is checked here.
  const bool whole = fs::path(path).is_absolute() && path.find('\0') == std::string::npos;
  if (!whole) return refused("it is no absolute path");
  if (error) return fail(ErrorCode::kIo, "cannot follow the path '" + path + "': " + error.message());
  if (roots_.empty()) return Place{"/", real.relative_path().string()};
  for (const std::string& root : roots_) {
    std::error_code bad;
    fs::path top = fs::weakly_canonical(root, bad);
    if (!top.has_filename() && top.has_relative_path()) top = top.parent_path();  // "/shared/"
    if (!bad && std::ranges::mismatch(top, real).in1 == top.end()) {
      return Place{top.string(), real.lexically_relative(top).string()};
    }
  }
  std::string all;
  for (const std::string& root : roots_) all += (all.empty() ? "" : ", ") + root;
  return refused("only those below " + all + " are");
}

}  // namespace tributary
