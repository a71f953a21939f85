#include "common/system/sealed_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "common/system/shared_memory.h"

namespace tributary {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
constexpr int kTries = 500;
constexpr std::chrono::milliseconds kPause{4};

Error problem(const std::string& purpose, const std::string& what) {
  return {ErrorCode::kIo, what + " for " + purpose + ": " + std::strerror(errno)};
}

}  // namespace

Result<std::shared_ptr<const SealedBytes>> SealedBytes::of(std::span<const std::span<const std::byte>> parts,
                                                           const std::string& purpose) {
  std::size_t bytes = 0;
  for (const auto& part : parts) bytes += part.size();
  auto writer = SealedWriter::begin(bytes, purpose);
  if (!writer) return tl::unexpected(writer.error());
  for (const auto& part : parts) {
    if (Status written = writer->write(part); !written) return tl::unexpected(written.error());
  }
  return writer->seal();
}

Result<std::shared_ptr<const SealedBytes>> SealedBytes::received(FileDescriptor fd, std::size_t bytes,
                                                                 const std::string& purpose) {
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return fail(ErrorCode::kMalformed, "no memory came for " + purpose);
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (bytes == 0 || static_cast<std::uint64_t>(info.st_size) != bytes || seals < 0 || (seals & kSeals) != kSeals) {
    return fail(ErrorCode::kMalformed, "what came as memory for " + purpose + " (" + std::to_string(info.st_size) +
                                           " bytes) is not " + std::to_string(bytes) +
                                           " bytes that are sealed; both sides must be of the same release");
  }
  void* address = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) return tl::unexpected(problem(purpose, "cannot map memory"));
  return std::shared_ptr<const SealedBytes>(
      new SealedBytes(std::move(fd), static_cast<const std::byte*>(address), bytes));
}

SealedBytes::~SealedBytes() {
  ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<SealedWriter> SealedWriter::begin(std::size_t bytes, const std::string& purpose) {
  if (bytes == 0) return fail(ErrorCode::kInvalidArgument, "there is nothing to keep for " + purpose);
  if (bytes > available_memory()) {
    return fail(ErrorCode::kLimit, "cannot take " + std::to_string(bytes) + " bytes of memory for " + purpose + " (" +
                                       std::to_string(available_memory()) +
                                       " are available); free memory, or keep less");
  }
  FileDescriptor fd(::memfd_create("tributary", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return tl::unexpected(problem(purpose, "cannot create memory"));
  return SealedWriter(std::move(fd), bytes, purpose);
}

Status SealedWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return tl::unexpected(problem(purpose_, "cannot write memory"));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

// Retries, because the kernel refuses while a page has a temporary reference: its own, when it moves or counts pages.
Result<std::shared_ptr<const SealedBytes>> SealedWriter::seal() {
  for (int left = kTries; ::fcntl(fd_.get(), F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0; --left) {
    if (errno != EBUSY || left == 0) return tl::unexpected(problem(purpose_, "cannot seal memory"));
    std::this_thread::sleep_for(kPause);
  }
  return SealedBytes::received(std::move(fd_), bytes_, purpose_);
}

}  // namespace tributary
