#include "common/files/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace tributary {
namespace {

constexpr std::size_t kBlockBytes = 8u << 20;  // of one write

}  // namespace

Error file_error(const std::string& doing, const std::string& path, int errno_value) {
  return {errno_value == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
          "cannot " + doing + " '" + path + "': " + std::strerror(errno_value)};
}

Result<FileDescriptor> open_to_read(const std::string& path, Links links) {
  const int follow = links == Links::kRefuse ? O_NOFOLLOW : 0;
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | follow));
  struct stat info = {};
  if (file.get() < 0 && errno == ELOOP && follow != 0) {
    return fail(ErrorCode::kInvalidArgument, "'" + path + "' is a link, and links are not followed here");
  }
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) return tl::unexpected(file_error("open", path, errno));
  if (!S_ISREG(info.st_mode)) return fail(ErrorCode::kInvalidArgument, "'" + path + "' is no regular file");
  return file;
}

Result<FileDescriptor> open_to_write(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return tl::unexpected(file_error("replace", path, errno));
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (file.get() < 0) return tl::unexpected(file_error("create", path, errno));
  return file;
}

Result<std::uint64_t> size_of(const FileDescriptor& file, const std::string& path) {
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) return tl::unexpected(file_error("look at", path, errno));
  return static_cast<std::uint64_t>(info.st_size);
}

Status write_all(const FileDescriptor& file, const std::string& path, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(file.get(), at, std::min(bytes, kBlockBytes));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return tl::unexpected(file_error("write", path, done < 0 ? errno : ENOSPC));
    at += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return {};
}

Status write_at(const FileDescriptor& file, const std::string& path, std::uint64_t offset, const void* data,
                std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::pwrite(file.get(), at, std::min(bytes, kBlockBytes), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return tl::unexpected(file_error("write", path, done < 0 ? errno : ENOSPC));
    at += done;
    offset += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::size_t>(done);
  }
  return {};
}

Status read_at(const FileDescriptor& file, const std::string& path, std::uint64_t offset, void* data,
               std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::pread(file.get(), at, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return tl::unexpected(file_error("read", path, errno));
    if (done == 0) return fail(ErrorCode::kStore, "'" + path + "' is cut short");
    at += done;
    offset += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::size_t>(done);
  }
  return {};
}

Status sync(const FileDescriptor& file, const std::string& path) {
  if (::fsync(file.get()) != 0) return tl::unexpected(file_error("sync", path, errno));
  return {};
}

Status sync_directory(const std::string& path) {
  const FileDescriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) return tl::unexpected(file_error("open the directory", path, errno));
  return sync(directory, path);
}

Status rename_durably(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    return tl::unexpected(file_error("rename '" + from + "' to", to, errno));
  }
  const std::string directory = std::filesystem::path(to).parent_path().string();
  return sync_directory(directory.empty() ? "." : directory);
}

std::string plain_file_name(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    const bool stays = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                       c == '-' || (c == '.' && !plain.empty());
    plain += stays ? c : '_';
  }
  return plain;
}

Status write_small_file(const std::string& path, std::string_view contents) {
  const Result<FileDescriptor> file = open_to_write(path);
  if (!file) return tl::unexpected(file.error());
  if (Status written = write_all(*file, path, contents.data(), contents.size()); !written) return written;
  return sync(*file, path);
}

Result<std::string> read_small_file(const std::string& path, std::size_t limit) {
  const Result<FileDescriptor> file = open_to_read(path);
  if (!file) return tl::unexpected(file.error());
  const Result<std::uint64_t> size = size_of(*file, path);
  if (!size) return tl::unexpected(size.error());
  if (*size > limit) {
    return fail(ErrorCode::kLimit, "'" + path + "' has " + std::to_string(*size) + " bytes; at most " +
                                       std::to_string(limit) + " are read");
  }
  std::string contents(*size, '\0');
  if (Status read = read_at(*file, path, 0, contents.data(), contents.size()); !read) {
    return tl::unexpected(read.error());
  }
  return contents;
}

}  // namespace tributary
