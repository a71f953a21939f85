// The project's version: what the programs print, and what CMake reads (../CMakeLists.txt).
#pragma once

namespace tributary {

inline constexpr const char* kVersion = "0.2.0";

}  // namespace tributary
