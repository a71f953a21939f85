// Scripts of this folder, wherever it was built or installed.
#pragma once

#include <string>

#include "common/base/result.h"

namespace tributary::bench {

// The path of a script here: beside the build, or in the install. kNotFound, with where it was sought.
Result<std::string> script_named(const std::string& name);

}  // namespace tributary::bench
