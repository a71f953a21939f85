#include "common/base/command_tree.h"

#include <CLI/CLI.hpp>

namespace tributary {

std::vector<const CLI::App*> shown_subcommands(const CLI::App& command) {
  return command.get_subcommands(
      [](const CLI::App* below) { return !below->get_name().empty() && !below->get_group().empty(); });
}

std::vector<const CLI::App*> option_groups(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App* below) { return below->get_name().empty(); });
}

std::vector<const CLI::Option*> shown_options(const CLI::App& command) {
  const bool is_group = command.get_parent() != nullptr && command.get_name().empty();
  std::vector<const CLI::Option*> options = command.get_options([&](const CLI::Option* option) {
    return !option->get_group().empty() && !(is_group && option == command.get_help_ptr());
  });
  for (const CLI::App* group : option_groups(command)) {
    const std::vector<const CLI::Option*> more = shown_options(*group);
    options.insert(options.end(), more.begin(), more.end());
  }
  return options;
}

}  // namespace tributary
