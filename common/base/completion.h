// What may come next on a command line, for the shells (`tributary completion` prints what asks). One thread.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace tributary {

struct Candidates {
  std::vector<std::string> lines;  // each a word, a tab, and what it is
  bool paths = false;              // a path is wanted, of which the shell knows more
};

// words: what stands behind the program's name; the last one, which may be empty, is being typed. A shell that splits
// words at '=' gives that as a word of its own.
Candidates candidates(const CLI::App& program, const std::vector<std::string>& words);

}  // namespace tributary
