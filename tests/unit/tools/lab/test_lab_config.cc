#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "common/config/config_toml.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tools/lab/lab_config.h"

namespace tributary::lab::lab_config_test {
namespace {

const std::string kHead = "[lab]\nname = \"small\"\n";
const std::string kHosts =
    "[[hosts]]\nname = \"w\"\ncount = 2\nruns = \"worker\"\n[[hosts]]\nname = \"s\"\nruns = \"server\"\n";

LabConfig parsed(const std::string& text) {
  return required(parse_lab_config(text, "lab.toml", "/labs"));
}

std::string refused(const std::string& text) {
  const auto config = failure_of(parse_lab_config(text, "lab.toml", "/labs"));
  CHECK(config.code == ErrorCode::kConfig);
  return config.message;
}

TEST_CASE("groups of hosts become hosts with numbers, in the order of the file") {
  const LabConfig c = parsed(kHead + "[network]\nrate_mbit = 100\n" + kHosts);
  REQUIRE(c.hosts.size() == 3);
  CHECK(c.hosts[0].name == "w0");
  CHECK(c.hosts[1].name == "w1");
  CHECK(c.hosts[2].name == "s");
  CHECK(c.hosts[0].worker);
  CHECK_FALSE(c.hosts[0].server);
  CHECK(c.hosts[2].server);
  CHECK_FALSE(c.hosts[2].worker);
  CHECK(c.workers() == 2);
  CHECK(c.servers() == 1);
  CHECK(c.world_size() == 2);
  for (const LabHost& h : c.hosts) {
    CHECK(h.up_mbit == 100.0);
    CHECK(h.down_mbit == 100.0);
    CHECK(h.bandwidth == 1.0);
  }
}

TEST_CASE("a host's own rates win, and its weight follows from the slower of them unless it is given") {
  const LabConfig c = parsed(kHead +
                             "[network]\nrate_mbit = 200\n"
                             "[[hosts]]\nname = \"a\"\nruns = \"both\"\nrate_mbit = 400\n"
                             "[[hosts]]\nname = \"b\"\nruns = \"both\"\nrate_mbit = 400\nup_mbit = 50\n"
                             "[[hosts]]\nname = \"c\"\nruns = \"both\"\ndown_mbit = 100\nbandwidth = 3\n");
  CHECK(c.hosts[0].up_mbit == 400.0);
  CHECK(c.hosts[0].down_mbit == 400.0);
  CHECK(c.hosts[0].bandwidth == 2.0);
  CHECK(c.hosts[1].up_mbit == 50.0);
  CHECK(c.hosts[1].down_mbit == 400.0);
  CHECK(c.hosts[1].bandwidth == 0.25);
  CHECK(c.hosts[2].up_mbit == 200.0);
  CHECK(c.hosts[2].down_mbit == 100.0);
  CHECK(c.hosts[2].bandwidth == 3.0);
}

TEST_CASE("the job is found beside the lab file, and variants keep their order") {
  const LabConfig c = parsed(kHead + kHosts +
                             "[job]\nfile = \"../jobs/a.toml\"\nset = [\"train.epochs=1\"]\n"
                             "[exchange]\nmodel_bytes = 1_000_000\nrounds = 4\n"
                             "[[variants]]\nname = \"hybrid\"\n"
                             "[[variants]]\nname = \"ring\"\nset = [\"job.mode=allreduce\"]\n"
                             "[[variants]]\nname = \"gloo\"\nbaseline = \"gloo\"\n"
                             "[[variants]]\nname = \"other\"\nfile = \"b.toml\"\n");
  CHECK(c.job.file == "/jobs/a.toml");
  CHECK(c.job.overrides == std::vector<std::string>{"train.epochs=1"});
  CHECK(c.exchange.model_bytes == 1'000'000);
  CHECK(c.exchange.rounds == 4);
  REQUIRE(c.variants.size() == 4);
  CHECK(c.variants[0].file.empty());
  CHECK(c.variants[3].file == "/labs/b.toml");
  CHECK(c.variants[1].name == "ring");
  CHECK(c.variants[1].overrides == std::vector<std::string>{"job.mode=allreduce"});
  CHECK(c.variants[2].baseline == "gloo");
}

TEST_CASE("mistakes in a lab file are named with their line, key and cure") {
  const auto has = [](const std::string& message, const std::string& part) {
    INFO(message);
    CHECK(testing::contains(message, part));
  };
  has(refused(kHead), "a lab needs hosts");
  has(refused(kHead + "[network]\nrate_mbit = 0.5\n" + kHosts), "lab.toml:4: network.rate_mbit = 0.5");
  has(refused(kHead + "[network]\nburst_kb = 10\n" + kHosts), "offloaded packets must fit");
  has(refused(kHead + "[[hosts]]\nname = \"w\"\nruns = \"trainer\"\n"), "lab.toml:5: hosts[0].runs = 'trainer'");
  has(refused(kHead + "[[hosts]]\nname = \"s\"\nruns = \"server\"\n"), "at least one host must run a worker");
  has(refused(kHead + kHosts + "[[hosts]]\nname = \"w1\"\nruns = \"worker\"\n"), "two hosts are named w1");
  has(refused(kHead + kHosts + "[[hosts]]\nname = \"x\"\nruns = \"worker\"\nranks = 2\n"),
      "must be the same on all hosts with a worker; w0 has 1");
  has(refused(kHead + "[[hosts]]\nname = \"w\"\ncount = 65\nruns = \"worker\"\n"), "hosts[0].count = 65");
  has(refused(kHead + "[[hosts]]\nname = \"w\"\nrusn = \"worker\"\nruns = \"worker\"\n"), "did you mean");
  has(refused("[lab]\nname = \"a.b\"\n" + kHosts), "lab.toml:2: lab.name = 'a.b'");
  has(refused(kHead + kHosts + "[[variants]]\nname = \"a\"\n[[variants]]\nname = \"a\"\n"),
      "another variant has this name");
  has(refused(kHead + kHosts + "[[variants]]\nname = \"a\"\nfile = \"b.toml\"\nbaseline = \"gloo\"\n"),
      "a baseline trains no job");
  has(refused(kHead + kHosts + "[job]\nset = [1]\n"), "an array of strings");
}

TEST_CASE("a burst holds the largest offloaded packet and a millisecond of the rate") {
  CHECK(default_burst_bytes(10.0) == 72u << 10);
  CHECK(default_burst_bytes(250.0) == 72u << 10);
  CHECK(default_burst_bytes(10'000.0) == 1'250'000);
}

TEST_CASE("names that could leave a folder or another lab's prefix are none") {
  CHECK(is_lab_name("lab-4+4"));
  for (const char* name : {"", "a.b", "../a", "-a", "a b", "a/b"}) CHECK_FALSE(is_lab_name(name));
}

TEST_CASE("every lab file that comes along is right, and so are the jobs and variants it names") {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TRIBUTARY_SOURCE_DIR "/configs")) {
    if (!entry.path().filename().string().starts_with("lab-")) continue;
    const auto config = required(load_lab_config(entry.path().string()));
    CHECK(config.name + ".toml" == entry.path().filename().string());
    ++files;
    if (config.job.file.empty()) continue;
    std::vector<LabVariant> variants = config.variants;
    variants.push_back({});
    for (const LabVariant& variant : variants) {
      std::vector<std::string> overrides = config.job.overrides;
      overrides.insert(overrides.end(), variant.overrides.begin(), variant.overrides.end());
      const auto job = load_job_config(variant.file.empty() ? config.job.file : variant.file, overrides);
      CHECK_MESSAGE(job, job.error().message);
    }
  }
  CHECK(files >= 4);
}

}  // namespace
}  // namespace tributary::lab::lab_config_test
