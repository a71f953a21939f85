// Facts about the programs installed next to this tool, and their judgement.
#pragma once

#include <string>
#include <vector>

#include "common/wire/doctor_messages.h"

namespace tributary::cli {

struct InstallFacts {
  std::string folder;                         // of the programs
  std::vector<std::string> missing_programs;  // that should lie next to this one
  std::string data_dir;                       // of the built-in trainer
  bool has_data = false;
};

InstallFacts gather_install_facts();
std::vector<Check> judge(const InstallFacts& facts);

}  // namespace tributary::cli
