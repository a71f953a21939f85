// Libraries that a machine with a GPU may lack (NCCL). A case that does not find its library is skipped with a note. If
// TRIBUTARY_REQUIRE names the library, as bench/gpu_check --require sets it, the case fails.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "common/base/result.h"

namespace tributary::testing {

// library: "nccl". missing: why it cannot be used.
inline void skip_without(const std::string& library, const Error& missing) {
  const char* required = std::getenv("TRIBUTARY_REQUIRE");
  const std::string list = "," + std::string(required != nullptr ? required : "") + ",";
  REQUIRE_MESSAGE(list.find("," + library + ",") == std::string::npos, missing.message);
  REQUIRE_MESSAGE(missing.code == ErrorCode::kNotFound, missing.message);  // it is there, and does not work
  MESSAGE("skipped: " << missing.message);
}

}  // namespace tributary::testing
