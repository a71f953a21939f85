// A build with nvcc but without NCCL's header succeeds, and reports the missing parts.
#include <cstdio>

#include "tests/e2e/e2e.h"

namespace tributary::e2e::cuda_headers_test {
namespace {

Outcome shell(const std::string& command) {
  return run({"/bin/bash", "-c", command}, {{"CCACHE_BASEDIR", TRIBUTARY_SOURCE_DIR}, {"CCACHE_NOHASHDIR", "1"}},
             4 * kPatience);
}

TEST_CASE("with nvcc but without the header of NCCL, configuring names the cure and the build goes through") {
  const TempDir dir;
  if (shell("command -v nvcc").status != 0) {
    std::printf("skipped: no nvcc on PATH\n");
    return;
  }
  const std::string build = dir / "build", missing = dir / "missing", there = dir / "there";
  std::filesystem::create_directories(missing);
  std::filesystem::create_directories(there);
  std::ofstream(there + "/nccl.h") << "\n";
  const auto configure = [&](const std::string& nccl) {
    return shell("cmake -S '" TRIBUTARY_SOURCE_DIR "' -B '" + build + "' -G Ninja -DTRIBUTARY_CUDA=ON" +
                 " -DTRIBUTARY_NCCL_INCLUDE='" + nccl + "'");
  };

  const Outcome one = configure(there);
  INFO(one.text);
  REQUIRE(one.status == 0);
  CHECK(contains(one.text, "NCCL: " + there + "/nccl.h"));

  const Outcome none = configure(missing);
  INFO(none.text);
  REQUIRE(none.status == 0);
  CHECK(contains(none.text, "NCCL: left out, nccl.h was not found. Install libnccl-dev, or nvidia-nccl-cu13 of PyPI"));

  // Everything that the header could be missing in.
  const Outcome built = shell("cd '" + build +
                              "' && objects=$(ninja -t targets all | sed -n "
                              "'s#^\\(worker/CMakeFiles/tributary_cuda_device.dir/.*[.]o\\):.*#\\1#p; "
                              "s#^\\(common/CMakeFiles/tributary_devices.dir/.*[.]o\\):.*#\\1#p') && "
                              "echo \"$objects\" && ninja $objects");
  INFO(built.text);
  CHECK(built.status == 0);
  CHECK(contains(built.text, "cuda_device_api"));
}

}  // namespace
}  // namespace tributary::e2e::cuda_headers_test
