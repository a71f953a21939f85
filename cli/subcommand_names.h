// Subcommands that were mistyped.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace tributary::cli {

// The command line names a subcommand that is not there: says so in words, with the one that may be meant.
std::optional<std::string> unknown_subcommand(const CLI::App& app, int argc, const char* const* argv);

}  // namespace tributary::cli
