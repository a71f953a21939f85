// How fast a folder's disk takes what has to be durable.
#pragma once

#include <string>

#include "common/base/result.h"

namespace tributary {

// Bytes per second of writing up to 64 MiB to a new file in `folder` and waiting until the disk has them. The file is
// gone afterwards. Takes kDiskSeconds and one piece's time at most. kIo: it cannot be written.
inline constexpr double kDiskSeconds = 3.0;
Result<double> disk_rate(const std::string& folder);

}  // namespace tributary
