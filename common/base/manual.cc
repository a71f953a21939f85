#include "common/base/manual.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <sstream>

#include "common/base/command_tree.h"

namespace tributary {
namespace {

// Escapes text so that troff prints it as it is, and it can be copied: a bare - is a hyphen, a bare ' a quotation mark.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char letter : text) {
    switch (letter) {
      case '\\':
        out += "\\(rs";
        break;
      case '-':
        out += "\\-";
        break;
      case '\'':
        out += "\\(aq";
        break;
      case '`':
        out += "\\(ga";
        break;
      case '^':
        out += "\\(ha";
        break;
      case '~':
        out += "\\(ti";
        break;
      default:
        out += letter;
    }
  }
  return out.starts_with(".") ? "\\&" + out : out;
}

std::string bold(const std::string& text) {
  return "\\fB" + escaped(text) + "\\fR";
}

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char letter) { return std::toupper(letter); });
  return text;
}

// Lines that are indented stay as they are; the others are filled, and empty ones part paragraphs.
std::string prose(const std::string& text) {
  std::istringstream in(text);
  std::string out;
  enum class At { kGap, kFilled, kAsItIs } at = At::kGap;
  bool first = true;
  for (std::string line; std::getline(in, line);) {
    const bool indented = line.starts_with(" ");
    if (at == At::kAsItIs && !indented) out += ".fi\n.RE\n";
    if (line.empty()) {
      at = At::kGap;
      continue;
    }
    if (indented) {
      if (at != At::kAsItIs) out += std::string(at == At::kGap && !first ? ".PP\n" : "") + ".RS 2\n.nf\n";
      line.erase(0, 2);
    } else if (at != At::kFilled && !first) {
      out += ".PP\n";
    }
    at = indented ? At::kAsItIs : At::kFilled;
    first = false;
    // A line that begins with a space would break the paragraph; in what stays as it is that is meant.
    out += escaped(line) + "\n";
  }
  if (at == At::kAsItIs) out += ".fi\n.RE\n";
  return out;
}

struct Parts {
  std::string description, examples, exit_status;
};

// Splits the text that help prints below the options.
Parts parts_of(const std::string& text) {
  constexpr std::string_view kExitStatus = "Exit status: ";
  Parts parts;
  std::string* into = &parts.description;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const bool ends_examples = into == &parts.examples && !line.empty() && !line.starts_with(" ");
    const bool ends_status = into == &parts.exit_status && line.empty();
    if (ends_examples || ends_status) into = &parts.description;
    if (line == "Example:" || line == "Examples:") {
      into = &parts.examples;
      continue;
    }
    if (line.starts_with(kExitStatus)) {
      into = &parts.exit_status;
      line.erase(0, kExitStatus.size());
    }
    *into += line + "\n";
  }
  return parts;
}

std::string options_text(const std::vector<const CLI::Option*>& options) {
  const CLI::Formatter formatter;
  std::string out;
  for (const CLI::Option* option : options) {
    std::string names;
    const auto add = [&names](const std::string& name) { names += (names.empty() ? "" : ", ") + bold(name); };
    if (option->get_positional()) add(option->get_name(true));
    for (const std::string& name : option->get_snames()) add("-" + name);
    for (const std::string& name : option->get_lnames()) add("--" + name);
    // Many words to choose from are longer than a line.
    const std::string kind = CLI::detail::find_and_replace(escaped(formatter.make_option_opts(option)), ",", ",\\:");
    out += ".TP\n" + names + kind + "\n";
    const std::string what = formatter.make_option_desc(option);
    out += what.empty() ? "\\&\n" : prose(what);
  }
  return out;
}

// Returns the command's own options, and under headings those of its groups.
std::string all_options(const CLI::App& command) {
  std::vector<const CLI::Option*> own =
      command.get_options([](const CLI::Option* option) { return !option->get_group().empty(); });
  std::ranges::stable_partition(own, [](const CLI::Option* option) { return option->get_positional(); });
  std::string out = options_text(own);
  for (const CLI::App* group : option_groups(command)) {
    out += ".SS " + escaped(group->get_group()) + "\n" + options_text(shown_options(*group));
  }
  return out;
}

std::string usage(const CLI::App& command, const std::string& path) {
  const std::string text = CLI::Formatter().make_usage(&command, path);
  return escaped(CLI::detail::trim_copy(text.substr(text.find(':') + 1))) + "\n";
}

// A subcommand on its command's page.
std::string below_text(const CLI::App& command, const std::string& path, const std::string& footer_above) {
  std::string out = ".SS " + escaped(path) + "\n" + usage(command, path) + ".PP\n" + prose(command.get_description());
  out += all_options(command);
  const std::string footer = command.get_footer();  // the one above, where it has none
  if (footer != footer_above) out += ".PP\n" + prose(footer);
  return out;
}

std::string section_text(const std::string& heading, const std::string& text) {
  const std::string out = prose(text);
  return out.empty() ? out : ".SH " + heading + "\n" + out;
}

class Manual {
 public:
  Manual(const CLI::App& program, int section) : program_(program), section_(section), version_(program.version()) {}

  std::vector<ManualPage> pages() const {
    const std::string name = program_.get_name();
    std::string below;
    std::vector<ManualPage> all;
    for (const CLI::App* command : shown_subcommands(program_)) {
      const std::string path = name + " " + command->get_name(), title = name + "-" + command->get_name();
      below += ".TP\n" + bold(path) + "\n" + prose(command->get_description()) + "See " + reference(title) + ".\n";
      all.push_back({file(title), page(*command, title, path, commands_of(*command, path)) + ".SH SEE ALSO\n" +
                                      reference(name) + "\n"});
    }
    all.insert(all.begin(), {file(name), page(program_, name, name, below)});
    return all;
  }

 private:
  std::string suffix() const { return std::to_string(section_); }
  std::string file(const std::string& title) const { return title + "." + suffix(); }
  std::string reference(const std::string& title) const { return bold(title) + "(" + suffix() + ")"; }

  static std::string commands_of(const CLI::App& command, const std::string& path) {
    std::string out;
    for (const CLI::App* below : shown_subcommands(command)) {
      out += below_text(*below, path + " " + below->get_name(), command.get_footer());
    }
    return out;
  }

  std::string page(const CLI::App& command, const std::string& title, const std::string& path,
                   const std::string& commands) const {
    const std::string said = command.get_description();
    const auto line_end = said.find('\n');
    std::string what = said.substr(0, line_end);
    while (what.ends_with('.')) what.pop_back();
    const Parts parts =
        parts_of((line_end == std::string::npos ? "" : said.substr(line_end)) + "\n" + command.get_footer());
    std::string out =
        ".TH " + escaped(upper(title)) + " " + suffix() + " \"\" \"" + escaped(version_) + "\" Tributary\n";
    out += ".nh\n.ad l\n";  // names of options are not broken, nor lines filled up with spaces
    out += ".SH NAME\n" + escaped(title) + " \\- " + escaped(what) + "\n";
    out += ".SH SYNOPSIS\n" + usage(command, path);
    out += section_text("DESCRIPTION", parts.description);
    out += ".SH OPTIONS\n" + all_options(command);
    if (!commands.empty()) out += ".SH COMMANDS\n" + commands;
    out += section_text("EXIT STATUS", parts.exit_status);
    out += section_text("EXAMPLES", parts.examples);
    return out;
  }

  const CLI::App& program_;
  const int section_;
  const std::string version_;
};

}  // namespace

std::vector<ManualPage> manual_pages(const CLI::App& program, int section) {
  return Manual(program, section).pages();
}

}  // namespace tributary
