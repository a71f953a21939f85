// CheckList: a doctor's findings (Check: common/wire/doctor_messages.h), line by line, and their text and JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/wire/doctor_messages.h"

namespace tributary {

class CheckList {
 public:
  // Begins a section, to which the following lines belong.
  void section(std::string name) { section_ = std::move(name); }
  void ok(std::string name, std::string found) { add(std::move(name), CheckLevel::kOk, std::move(found), {}); }
  void note(std::string name, std::string found, std::string advice) {
    add(std::move(name), CheckLevel::kNote, std::move(found), std::move(advice));
  }
  void problem(std::string name, std::string found, std::string advice) {
    add(std::move(name), CheckLevel::kProblem, std::move(found), std::move(advice));
  }
  void add(std::string name, CheckLevel level, std::string found, std::string advice) {
    checks_.push_back({section_, std::move(name), level, std::move(found), std::move(advice)});
  }
  // Adds a line by the amount: a problem below `least`, a note below `good`.
  void amount(std::string name, std::uint64_t value, std::uint64_t least, std::uint64_t good, std::string found,
              std::string advice);
  std::vector<Check> take() { return std::move(checks_); }

 private:
  std::string section_;
  std::vector<Check> checks_;
};

void append(std::vector<Check>& to, const std::vector<Check>& more);
const char* level_name(CheckLevel level);  // "ok", "note", "problem"
std::size_t count_of(const std::vector<Check>& checks, CheckLevel level);
bool has_problem(const std::vector<Check>& checks);

// One block a section; the advice stands under its line. brief: without the lines that are ok.
std::string checks_text(const std::vector<Check>& checks, bool brief = false);
// "1 problem, 2 notes"
std::string counts_text(const std::vector<Check>& checks);
// [{"section", "name", "level", "found", "advice"}]
nlohmann::ordered_json checks_json(const std::vector<Check>& checks);

}  // namespace tributary
