#include "common/base/completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>

#include "common/base/command_tree.h"

namespace tributary {
namespace {

// Placeholders of values in --help, and names of arguments, that are paths.
constexpr std::array<std::string_view, 7> kPathKinds = {"FILE", "FOLDER", "DIR", "PATH", "SOCKET", "CHECKPOINT", "LAB"};

bool is_path(const CLI::Option& option) {
  const std::string kind = option.get_type_name();
  const auto names_one = [](const std::string& word) {
    return std::ranges::find(kPathKinds, word) != kPathKinds.end();
  };
  return names_one(kind) || kind.ends_with(".toml") || (option.get_positional() && names_one(option.get_name(true)));
}

// Returns an option's words, from their form in --help: "TEXT:{tcp,shm}".
std::vector<std::string> words_of(const CLI::Option& option) {
  const std::string kind = option.get_type_name();
  const auto begin = kind.find('{'), end = kind.find('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  return CLI::detail::split(kind.substr(begin + 1, end - begin - 1), ',');
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  return names;
}

// Reads the words that are there already, and then finds the candidates for the next.
class Reader {
 public:
  explicit Reader(const CLI::App& program) : command_(&program) {}

  void take(const std::string& word) {
    if (foreign_) return;
    if (word == "=") {
      awaiting_ = last_;
    } else if (awaiting_ != nullptr) {
      awaiting_ = nullptr;
    } else if (word == "--") {
      foreign_ = true;
    } else if (word.starts_with("-")) {
      last_ = option(word);
      if (last_ != nullptr && last_->get_items_expected_min() > 0) awaiting_ = last_;
    } else if (const CLI::App* below = subcommand(word)) {
      *this = Reader(*below);
    } else {
      ++positionals_;
      foreign_ = command_->get_prefix_command();
    }
  }

  Candidates next(const std::string& begun) {
    if (foreign_) {
      found_.paths = true;
    } else if (awaiting_ != nullptr) {
      offer_values(*awaiting_, begun, "");
    } else if (const auto equals = begun.find('='); begun.starts_with("--") && equals != std::string::npos) {
      const CLI::Option* const named = option(begun.substr(0, equals));
      if (named != nullptr) offer_values(*named, begun, begun.substr(0, equals + 1));
    } else if (begun.starts_with("-")) {
      offer_options(begun);
    } else {
      for (const CLI::App* below : shown_subcommands(*command_)) {
        offer(below->get_name(), begun, below->get_description());
      }
      if (const CLI::Option* place = positional()) offer_values(*place, begun, "");
      if (command_->get_prefix_command()) found_.paths = true;
      if (found_.lines.empty() && !found_.paths) offer_options(begun);
    }
    return std::move(found_);
  }

 private:
  const CLI::Option* option(const std::string& name) const {
    for (const CLI::Option* one : shown_options(*command_)) {
      if (one->nonpositional() && std::ranges::count(names_of(*one), name) > 0) return one;
    }
    return nullptr;
  }

  const CLI::App* subcommand(const std::string& name) const {
    const std::vector<const CLI::App*> all = shown_subcommands(*command_);
    const auto found = std::ranges::find(all, name, [](const CLI::App* one) { return one->get_name(); });
    return found == all.end() ? nullptr : *found;
  }

  // Where the next word without a dash goes.
  const CLI::Option* positional() const {
    int before = positionals_;
    for (const CLI::Option* one : shown_options(*command_)) {
      if (one->get_positional() && (before -= one->get_items_expected_max()) < 0) return one;
    }
    return nullptr;
  }

  void offer(const std::string& word, const std::string& begun, const std::string& what) {
    if (word.starts_with(begun)) found_.lines.push_back(word + "\t" + what.substr(0, what.find('\n')));
  }

  void offer_options(const std::string& begun) {
    for (const CLI::Option* one : shown_options(*command_)) {
      for (const std::string& name : names_of(*one)) offer(name, begun, one->get_description());
    }
  }

  // before: what stands before the value in the same word.
  void offer_values(const CLI::Option& of, const std::string& begun, const std::string& before) {
    for (const std::string& word : words_of(of)) offer(before + word, begun, of.get_description());
    found_.paths = found_.paths || is_path(of);
  }

  const CLI::App* command_;
  const CLI::Option* last_ = nullptr;
  const CLI::Option* awaiting_ = nullptr;  // whose value comes next
  int positionals_ = 0;
  bool foreign_ = false;  // what follows is another program's command line
  Candidates found_;
};

}  // namespace

Candidates candidates(const CLI::App& program, const std::vector<std::string>& words) {
  if (words.empty()) return {};
  Reader reader(program);
  for (std::size_t i = 0; i + 1 < words.size(); ++i) reader.take(words[i]);
  return reader.next(words.back());
}

}  // namespace tributary
