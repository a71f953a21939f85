// Runs one of our Python scripts that draw with matplotlib.
#pragma once

#include <string>
#include <vector>

#include "common/result.h"

namespace tributary::cli {

// name: of a script in bench/, beside an installed tool or in the source tree that the tool was built in. Such a script
// ends with status 3 if there is no matplotlib. Errors say what to install. what: what it makes, for messages.
Status run_plot_script(const std::string& name, const std::vector<std::string>& arguments, const std::string& what);

}  // namespace tributary::cli
