// The manual pages of a program, with the text of --help.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace tributary {

struct ManualPage {
  std::string file;  // "tributary-up.1"
  std::string text;  // for troff, with the macros of man(7)
};

// Returns a page of the program, and one of each of its subcommands, which includes those below it. section: of the
// manual: 1 commands, 8 daemons.
std::vector<ManualPage> manual_pages(const CLI::App& program, int section);

}  // namespace tributary
