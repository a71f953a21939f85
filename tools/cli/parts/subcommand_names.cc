#include "tools/cli/parts/subcommand_names.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>
#include <vector>

#include "common/base/command_tree.h"

namespace tributary::cli {
namespace {

// Letters to insert, remove, replace, or swap with the next one.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  std::iota(d[0].begin(), d[0].end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    d[i][0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

// Looks in this command, and then in those below it: `tributary run` may be `tributary lab run`.
std::string meant(const CLI::App& app, const std::string& path, const std::string& word) {
  std::string best;
  std::size_t least = word.size() / 3 + 1;
  for (const CLI::App* command : shown_subcommands(app)) {
    const std::size_t far = distance(word, command->get_name());
    const bool begins = word.size() > 1 && command->get_name().starts_with(word);
    if (!begins && far > least) continue;
    least = begins ? 0 : std::min(least, far);
    best = path + " " + command->get_name();
  }
  if (!best.empty()) return best;
  for (const CLI::App* command : shown_subcommands(app)) {
    for (const CLI::App* below : shown_subcommands(*command)) {
      if (below->get_name() == word) return path + " " + command->get_name() + " " + word;
    }
  }
  return {};
}

}  // namespace

std::optional<std::string> unknown_subcommand(CliCommand top, int argc, const char* const* argv) {
  const CLI::App* at = &top.app();
  std::string path = at->get_name();
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (at->get_require_subcommand_min() == 0 || word.starts_with("-")) return std::nullopt;
    const std::vector<const CLI::App*> commands = at->get_subcommands([](const CLI::App*) { return true; });
    const auto found = std::ranges::find(commands, word, [](const CLI::App* command) { return command->get_name(); });
    if (found == commands.end()) {
      const std::string other = meant(*at, path, word);
      return "'" + path + " " + word + "' is no command" + (other.empty() ? "" : "; did you mean '" + other + "'?") +
             (other.empty() ? "; " : " ") + "'" + path + " --help' lists them all";
    }
    at = *found;
    path += " " + word;
  }
  return std::nullopt;
}

}  // namespace tributary::cli
