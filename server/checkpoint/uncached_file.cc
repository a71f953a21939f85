#include "server/checkpoint/uncached_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace tributary {
namespace {

constexpr std::size_t kBufferBytes = 1u << 20;  // of one write
constexpr std::size_t kDirectAlign = 4096;      // that files want which are written past the page cache

}  // namespace

UncachedFileWriter::UncachedFileWriter(std::string path, FileDescriptor file)
    : path_(std::move(path)),
      file_(std::move(file)),
      buffer_(static_cast<std::byte*>(std::aligned_alloc(kDirectAlign, kBufferBytes))) {
  if (!buffer_) throw std::bad_alloc();
  // Best effort: a file system without it writes through the page cache.
  const int flags = ::fcntl(file_.get(), F_GETFL);
  if (flags >= 0) ::fcntl(file_.get(), F_SETFL, flags | O_DIRECT);
}

void UncachedFileWriter::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

Result<std::unique_ptr<UncachedFileWriter>> UncachedFileWriter::create(std::string path) {
  Result<FileDescriptor> file = open_to_write(path);
  if (!file) return tl::unexpected(file.error());
  return std::unique_ptr<UncachedFileWriter>(new UncachedFileWriter(std::move(path), std::move(*file)));
}

Status UncachedFileWriter::put(const void* data, std::size_t bytes) {
  checksum_.add(data, bytes);
  bytes_ += bytes;
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const std::size_t piece = std::min(bytes, kBufferBytes - buffered_);
    std::memcpy(buffer_.get() + buffered_, at, piece);
    buffered_ += piece;
    at += piece;
    bytes -= piece;
    if (buffered_ < kBufferBytes) continue;
    if (Status written = write_buffer(kBufferBytes); !written) return written;
    buffered_ = 0;
  }
  return {};
}

Status UncachedFileWriter::write_buffer(std::size_t bytes) {
  Status written = write_all(file_, path_, buffer_.get(), bytes);
  const int flags = ::fcntl(file_.get(), F_GETFL);
  if (!written && (flags & O_DIRECT) != 0 && ::fcntl(file_.get(), F_SETFL, flags & ~O_DIRECT) == 0) {
    // It may be the alignment that this device wants. A full disk fails again.
    if (::lseek(file_.get(), static_cast<off_t>(written_), SEEK_SET) >= 0)
      written = write_all(file_, path_, buffer_.get(), bytes);
  }
  if (written) written_ += bytes;
  return written;
}

Status UncachedFileWriter::finish() {
  // A direct write has a multiple of the alignment; the excess is cut off again.
  const std::size_t rest = (buffered_ + kDirectAlign - 1) / kDirectAlign * kDirectAlign;
  std::memset(buffer_.get() + buffered_, 0, rest - buffered_);
  buffered_ = 0;
  if (Status written = write_buffer(rest); !written) return written;
  if (::ftruncate(file_.get(), static_cast<off_t>(bytes_)) != 0)
    return tl::unexpected(file_error("set the size of", path_, errno));
  return sync(file_, path_);
}

}  // namespace tributary
