// A call of `tributary` as a user makes it, and the cluster that it starts in dir/run.
#pragma once

#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/e2e/e2e.h"
#include "tests/unit/required.h"

namespace tributary::e2e {

// A call of `tributary`, its standard output and error apart.
class Call {
 public:
  Call(const TempDir& dir, const std::vector<std::string>& arguments) : out_(dir / "stdout"), error_(dir / "stderr") {
    std::vector<std::string> argv = {"/bin/sh", "-c", "exec \"$0\" \"$@\" >'" + out_ + "' 2>'" + error_ + "'",
                                     bin("tributary")};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    process_ = required(Process::spawn({.argv = argv}));
  }
  int wait(milliseconds patience = kPatience) {
    const auto status = process_.wait(patience);
    INFO(out() << error());
    REQUIRE(status);
    CHECK(status->signal == 0);
    return status->code;
  }
  Process& process() { return process_; }
  std::string out() const { return contents(out_); }
  std::string error() const { return contents(error_); }

 private:
  std::string out_, error_;
  Process process_;
};

// Returns the JSON that a successful call prints.
inline nlohmann::json report_of(const TempDir& dir, const std::vector<std::string>& arguments,
                                milliseconds patience = kPatience) {
  Call call(dir, arguments);
  REQUIRE_MESSAGE(call.wait(patience) == 0, call.error());
  return nlohmann::json::parse(call.out());
}

// Returns the error message of wrong usage: status 2, and nothing on standard output.
inline std::string usage_error(const TempDir& dir, const std::vector<std::string>& arguments) {
  Call call(dir, arguments);
  CHECK(call.wait() == 2);
  CHECK(call.out() == "");
  return call.error();
}

inline std::vector<std::string> with(std::vector<std::string> arguments, std::initializer_list<std::string> more) {
  arguments.insert(arguments.end(), more);
  return arguments;
}

// Returns the pids of the cluster in dir/run, once it is there.
inline std::vector<pid_t> daemons_of(const TempDir& dir) {
  nlohmann::json cluster;
  REQUIRE(eventually([&] {
    cluster = nlohmann::json::parse(contents(dir / "run/cluster.json"), nullptr, false);
    return cluster.is_object();
  }));
  std::vector<pid_t> pids;
  for (const char* kind : {"servers", "workers"}) {
    for (const auto& daemon : cluster.at(kind)) pids.push_back(daemon.at("pid"));
  }
  return pids;
}

inline bool all_gone(const std::vector<pid_t>& pids) {
  return std::ranges::all_of(pids, [](pid_t pid) { return ::kill(pid, 0) != 0; });
}

inline std::uint64_t round_of(const TempDir& dir) {
  const auto cluster = nlohmann::json::parse(contents(dir / "run/cluster.json"), nullptr, false);
  if (!cluster.is_object()) return 0;
  const auto body = http_get(cluster.at("servers").at(0).at("admin"), "/status", milliseconds(2000));
  if (!body) return 0;
  const auto jobs = nlohmann::json::parse(*body).at("coordinator").at("jobs");
  return jobs.empty() ? 0 : jobs.at(0).at("max_version").get<std::uint64_t>();
}

}  // namespace tributary::e2e
