// The large parts of ranks' states (common/wire/state_head.h) in a checkpoint: a file each, with the part's bytes and
// nothing else, named by their checksum. The states in the manifest name the parts by size and checksum
// (large_parts_of()), so a file's name determines its contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/wire/state_head.h"

namespace tributary {

std::string part_file_name(const LargePart& large);  // "part-CHECKSUM.bin"

// Writes the file: pieces of kPartBytes, from `read`, which gives the one at an offset. kStore if they are another
// part's. Half of a file is removed.
using ReadPiece = std::function<Result<std::vector<std::byte>>(std::uint64_t offset)>;
Status write_part_file(const std::string& directory, const LargePart& large, const ReadPiece& read);

// Reads the file, piece by piece. The checksum is known only at its end, so pieces count only if this returns success.
// An error of `each` ends the reading. kStore: the file is missing or damaged; names the file, its contents and the
// right contents.
using EachPiece = std::function<Status(std::uint64_t offset, std::span<const std::byte> piece)>;
Status read_part_file(const std::string& directory, const LargePart& large, const EachPiece& each);

}  // namespace tributary
