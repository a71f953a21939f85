#include "common/base/command_line.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <utility>

#include "common/base/command_tree.h"
#include "common/base/completion.h"
#include "common/base/manual.h"

namespace tributary {
namespace {

int print_candidates(const CLI::App& program, const std::vector<std::string>& words) {
  const Candidates found = candidates(program, words);
  for (const std::string& line : found.lines) std::printf("%s\n", line.c_str());
  return found.paths ? kExitFailed : 0;
}

// CLI11 2.4 and newer read the environment for a group's options only if one of them was given.
void take_environment_of_groups(const CLI::App& program) {
  for (const CLI::App* group : option_groups(program)) {
    for (CLI::Option* option : const_cast<CLI::App*>(group)->get_options()) {
      const char* value = option->get_envname().empty() ? nullptr : std::getenv(option->get_envname().c_str());
      if (option->count() > 0 || value == nullptr || *value == '\0') continue;
      option->add_result(value);
      option->run_callback();
    }
  }
}

int not_started(const std::string& program, int error, const std::string& cure) {
  std::fprintf(stderr, "cannot start %s: %s; %s\n", program.c_str(), std::strerror(error), cure.c_str());
  return kExitFailed;
}

// Runs a program to its end. Returns what errno would be, or 0 if the program exits with 0.
int run_to_its_end(const std::string& program, const char* const* argv) {
  pid_t child = 0;
  if (const int error = ::posix_spawn(&child, program.c_str(), nullptr, nullptr, const_cast<char**>(argv), environ))
    return error;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : ECHILD;
}

}  // namespace

template <class Number>
CliCheck in_range(Number least, Number most) {
  return std::make_shared<CLI::Range>(least, most);
}
template CliCheck in_range(int, int);
template CliCheck in_range(std::uint32_t, std::uint32_t);
template CliCheck in_range(std::uint64_t, std::uint64_t);
template CliCheck in_range(double, double);

CliCheck one_of(std::vector<std::string> names) {
  return std::make_shared<CLI::IsMember>(std::move(names));
}
CliCheck not_negative() {
  return std::make_shared<CLI::Validator>(CLI::NonNegativeNumber);
}
CliCheck positive() {
  return std::make_shared<CLI::Validator>(CLI::PositiveNumber);
}
CliCheck as_bytes() {
  return std::make_shared<CLI::AsSizeValue>(false);
}
CliCheck accepted_by(std::function<std::string(const std::string&)> problem, std::string kind) {
  return std::make_shared<CLI::Validator>([problem = std::move(problem)](std::string& text) { return problem(text); },
                                          std::move(kind));
}

CliOption CliOption::required() {
  option_->required();
  return *this;
}
CliOption CliOption::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}
CliOption CliOption::capture_default_str() {
  option_->capture_default_str();
  return *this;
}
CliOption CliOption::default_str(const std::string& text) {
  option_->default_str(text);
  return *this;
}
CliOption CliOption::check(const CliCheck& check) {
  option_->check(*check);
  return *this;
}
CliOption CliOption::transform(const CliCheck& check) {
  option_->transform(*check);
  return *this;
}
CliOption CliOption::needs(CliOption other) {
  option_->needs(other.option_);
  return *this;
}
CliOption CliOption::excludes(CliOption other) {
  option_->excludes(other.option_);
  return *this;
}
CliOption CliOption::delimiter(char between) {
  option_->delimiter(between);
  return *this;
}
CliOption CliOption::group(const std::string& name) {
  option_->group(name);
  return *this;
}
CliOption CliOption::envname(const std::string& name) {
  option_->envname(name);
  return *this;
}
CliOption CliOption::once_each() {
  option_->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return *this;
}
std::size_t CliOption::count() const {
  return option_->count();
}
std::string CliOption::name() const {
  return option_->get_name();
}
std::string CliOption::environment_variable() const {
  return option_->get_envname();
}

template <class Value>
CliOption CliCommand::add_option(const std::string& name, Value& value, const std::string& help) {
  return CliOption(app_->add_option(name, value, help));
}
#define TRIBUTARY_OPTION_OF(...) \
  template CliOption CliCommand::add_option(const std::string&, __VA_ARGS__&, const std::string&)
