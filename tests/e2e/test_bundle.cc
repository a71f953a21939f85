// The relocatable install, made from this build and started where there is nothing else.
#include "tests/e2e/e2e.h"

namespace tributary::e2e::bundle_test {
namespace {

std::string run_script(std::vector<std::string> argv) {
  argv[0] = std::string(TRIBUTARY_SOURCE_DIR) + "/scripts/" + argv[0];
  const Outcome script = run(argv, {}, 2 * kPatience);
  INFO(script.text);
  REQUIRE(script.status == 0);
  return script.text;
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

TEST_CASE("the bundle is small enough, holds all it needs, and trains in an empty root") {
  const TempDir dir;
  const std::string archive =
      last_line(run_script({"make_bundle.sh", std::filesystem::path(TRIBUTARY_BIN_DIR).parent_path(), dir / "out"}));
  REQUIRE(std::filesystem::is_regular_file(archive));
  const std::filesystem::path folder = archive.substr(0, archive.rfind("-linux-"));
  for (const char* file : {"include/tributary.h", "lib/libtributary.so", "lib/libtributary.so.1",
                           "lib/cmake/Tributary/TributaryConfig.cmake", "lib/pkgconfig/tributary.pc", "sbom.cdx.json",
                           // Programs of PyTorch, with their models and the package.
                           "bench/torch_step.py", "bench/torch_rank.py", "bench/torch_losses.py", "bench/gpt_rank.py",
                           "examples/byte_gpt.py", "examples/gpt.py", "examples/fashion_resnet.py",
                           "examples/rank_device.py", "python/tributary/torch/__init__.py"}) {
    INFO(file);
    CHECK(std::filesystem::is_regular_file(folder / file));
  }

  write_data_set(dir / "data");
  const std::string output = run_script({"check_bundle.sh", archive, dir / "data"});
  MESSAGE(last_line(output));

  // The same job with the libraries of this system: the same bits.
  const std::string job = std::string(TRIBUTARY_SOURCE_DIR) + "/configs/fashion-mnist.toml";
  const std::string log = dir / "standalone";
  auto reference =
      Process::spawn({.argv = {"/usr/bin/env", "-i", bin("tributary-train"), "--job", job, "--standalone", "--ranks",
                               "2", "--json", "--quiet", "--set", "train.data_dir=" + (dir / "data"), "--set",
                               "train.hidden=[32]", "--set", "train.global_batch=64", "--set", "train.max_rounds=30"},
                      .log_file = log});
  REQUIRE_MESSAGE(reference, reference.error().message);
  REQUIRE(reference->wait(kPatience));
  Trainer trainer;
  trainer.log_file = log;
  INFO(contents(log));
  const std::string digest = nlohmann::json::parse(trainer_result(trainer)).at("digest");
  INFO(output);
  CHECK(contains(output, "\"digest\":\"" + digest + "\""));
}

}  // namespace
}  // namespace tributary::e2e::bundle_test
