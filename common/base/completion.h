// Shell completion: the candidates for the next word of a command line (`tributary completion` prints the scripts that
// ask for them). One thread.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace tributary {

struct Candidates {
  std::vector<std::string> lines;  // each a word, a tab, and its description
  bool paths = false;              // a path is wanted, of which the shell knows more
};

// words: those behind the program's name; the last one, which may be empty, is being typed. A shell that splits words
// at '=' passes the '=' as a word of its own.
Candidates candidates(const CLI::App& program, const std::vector<std::string>& words);

}  // namespace tributary
