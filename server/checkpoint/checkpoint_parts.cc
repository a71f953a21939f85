#include "server/checkpoint/checkpoint_parts.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "common/base/checksum.h"
#include "common/base/printed.h"
#include "common/files/durable_file.h"
#include "server/checkpoint/uncached_file.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

std::string checksum_of(const LargePart& large) {
  return printed("%016llx%016llx", static_cast<unsigned long long>(large.high),
                 static_cast<unsigned long long>(large.low));
}

std::string path_of(const std::string& directory, const LargePart& large) {
  return (fs::path(directory) / part_file_name(large)).string();
}

Status write_pieces(const std::string& path, const LargePart& large, const ReadPiece& read) {
  const auto writer = UncachedFileWriter::create(path);
  if (!writer) return tl::unexpected(writer.error());
  for (std::uint64_t offset = 0; offset < large.bytes; offset += kPartBytes) {
    const Result<std::vector<std::byte>> piece = read(offset);
    if (!piece) return tl::unexpected(piece.error());
    if (Status written = (*writer)->put(piece->data(), piece->size()); !written) return written;
  }
  if ((*writer)->bytes() != large.bytes || (*writer)->checksum() != checksum_of(large)) {
    return fail(ErrorCode::kStore, "'" + path + "' would get " + std::to_string((*writer)->bytes()) +
                                       " bytes with the checksum " + (*writer)->checksum() + ", not " +
                                       large.in_words() + ": the store's copy is damaged; save a later round");
  }
  return (*writer)->finish();
}

}  // namespace

std::string part_file_name(const LargePart& large) {
  return "part-" + checksum_of(large) + ".bin";
}

Status write_part_file(const std::string& directory, const LargePart& large, const ReadPiece& read) {
  const std::string path = path_of(directory, large);
  Status written = write_pieces(path, large, read);
  if (written) return written;
  std::error_code ignored;  // it is of no use, and the disk may be full
  fs::remove(path, ignored);
  return written;
}

Status read_part_file(const std::string& directory, const LargePart& large, const EachPiece& each) {
  const std::string path = path_of(directory, large);
  const auto damaged = [&](const std::string& flaw) {
    return fail(ErrorCode::kStore, "'" + path + "', a large part of what ranks keep, " + flaw +
                                       "; copy the checkpoint again from where it is whole, or take another one");
  };
  const Result<FileDescriptor> file = open_to_read(path);
  if (!file && file.error().code == ErrorCode::kNotFound) return damaged("is missing");
  if (!file) return tl::unexpected(file.error());
  const Result<std::uint64_t> size = size_of(*file, path);
  if (!size) return tl::unexpected(size.error());
  if (*size != large.bytes) {
    return damaged("has " + std::to_string(*size) + " bytes, the manifest says " + std::to_string(large.bytes));
  }
  Checksum128 checksum;
  std::vector<std::byte> piece(std::min<std::uint64_t>(kPartBytes, large.bytes));
  for (std::uint64_t offset = 0; offset < large.bytes; offset += piece.size()) {
    piece.resize(std::min<std::uint64_t>(kPartBytes, large.bytes - offset));
    if (Status read = read_at(*file, path, offset, piece.data(), piece.size()); !read) return read;
    checksum.add(piece.data(), piece.size());
    if (Status taken = each(offset, piece); !taken) return taken;
  }
  if (checksum.hex() != checksum_of(large)) {
    return damaged("has the checksum " + checksum.hex() + ", not that of its name: it is damaged");
  }
  return {};
}

}  // namespace tributary
