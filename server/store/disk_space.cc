#include "server/store/disk_space.h"

#include <sys/statvfs.h>

#include <cerrno>

#include "common/files/durable_file.h"

namespace tributary {

Status room_on_disk(const std::string& path, std::uint64_t bytes) {
  struct statvfs disk {};
  if (::statvfs(path.c_str(), &disk) != 0) return tl::unexpected<Error>(file_error("look at the disk of", path, errno));
  const std::uint64_t left = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  if (left >= bytes) return {};
  Error full = file_error("have " + std::to_string(bytes >> 20) + " MiB on the disk of", path, ENOSPC);
  full.message += " (" + std::to_string(left >> 20) + " MiB are left)";
  return tl::unexpected<Error>(std::move(full));
}

}  // namespace tributary
