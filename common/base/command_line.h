// A program's command line: commands, their options, and what these may be. CLI11 does the work (command_line.cc),
// whose header alone would cost every file that includes it some seconds of compilation. Commands and options are
// handles: copied at will, good as long as their CommandLine lives. One thread.
#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/exit_codes.h"

namespace CLI {
class App;
class Option;
class Validator;
}  // namespace CLI

namespace tributary {

// A check or a conversion of an option's value.
using CliCheck = std::shared_ptr<const CLI::Validator>;
template <class Number>  // int, std::uint32_t, std::uint64_t, double
CliCheck in_range(Number least, Number most);
CliCheck one_of(std::vector<std::string> names);
CliCheck not_negative();
CliCheck positive();
CliCheck as_bytes();  // "64MiB" becomes its number of bytes
// problem: returns the flaw of a value; empty: none. kind: the name of the value in --help.
CliCheck accepted_by(std::function<std::string(const std::string&)> problem, std::string kind = "");

class CliOption {
 public:
  explicit CliOption(CLI::Option* option) : option_(option) {}
  CliOption* operator->() { return this; }
  const CliOption* operator->() const { return this; }

  CliOption required();
  CliOption type_name(const std::string& name);
  CliOption capture_default_str();  // --help shows the value that the variable has now
  CliOption default_str(const std::string& text);
  CliOption check(const CliCheck& check);
  CliOption transform(const CliCheck& check);
  CliOption needs(CliOption other);
  CliOption excludes(CliOption other);
  CliOption delimiter(char between);
  CliOption group(const std::string& name);  // "": --help does not show it
  CliOption envname(const std::string& name);
  CliOption once_each();  // may be repeated, with one value each time
  std::size_t count() const;
  std::string name() const, environment_variable() const;

 private:
  CLI::Option* option_;
};

class CliCommand {
 public:
  explicit CliCommand(CLI::App* app) : app_(app) {}
  CliCommand* operator->() { return this; }
  CliCommand& operator*() { return *this; }
  const CliCommand* operator->() const { return this; }
  CLI::App& app() const { return *app_; }

  // Value: bool (a word), numbers, std::string, std::optional and std::vector of these (command_line.cc has the list).
  template <class Value>
  CliOption add_option(const std::string& name, Value& value, const std::string& help = "");
  CliOption add_option_function(const std::string& name, std::function<void(const std::string&)> take,
                                const std::string& help = "");
  CliOption add_flag(const std::string& name, bool& value, const std::string& help = "");
  // A flag that may have a word: --name, which is --name=bare, or --name=WORD.
  CliOption add_flag_function(const std::string& name, const std::string& bare,
                              std::function<void(const std::string&)> take, const std::string& help = "");
  CliCommand add_subcommand(const std::string& name, const std::string& help);
  CliCommand add_option_group(const std::string& name);
  CliCommand description(const std::string& text);
  CliCommand footer(const std::string& text);
  CliCommand group(const std::string& name);  // "": --help does not list it
  CliCommand callback(std::function<void()> run);
  CliCommand require_subcommand(int number);
  // Another program's command line follows the options: rest(), in callback().
  CliCommand takes_command();
  std::vector<std::string> rest() const;

 private:
  CLI::App* app_;
};

// Two words that --help does not show are understood first on any command line. `--complete WORD...` prints the
// candidates for the next word (common/base/completion.h), a line each, with exit status 1 where a path is wanted.
// `--manual FOLDER` writes the program's manual pages (common/base/manual.h).
class CommandLine : public CliCommand {
 public:
  // section: of the manual.
  explicit CommandLine(const std::string& description, const std::string& name = "", int section = 1);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;
  void version(const std::string& text);  // of --version
  // Lists a subcommand of another program. parse() replaces the process by PROGRAM, with the same words; if PROGRAM is
  // missing, it prints how to get it (cure). PROGRAM's own command line has this one's name. The returned stand-in may
  // get the names of the subcommands below it, so that mistyped ones are recognised.
  CliCommand add_elsewhere(const std::string& name, const std::string& help, const std::string& program,
                           const std::string& cure);

  // Returns the status to exit with at once: 0 after --help or --version, kExitUsage after wrong usage; nothing if the
  // program is to continue.
  std::optional<int> parse(int argc, const char* const* argv);

 private:
  struct Elsewhere {
    std::string name, program, cure;
  };
  int write_manual(const std::string& folder) const;

  const int section_;
  std::vector<Elsewhere> elsewhere_;
};

}  // namespace tributary
