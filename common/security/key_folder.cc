#include "common/security/key_folder.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace tributary {

namespace fs = std::filesystem;

namespace {

// Makes a folder that others may not write, whatever the umask. They may read it: secret files are closed themselves,
// and a server of another user than the maker of the keys (as systemd's) reads the authorized ones.
Status make_folder(const std::string& path) {
  const fs::path above = fs::path(path).lexically_normal().parent_path();
  std::error_code error;
  if (!above.empty()) fs::create_directories(above, error);
  if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) {
    return fail(ErrorCode::kIo, "cannot make the folder " + path + ": " + std::strerror(errno));
  }
  return check_key_folder(path);
}

}  // namespace

Status make_key_folder(const KeyFolder& folder, Role coordinator) {
  if (Status made = make_folder(folder.path); !made) return made;
  if (Status made = make_folder(folder.authorized()); !made) return made;
  auto pair = make_key_pair(kCoordinatorName, coordinator);
  if (!pair) return tl::unexpected(pair.error());
  if (Status written = write_key_pair(folder.pair(kCoordinatorName), *pair); !written) return written;
  if (Status written = write_identity(folder.coordinator(), pair->identity); !written) return written;
  return write_secret(folder.token(), random_token());
}

Result<std::string> add_key(const KeyFolder& folder, const std::string& name, Role role, bool rotate) {
  auto pair = make_key_pair(name, role);
  if (!pair) return tl::unexpected(pair.error());
  std::error_code error;
  if (!fs::is_directory(folder.authorized(), error)) {
    return fail(ErrorCode::kInvalidArgument,
                "there are no keys in " + folder.path + "; `tributary keys init " + folder.path + "` begins with them");
  }
  if (Status closed = check_key_folder(folder.authorized()); !closed) return tl::unexpected(closed.error());
  const auto pub = [&](const std::string& stem) { return folder.authorized() + "/" + stem + ".pub"; };
  std::string stem = name;
  // Second keys have the first one's jobs, and the name with a number.
  if (rotate && fs::exists(pub(stem), error)) {
    const auto first = read_identity(pub(stem));
    if (!first) return tl::unexpected(first.error());
    pair->identity.jobs = first->jobs;
  }
  for (int i = 2; rotate && (fs::exists(pub(stem), error) || fs::exists(folder.pair(stem), error)); ++i) {
    stem = name + "." + std::to_string(i);
  }
  if (!rotate && fs::exists(pub(stem), error)) {
    return fail(ErrorCode::kInvalidArgument, pub(stem) + " is there already; --rotate makes a second key of that name");
  }
  KeyPair own = *pair;
  own.identity.jobs.clear();  // only authorized/ has them
  if (Status written = write_key_pair(folder.pair(stem), own); !written) return tl::unexpected(written.error());
  if (Status written = write_identity(pub(stem), pair->identity); !written) {
    fs::remove(folder.pair(stem), error);
    return tl::unexpected(written.error());
  }
  return folder.pair(stem);
}

}  // namespace tributary
