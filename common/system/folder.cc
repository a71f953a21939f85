#include "common/system/folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace tributary {
namespace {

// O_PATH: who goes through a folder needs no right to list it.
constexpr int kFlags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

tl::unexpected<Error> cannot(const char* doing, const std::string& path, int errno_value) {
  if (errno_value == ENOTDIR || errno_value == ELOOP) {
    return fail(ErrorCode::kInvalidArgument,
                "'" + path + "' is a link, or no folder, and files are reached through folders only; remove it");
  }
  return fail(errno_value == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
              std::string("cannot ") + doing + " the folder '" + path + "': " + std::strerror(errno_value));
}

}  // namespace

Result<Folder> Folder::open(const std::string& path) {
  FileDescriptor folder(::open(path.c_str(), kFlags));
  if (folder.get() < 0) return cannot("open", path, errno);
  return Folder(std::move(folder), path);
}

Result<Folder> Folder::below(const std::string& top, const std::string& path, bool make) {
  FileDescriptor descriptor(::open(top.c_str(), kFlags & ~O_NOFOLLOW));
  if (descriptor.get() < 0) return cannot("open", top, errno);
  Folder folder(std::move(descriptor), top);
  for (const std::filesystem::path& part : std::filesystem::path(path)) {
    const std::string name = part.string();
    if (name.empty() || name == ".") continue;
    Result<Folder> next = folder.enter(name, make);
    if (!next) return next;
    folder = std::move(*next);
  }
  return folder;
}

Result<Folder> Folder::enter(const std::string& name, bool make) const {
  const std::string there = path_ + (path_.ends_with('/') ? "" : "/") + name;
  if (name == "..") return fail(ErrorCode::kInvalidArgument, "'" + there + "' is no path below '" + path_ + "'");
  FileDescriptor next(::openat(folder_.get(), name.c_str(), kFlags));
  if (next.get() < 0 && errno == ENOENT && make) {
    if (::mkdirat(folder_.get(), name.c_str(), 0777) != 0 && errno != EEXIST) return cannot("make", there, errno);
    next = FileDescriptor(::openat(folder_.get(), name.c_str(), kFlags));
  }
  if (next.get() < 0) return cannot("open", there, errno);
  return Folder(std::move(next), there);
}

Error Folder::named(Error error) const {
  const std::string way = through();
  for (std::size_t at = error.message.find(way); at != std::string::npos; at = error.message.find(way, at)) {
    const char next = at + way.size() < error.message.size() ? error.message[at + way.size()] : '\0';
    const bool longer = next >= '0' && next <= '9';  // another descriptor
    if (!longer) error.message.replace(at, way.size(), path_);
    at += longer ? way.size() : path_.size();
  }
  return error;
}

}  // namespace tributary
