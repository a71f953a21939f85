// A small lab, for real. Without the rights to make one, the cases print a line that begins with "skipped:", which
// CTest counts as skipped.
#include <doctest/doctest.h>
#include <signal.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/e2e/e2e.h"
#include "tests/unit/required.h"
#include "tools/cluster/command.h"
#include "tools/lab/lab.h"
#include "tools/lab/network_namespace.h"

namespace tributary::e2e::lab_test {
namespace {

constexpr double kRateMbit = 200.0;
constexpr double kModelBytes = 1 << 20;

bool skipped() {
  const Status possible = lab::may_make_namespaces();
  if (possible) return false;
  std::printf("skipped: %s\n", possible.error().message.c_str());
  return true;
}

// A lab whose name no other has, and which is gone at the end of the case.
struct SmallLab {
  SmallLab() : name("test-" + std::to_string(::getpid())), file(dir / "lab.toml") {
    std::ofstream out(file);
    out << "[lab]\nname = \"" << name << "\"\n[network]\nrate_mbit = " << kRateMbit
        << "\n[[hosts]]\nname = \"h\"\ncount = 2\nruns = \"both\"\n"
        << "[exchange]\nmodel_bytes = " << static_cast<int>(kModelBytes) << "\nrounds = 5\nwarmup = 2\n";
  }
  ~SmallLab() {
    if (auto lock = lab::LabLock::take(name)) [[maybe_unused]]
      const auto removed = lab::take_down(std::move(*lock));
  }

