// Pictures, drawn with Python and matplotlib.
#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"

namespace tributary::cli {

// Runs bench/draw.py, next to an installed tool or in the source tree that the tool was built in. kind, data, page: its
// arguments. Errors say what to install.
Status draw_plots(const std::string& kind, const std::string& data, const std::string& page);

}  // namespace tributary::cli
