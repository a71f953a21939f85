#include "common/doctor/disk_rate.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/base/clock.h"
#include "common/system/file_descriptor.h"

namespace tributary {
namespace {

constexpr std::size_t kPiece = 4u << 20, kPieces = 16;

}  // namespace

Result<double> disk_rate(const std::string& folder) {
  const auto failed = [&](const char* what) {
    return fail(ErrorCode::kIo, std::string("cannot ") + what + " in " + folder + ": " + std::strerror(errno));
  };
  // Without a name, where the file system knows such: it goes with its descriptor, whatever happens.
  FileDescriptor file(::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  if (!file && (errno == EOPNOTSUPP || errno == EISDIR)) {
    std::string name = folder + "/doctor-XXXXXX";
    file = FileDescriptor(::mkostemp(name.data(), O_CLOEXEC));
    if (file) ::unlink(name.c_str());
  }
  if (!file) return failed("make a file");
  const std::vector<char> piece(kPiece, 'x');
  std::size_t written = 0;
  const std::uint64_t begin = steady_ns();
  const auto seconds = [&] { return static_cast<double>(steady_ns() - begin) * 1e-9; };
  for (std::size_t i = 0; i < kPieces && seconds() < kDiskSeconds; ++i) {
    const ssize_t put = ::write(file.get(), piece.data(), kPiece);
    if (put >= 0 && put < static_cast<ssize_t>(kPiece)) errno = ENOSPC;
    if (put != static_cast<ssize_t>(kPiece)) return failed("write");
    if (::fdatasync(file.get()) != 0) return failed("write durably");
    written += kPiece;
  }
  return static_cast<double>(written) / seconds();
}

}  // namespace tributary
