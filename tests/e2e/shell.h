// A command line of a shell, and its result.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/e2e.h"

namespace tributary::e2e {

struct Outcome {
  int status = -1;
  std::string text;  // standard output and error
};

// `log`: a file that is overwritten.
inline Outcome run_shell(const std::string& command, const std::string& log,
                         std::vector<std::pair<std::string, std::string>> environment, seconds patience = kPatience) {
  std::filesystem::remove(log);
  auto process =
      Process::spawn({.argv = {"/bin/bash", "-c", command}, .log_file = log, .environment = std::move(environment)});
  REQUIRE_MESSAGE(process, process.error().message);
  const auto status = process->wait(patience);
  REQUIRE(status);
  std::ifstream in(log);
  return {status->code, {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()}};
}

}  // namespace tributary::e2e
