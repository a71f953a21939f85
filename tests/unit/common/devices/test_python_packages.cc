// Where NVIDIA's libraries lie in Python's packages.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "common/devices/python_packages.h"
#include "tests/unit/temp_dir.h"

namespace tributary::python_packages_test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("libraries are found beside the Pythons on PATH, in its order, and in the user's own packages") {
  const testing::TempDir dir;
  const auto folder = [&](const std::string& name) {
    fs::create_directories(dir / name);
    return dir / name;
  };
  const auto python = [&](const std::string& name) {
    folder(name);
    std::ofstream(dir / (name + "/python3")) << "";
  };
  python("venv/bin");
  python("usr/bin");
  folder("other/bin");
  const std::string cublas = folder("venv/lib/python3.11/site-packages/nvidia/cublas/lib");
  const std::string nccl = folder("venv/lib/python3.11/site-packages/nvidia/nccl/lib");
  folder("venv/lib/python3.11/site-packages/nvidia/no_libraries");
  folder("venv/lib/python3.11/site-packages/torch/lib");
  const std::string pip = folder("usr/local/lib/python3.11/dist-packages/nvidia/nccl/lib");
  folder("other/lib/python3.9/site-packages/nvidia/nccl/lib");
  const std::string own = folder("home/.local/lib/python3.11/site-packages/nvidia/cublas/lib");
  const std::string path = "nowhere::" + (dir / "other/bin") + ":" + (dir / "venv/bin") + ":" + (dir / "usr/bin");
  CHECK(python_library_folders(path, dir / "home") == std::vector<std::string>{cublas, nccl, pip, own});
  CHECK(python_library_folders((dir / "usr/bin") + ":" + (dir / "venv/bin/"), "") ==
        std::vector<std::string>{pip, cublas, nccl});
  CHECK(python_library_folders("", "").empty());
}

}  // namespace
}  // namespace tributary::python_packages_test
