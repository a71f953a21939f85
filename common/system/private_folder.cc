#include "common/system/private_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "common/system/file_descriptor.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kOthers = 077;

tl::unexpected<Error> io(const std::string& doing, const std::string& path) {
  return fail(ErrorCode::kIo, "cannot " + doing + " the folder " + path + ": " + std::strerror(errno));
}

tl::unexpected<Error> another_users(const std::string& path, uid_t owner) {
  return fail(ErrorCode::kUnavailable, "the folder " + path + " belongs to user " + std::to_string(owner) +
                                           ", and this process to user " + std::to_string(::geteuid()) +
                                           ": its owner could read and replace what is put there; name another folder");
}

bool is_private(const char* path) {
  struct stat info {};
  return path != nullptr && path[0] == '/' && ::stat(path, &info) == 0 && S_ISDIR(info.st_mode) &&
         info.st_uid == ::geteuid() && (info.st_mode & kOthers) == 0;
}

}  // namespace

Status make_private_folder(const std::string& path) {
  std::error_code error;
  const fs::path above = fs::path(path).parent_path();
  if (!above.empty()) fs::create_directories(above, error);
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return io("create", path);
  const FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder && (errno == ELOOP || errno == ENOTDIR)) {
    return fail(ErrorCode::kUnavailable, path + " is a link or no folder; remove it, or name another folder");
  }
  struct stat info {};
  // One of another user's that is closed to this one cannot be opened.
  if (!folder && errno == EACCES && ::lstat(path.c_str(), &info) == 0 && info.st_uid != ::geteuid()) {
    return another_users(path, info.st_uid);
  }
  if (!folder || ::fstat(folder.get(), &info) != 0) return io("open", path);
  if (info.st_uid != ::geteuid()) return another_users(path, info.st_uid);
  if ((info.st_mode & kOthers) != 0 && ::fchmod(folder.get(), info.st_mode & 0700) != 0) return io("close", path);
  return {};
}

Status check_own_folder(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return io("look at", path);
  if (info.st_uid != ::geteuid()) return another_users(path, info.st_uid);
  return {};
}

std::string run_folder() {
  const std::string user = std::to_string(::geteuid());
  const std::string of_logind = "/run/user/" + user;
  for (const char* runtime : {static_cast<const char*>(std::getenv("XDG_RUNTIME_DIR")), of_logind.c_str()}) {
    if (is_private(runtime)) return std::string(runtime) + "/tributary";
  }
  return "/tmp/tributary-" + user;
}

std::string default_worker_socket() {
  return run_folder() + "/worker.sock";
}

Status prepare_socket_folder(const std::string& path) {
  const std::string folder = run_folder();
  if (fs::path(path).parent_path() != fs::path(folder)) return {};
  return make_private_folder(folder);
}

}  // namespace tributary
