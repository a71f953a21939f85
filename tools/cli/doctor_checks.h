// What the facts of a machine mean for a run of Tributary, line by line.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/cli/machine_facts.h"

namespace tributary::cli {

enum class CheckLevel {
  kOk,
  kNote,     // works, but the user may want to know or to change it
  kProblem,  // a run would fail, or leave out what the machine has
};

struct Check {
  std::string section;  // "processor", "memory", "GPUs", ...
  std::string name;     // "open files"
  CheckLevel level = CheckLevel::kOk;
  std::string found;
  std::string advice;  // what to do; empty if all is well
};

std::vector<Check> judge(const MachineFacts& facts);

// One block a section; the advice stands under its line.
std::string doctor_text(const std::vector<Check>& checks);
// {"ok", "problems", "notes", "checks": [{"section", "name", "level", "found", "advice"}], "cuda": {...},
//  "nccl_environment": {...}, "interfaces": [...]}
nlohmann::ordered_json doctor_json(const MachineFacts& facts, const std::vector<Check>& checks);

bool has_problem(const std::vector<Check>& checks);

}  // namespace tributary::cli
