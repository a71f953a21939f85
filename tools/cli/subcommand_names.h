// Subcommands that were mistyped.
#pragma once

#include <optional>
#include <string>

#include "common/base/command_line.h"

namespace tributary::cli {

// The command line names a subcommand that is not there: says so in words, with the one that may be meant.
std::optional<std::string> unknown_subcommand(CliCommand top, int argc, const char* const* argv);

}  // namespace tributary::cli
