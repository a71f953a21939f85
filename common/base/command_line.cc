#include "common/base/command_line.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <utility>

#include "common/base/completion.h"
#include "common/base/manual.h"

namespace tributary {
namespace {

int print_candidates(const CLI::App& program, const std::vector<std::string>& words) {
  const Candidates found = candidates(program, words);
  for (const std::string& line : found.lines) std::printf("%s\n", line.c_str());
  return found.paths ? kExitFailed : 0;
}

int write_manual(const CLI::App& program, int section, const std::string& folder) {
  for (const ManualPage& page : manual_pages(program, section)) {
    const std::string path = folder + "/" + page.file;
    std::ofstream out(path, std::ios::binary);
    out << page.text << std::flush;
    if (out) continue;
    std::fprintf(stderr, "%s: cannot write %s; give a folder that is there and can be written to\n",
                 program.get_name().c_str(), path.c_str());
    return kExitFailed;
  }
  return 0;
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

std::optional<int> CommandLine::parse(int argc, const char* const* argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--complete") return print_candidates(app(), {argv + 2, argv + argc});
  if (first == "--manual" && argc == 3) return write_manual(app(), section_, argv[2]);
  try {
    app().parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app().exit(error) == 0 ? 0 : kExitUsage;  // CLI11's own codes are above 100
  }
  return std::nullopt;
}

}  // namespace tributary
