// Scripts of bench/, wherever it was built or installed.
#pragma once

#include <string>

#include "common/base/result.h"

namespace tributary {

// Returns the path of a script: next to the build, or in the install. kNotFound, with the places searched.
Result<std::string> script_named(const std::string& name);

}  // namespace tributary
