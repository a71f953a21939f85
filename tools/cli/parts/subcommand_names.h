// Messages for mistyped subcommands.
#pragma once

#include <optional>
#include <string>

#include "common/base/command_line.h"

namespace tributary::cli {

// If the command line names an unknown subcommand: returns the error, with the one that may be meant.
std::optional<std::string> unknown_subcommand(CliCommand top, int argc, const char* const* argv);

}  // namespace tributary::cli
