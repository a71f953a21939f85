// The parts of a command that --help shows, for other descriptions of it: completion.h, manual.h.
#pragma once

#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tributary {

std::vector<const CLI::App*> shown_subcommands(const CLI::App& command);
std::vector<const CLI::App*> option_groups(const CLI::App& command);
// Positionals, too; with those of the option groups.
std::vector<const CLI::Option*> shown_options(const CLI::App& command);

}  // namespace tributary
