// Files that must be whole: written and synced, or not there. Every error names the file and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/system/file_descriptor.h"

namespace tributary {

// "cannot write '/data/x': No space left on device". errno_value: as the failed call left it. kNotFound for ENOENT,
// else kIo.
Error file_error(const std::string& doing, const std::string& path, int errno_value);

// kInvalidArgument unless it is a regular file: opening a pipe would wait for a writer, and a link may lead anywhere.
enum class Links { kRefuse, kFollow };
Result<FileDescriptor> open_to_read(const std::string& path, Links links = Links::kRefuse);
// A new, empty file: one of that name is removed first, not written over (it may have other names).
Result<FileDescriptor> open_to_write(const std::string& path);
Result<std::uint64_t> size_of(const FileDescriptor& file, const std::string& path);

Status write_all(const FileDescriptor& file, const std::string& path, const void* data, std::size_t bytes);
Status write_at(const FileDescriptor& file, const std::string& path, std::uint64_t offset, const void* data,
                std::size_t bytes);
// Exactly `bytes` from `offset` on; kStore if the file ends before.
Status read_at(const FileDescriptor& file, const std::string& path, std::uint64_t offset, void* data,
               std::size_t bytes);
Status sync(const FileDescriptor& file, const std::string& path);
// Makes files created, removed or renamed in a directory durable.
Status sync_directory(const std::string& path);

// Renames within one file system, replacing the new name's file. Durable when it returns.
Status rename_durably(const std::string& from, const std::string& to);

// Returns the name with only letters, digits, '.', '_' and '-', and no '.' at its front: other characters become '_'.
std::string plain_file_name(std::string_view name);

// Writes a small file, whole and durable when it returns (the caller syncs its directory).
Status write_small_file(const std::string& path, std::string_view contents);
// kLimit if it has more than `limit` bytes.
Result<std::string> read_small_file(const std::string& path, std::size_t limit);

}  // namespace tributary