TRIBUTARY_OPTION_OF(bool);
TRIBUTARY_OPTION_OF(int);
TRIBUTARY_OPTION_OF(std::uint16_t);
TRIBUTARY_OPTION_OF(std::uint32_t);
TRIBUTARY_OPTION_OF(std::uint64_t);
TRIBUTARY_OPTION_OF(double);
TRIBUTARY_OPTION_OF(std::string);
TRIBUTARY_OPTION_OF(std::optional<std::uint16_t>);
TRIBUTARY_OPTION_OF(std::vector<std::string>);
TRIBUTARY_OPTION_OF(std::vector<std::uint32_t>);
TRIBUTARY_OPTION_OF(std::vector<std::uint64_t>);
#undef TRIBUTARY_OPTION_OF

CliOption CliCommand::add_option_function(const std::string& name, std::function<void(const std::string&)> take,
                                          const std::string& help) {
  return CliOption(app_->add_option_function<std::string>(name, std::move(take), help));
}
CliOption CliCommand::add_flag(const std::string& name, bool& value, const std::string& help) {
  return CliOption(app_->add_flag(name, value, help));
}
CliOption CliCommand::add_flag_function(const std::string& name, const std::string& bare,
                                        std::function<void(const std::string&)> take, const std::string& help) {
  return CliOption(app_->add_flag(name + "{" + bare + "}", help)->each(std::move(take)));
}
CliCommand CliCommand::add_subcommand(const std::string& name, const std::string& help) {
  return CliCommand(app_->add_subcommand(name, help));
}
CliCommand CliCommand::add_option_group(const std::string& name) {
  return CliCommand(app_->add_option_group(name));
}
CliCommand CliCommand::description(const std::string& text) {
  app_->description(text);
  return *this;
}
CliCommand CliCommand::footer(const std::string& text) {
  app_->footer(text);
  return *this;
}
CliCommand CliCommand::group(const std::string& name) {
  app_->group(name);
  return *this;
}
CliCommand CliCommand::callback(std::function<void()> run) {
  app_->callback(std::move(run));
  return *this;
}
CliCommand CliCommand::require_subcommand(int number) {
  app_->require_subcommand(number);
  return *this;
}
CliCommand CliCommand::takes_command() {
  app_->prefix_command();
  return *this;
}
std::vector<std::string> CliCommand::rest() const {
  return app_->remaining();
}

CommandLine::CommandLine(const std::string& description, const std::string& name, int section)
    : CliCommand(new CLI::App(description, name)), section_(section) {}

CommandLine::~CommandLine() {
  delete &app();
}

void CommandLine::version(const std::string& text) {
  app().set_version_flag("--version", text);
}

CliCommand CommandLine::add_elsewhere(const std::string& name, const std::string& help, const std::string& program,
                                      const std::string& cure) {
  elsewhere_.push_back({name, program, cure});
  return add_subcommand(name, help);
}

// The pages of other programs' subcommands, then this program's own: both have one of the program as a whole.
int CommandLine::write_manual(const std::string& folder) const {
  std::set<std::string> done, theirs;
  for (const Elsewhere& other : elsewhere_) {
    theirs.insert(app().get_name() + "-" + other.name + "." + std::to_string(section_));
    if (!done.insert(other.program).second) continue;
    const char* const words[] = {other.program.c_str(), "--manual", folder.c_str(), nullptr};
    if (const int error = run_to_its_end(other.program, words)) return not_started(other.program, error, other.cure);
  }
  for (const ManualPage& page : manual_pages(app(), section_)) {
    if (theirs.contains(page.file)) continue;
    const std::string path = folder + "/" + page.file;
    std::ofstream out(path, std::ios::binary);
    out << page.text << std::flush;
    if (out) continue;
    std::fprintf(stderr, "%s: cannot write %s; give a folder that is there and can be written to\n",
                 app().get_name().c_str(), path.c_str());
    return kExitFailed;
  }
  return 0;
}

std::optional<int> CommandLine::parse(int argc, const char* const* argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  // A word that is being typed is completed here: another one may begin like it.
  const bool completes = first == "--complete";
  const std::string command = completes ? (argc > 3 ? argv[2] : "") : first;
  const auto other = std::ranges::find(elsewhere_, command, &Elsewhere::name);
  if (other != elsewhere_.end()) {
    ::execv(other->program.c_str(), const_cast<char* const*>(argv));
    return not_started(other->program, errno, other->cure);
  }
  if (completes) return print_candidates(app(), {argv + 2, argv + argc});
  if (first == "--manual" && argc == 3) return write_manual(argv[2]);
  try {
    app().parse(argc, argv);
    take_environment_of_groups(app());
  } catch (const CLI::ParseError& error) {
    return app().exit(error) == 0 ? 0 : kExitUsage;  // CLI11's own codes are above 100
  }
  return std::nullopt;
}

}  // namespace tributary
