// Every program's way from CLI11's exceptions to an exit status.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

#include "common/exit_codes.h"

namespace tributary {

// What the process is to exit with at once: 0 after --help or --version, kExitUsage after wrong usage (CLI11's own
// codes are above 100); nothing if the program is to go on.
inline std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  return std::nullopt;
}

}  // namespace tributary
