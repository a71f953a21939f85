// Rate of durable writes to a folder's disk.
#pragma once

#include <string>

#include "common/base/result.h"

namespace tributary {

// Returns the bytes per second of writing up to 64 MiB to a new file in `folder`, each piece synced to the disk. The
// file is gone afterwards. Takes kDiskSeconds and one piece's time at most. kIo: it cannot be written.
inline constexpr double kDiskSeconds = 3.0;
Result<double> disk_rate(const std::string& folder);

}  // namespace tributary