  Process start(std::vector<std::string> arguments) const {
    std::vector<std::string> argv = {bin("tributary"), "lab"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return required(Process::spawn({.argv = argv, .log_file = dir / "out.log"}));
  }
  // Its exit status.
  int run(std::vector<std::string> arguments) const {
    std::filesystem::remove(dir / "out.log");
    Process process = start(std::move(arguments));
    const auto status = required(process.wait(kPatience));
    REQUIRE(status.signal == 0);
    return status.code;
  }
  std::string output() const { return last_lines(dir / "out.log", 20); }

  std::vector<std::string> namespaces() const { return lab::namespaces_named(lab::namespace_prefix(name)); }
  std::size_t processes() const {
    std::size_t count = 0;
    for (const std::string& n : namespaces()) count += lab::processes_in(lab::namespace_path(n)).size();
    return count;
  }
  bool has_state() const { return std::filesystem::exists(lab::kLabFolder + name); }

  std::vector<std::string> endless_run() const {
    return {"run", file, "--exchange", "--rounds", "100000", "--base-dir", dir / "run"};
  }
  // A run whose ranks are at work.
  Process running() const {
    Process process = start(endless_run());
    constexpr std::size_t kAll = 2 * 3;  // server, worker and rank of both
    REQUIRE(eventually([&] { return processes() >= kAll; }));
    return process;
  }

  TempDir dir;
  std::string name, file;
};

TEST_CASE("an exchange in a lab keeps to its links, and leaves nothing behind") {
  if (skipped()) return;
  const SmallLab lab;
  const int status = lab.run({"run", lab.file, "--exchange", "--json", "--base-dir", lab.dir / "run"});
  INFO(lab.output());
  REQUIRE(status == 0);
  const std::string text = lab.output();
  const auto result = nlohmann::json::parse(text.substr(text.find('{')));
  CHECK(result.at("mode") == "sync");
  CHECK(result.at("rounds") == 5);
  CHECK(result.at("round_seconds_all").size() == 5);
  // A round cannot be faster than the limit lets its bytes through; the burst passes without waiting.
  const double least = (kModelBytes - 2 * 73'728) / (kRateMbit * 1e6 / 8);
  CHECK(result.at("round_seconds").get<double>() > least);
  // With two workers a host carries one model each way, however the model is divided.
  for (const auto& host : result.at("hosts")) {
    for (const char* way : {"wire_bytes_sent", "wire_bytes_received"}) {
      CHECK(host.at(way).get<double>() > 5 * kModelBytes);
      CHECK(host.at(way).get<double>() < 5 * kModelBytes * 1.15);
    }
  }
  CHECK(result.at("cpu").size() == 6);
  CHECK(lab.namespaces().empty());
  CHECK_FALSE(lab.has_state());
}

TEST_CASE("a comparison measures every variant, beside its prediction") {
  if (skipped()) return;
  const SmallLab lab;
  std::filesystem::remove(lab.dir / "out.log");
  auto process =
      required(Process::spawn({.argv = {bin("tributary"), "bench", "compare", lab.file, "--repetitions", "2",
                                        "--rounds", "3", "--no-verify", "--json", "--base-dir", lab.dir / "run"},
                               .log_file = lab.dir / "out.log"}));
  const auto status = process.wait(kPatience);
  INFO(lab.output());
  REQUIRE(status);
  REQUIRE(status->ok());
  const std::string text = lab.output();
  const auto results = nlohmann::json::parse(text.substr(text.find("{\"labs\"")));
  REQUIRE(results.at("labs").size() == 1);
  const auto& result = results.at("labs")[0];
  REQUIRE(result.at("variants").size() == 3);
  for (const auto& variant : result.at("variants")) {
    const auto& exchange = variant.at("exchange");
    CHECK(exchange.at("seconds").at("all").size() == 2);
    CHECK(exchange.at("wire_bytes").size() == 2);
    CHECK(exchange.at("predicted").at("seconds").get<double>() >= 0.0);
    CHECK_FALSE(exchange.at("binds").get<std::string>().empty());
    CHECK(variant.at("job").is_null());
  }
  CHECK(result.at("speedups").size() == 2);
  CHECK(lab.namespaces().empty());
}

TEST_CASE("a lab that is up is used by runs, keeps its state, and goes when it is taken down") {
  if (skipped()) return;
  const SmallLab lab;
  REQUIRE(lab.run({"up", lab.file, "--json"}) == 0);
  CHECK(lab.namespaces().size() == 3);
  CHECK(lab.has_state());
  REQUIRE(lab.run({"up", lab.file}) == 0);
  CHECK(contains(lab.output(), "already"));
  REQUIRE(lab.run({"run", lab.file, "--exchange", "--json", "--base-dir", lab.dir / "run"}) == 0);
  CHECK(lab.namespaces().size() == 3);
  REQUIRE(lab.run({"down", lab.file}) == 0);
  CHECK(contains(lab.output(), "3 namespaces removed"));
  CHECK(lab.namespaces().empty());
  CHECK_FALSE(lab.has_state());
  REQUIRE(lab.run({"down", lab.name}) == 0);
  CHECK(contains(lab.output(), "nothing was up"));
}

TEST_CASE("what a killed run leaves is found and taken down") {
  if (skipped()) return;
  const SmallLab lab;
  Process run = lab.running();
  // Nobody else may take down what is in use.
  CHECK(lab.run({"down", lab.name}) == 1);
  CHECK(contains(lab.output(), "in use by process " + std::to_string(run.pid())));
  run.terminate(milliseconds(0));
  CHECK(lab.namespaces().size() == 3);
  CHECK(lab.run({"down", lab.name}) == 0);
  CHECK(lab.namespaces().empty());
  CHECK(lab.processes() == 0);
  CHECK_FALSE(lab.has_state());
}

TEST_CASE("the next run removes by itself what a killed one left") {
  if (skipped()) return;
  const SmallLab lab;
  lab.running().terminate(milliseconds(0));
  CHECK(lab.namespaces().size() == 3);
  const int status = lab.run({"run", lab.file, "--exchange", "--json", "--base-dir", lab.dir / "run"});
  INFO(lab.output());
  CHECK(status == 0);
  CHECK(lab.namespaces().empty());
}

TEST_CASE("a run that is interrupted stops everything and removes its lab") {
  if (skipped()) return;
  const SmallLab lab;
  Process run = lab.running();
  run.send_signal(SIGINT);
  const auto status = required(run.wait(kPatience));
  CHECK(status.signal == 0);
  CHECK(status.code == 1);
  CHECK(lab.namespaces().empty());
  CHECK_FALSE(lab.has_state());
}

TEST_CASE("without the right to make networks the lab says so and begins nothing") {
  const SmallLab lab;
  std::vector<std::string> argv = {bin("tributary"), "lab", "up", lab.file};
  const bool allowed = lab::may_make_namespaces().has_value();
  if (allowed) argv.insert(argv.begin(), {"setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"});
  const auto result = failure_of(run_command({.argv = argv}));
  INFO(result.message);
  CHECK(contains(result.message, "exited with status 2"));
  if (allowed) CHECK(contains(result.message, "CAP_NET_ADMIN"));
  CHECK(lab.namespaces().empty());
}

TEST_CASE("a lab file with a mistake is refused before anything is made") {
  const SmallLab lab;
  std::ofstream(lab.file, std::ios::app) << "\n[newtork]\nrate_mbit = 3\n";
  CHECK(lab.run({"up", lab.file}) == 2);
  CHECK(contains(lab.output(), "did you mean [network]?"));
}

}  // namespace
}  // namespace tributary::e2e::lab_test
