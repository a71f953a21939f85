// The large parts of what ranks keep (common/wire/state_head.h) in a checkpoint: a file each, with its bytes and
// nothing else, named by their checksum. Which there are follows from the states in the manifest (large_parts_of()),
// which name them by size and checksum; so a file says by its name what must be in it.
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

// Reads the file, piece by piece. The checksum is known at its end, so nothing that `each` was given counts before this
// returned success. An error that `each` returns ends the reading. kStore: the file is missing or damaged; names the
// file, what it has and what it must have.
using EachPiece = std::function<Status(std::uint64_t offset, std::span<const std::byte> piece)>;
Status read_part_file(const std::string& directory, const LargePart& large, const EachPiece& each);

}  // namespace tributary
