// Scripts of bench/, wherever it was built or installed.
#pragma once

#include <string>

#include "common/base/result.h"

namespace tributary {

// The path of one: beside the build, or in the install. kNotFound, with where it was sought.
Result<std::string> script_named(const std::string& name);

}  // namespace tributary
