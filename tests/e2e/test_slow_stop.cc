// A stop over a slow link: a node sends all its residuals, however long that takes. Without the rights to make a
// network namespace the case prints a line that begins with "skipped:".
#include <doctest/doctest.h>

#include <cstdio>
#include <string>

#include "common/base/exit_codes.h"
#include "tests/e2e/e2e.h"
#include "tests/unit/required.h"
#include "tools/cluster/command.h"
#include "tools/cluster/process.h"
#include "tools/lab/network_namespace.h"

namespace tributary::e2e::slow_stop_test {
namespace {

constexpr seconds kMostOfARun{240};

// A network of its own, whose loopback takes 10 Mbit/s in all.
class SlowLoopback {
 public:
  SlowLoopback() {
    run({"ip", "netns", "add", name_});
    run({"ip", "-n", name_, "link", "set", "lo", "mtu", "1500", "up"});
    run({"tc", "-n", name_, "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "10mbit", "burst", "16kb", "limit",
         "4mb"});
  }
  ~SlowLoopback() { [[maybe_unused]] const auto gone = run_command({.argv = {"ip", "netns", "del", name_}}); }
  SlowLoopback(const SlowLoopback&) = delete;
  SlowLoopback& operator=(const SlowLoopback&) = delete;

  std::string path() const { return "/run/netns/" + name_; }

 private:
  static void run(std::vector<std::string> argv) { required(run_command({.argv = std::move(argv)})); }
  const std::string name_ = "tributary-slow-" + std::to_string(::getpid());
};

TEST_CASE("a stop over a link that needs half a minute for what nodes keep loses no round") {
  if (const Status possible = lab::may_make_namespaces(); !possible) {
    std::printf("skipped: %s\n", possible.error().message.c_str());
    return;
  }
  const SlowLoopback slow;
  const TempDir dir;
  Job job;
  job.rounds = 1000;
  // 5.4 MB of parameters and as much of residuals on each of two nodes: 9 seconds for either.
  job.extra = "[encoding]\npush = \"int8\"\n";
  const std::string out = dir / "up.log";
  auto up =
      Process::spawn({.argv = {bin("tributary"), "up", write_job(dir, job), "--servers", "2", "--nodes", "2",
                               "--transport", "tcp", "--set", "train.hidden=[2048, 512]", "--base-dir", dir / "run"},
                      .log_file = out,
                      .network_namespace = slow.path()});
  REQUIRE_MESSAGE(up, up.error().message);
  REQUIRE(eventually([&] { return contains(last_lines(out, 30), "round "); }));
  up->send_signal(SIGINT);
  const auto status = required(up->wait(kMostOfARun));
  const std::string said = last_lines(out, 30);
  CHECK_MESSAGE(status.code == kExitStopped, said);
  CHECK_MESSAGE(contains(said, "; the same command goes on from there"), said);
  CHECK_MESSAGE(!contains(said, "killed"), said);
}

}  // namespace
}  // namespace tributary::e2e::slow_stop_test
