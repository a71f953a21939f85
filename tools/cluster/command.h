// Runs a program to its end and returns its output.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "tools/cluster/process.h"

namespace tributary {

struct Command {
  std::vector<std::string> argv;  // argv[0]: a path, or a name to be found with find_program()
  // Some milliseconds are usual; but `ip` and `tc` wait for the kernel's read-copy-update, seconds on a loaded machine.
  std::chrono::milliseconds timeout{60'000};
  std::string network_namespace;  // as in ProcessOptions
};

// Finds a program in PATH, else in the folders of system tools, which a user's PATH often lacks. Empty: there is none.
std::string find_program(const std::string& name);

// Returns standard output and error together. Errors: kNotFound if there is no such program, kTimeout (it was killed),
// kUnavailable if it failed, with the command line and its output.
Result<std::string> run_command(const Command& command);

// "ip -n lab link show", for messages.
std::string command_text(const std::vector<std::string>& argv);

}  // namespace tributary
