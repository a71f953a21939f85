// The installed files for trainers in C: examples/session.c is built with them outside the tree, with CMake and with
// pkg-config, and finds the library.
#include "tests/e2e/e2e.h"

namespace tributary::e2e::c_install_test {
namespace {

Outcome shell(const TempDir& dir, const std::string& command) {
  // Not those that would be found on this machine already.
  return run({"/bin/bash", "-c", "cd '" + dir.path() + "' && " + command},
             {{"TRIBUTARY_RANK", ""}, {"RANK", ""}, {"LD_LIBRARY_PATH", ""}});
}

void succeeds(const TempDir& dir, const std::string& command) {
  const Outcome outcome = shell(dir, command);
  INFO(command << "\n" << outcome.text);
  REQUIRE(outcome.status == 0);
}

// The program has found its library when it says what it lacks.
void runs(const TempDir& dir, const std::string& command) {
  const Outcome outcome = shell(dir, command);
  INFO(command << "\n" << outcome.text);
  CHECK(outcome.status == 1);
  CHECK(contains(outcome.text, "TRIBUTARY_TOPOLOGY: environment variable RANK is not set"));
}

}  // namespace

TEST_CASE("an installed header and library are found by CMake and pkg-config, wherever the folder goes") {
  const TempDir dir;
  const std::string build = std::filesystem::path(TRIBUTARY_BIN_DIR).parent_path();
  succeeds(dir, "cmake --install '" + build + "' --component library --prefix '" + (dir / "first") + "'");
  std::filesystem::rename(dir / "first", dir / "prefix");
  for (const char* file :
       {"include/tributary.h", "lib/libtributary.so", "lib/libtributary.so.1", "examples/session.c"}) {
    INFO(file);
    CHECK(std::filesystem::is_regular_file(dir / "prefix" + "/" + file));
  }
  // Programs are another component.
  CHECK_FALSE(std::filesystem::exists(dir / "prefix/bin"));

  std::filesystem::create_directories(dir / "own");
  std::filesystem::copy_file(dir / "prefix/examples/session.c", dir / "own/session.c");
  std::ofstream(dir / "own/CMakeLists.txt") << "cmake_minimum_required(VERSION 3.16)\n"
                                               "project(own LANGUAGES C)\n"
                                               "find_package(Tributary REQUIRED)\n"
                                               "add_executable(own session.c)\n"
                                               "target_link_libraries(own PRIVATE Tributary::tributary)\n";
  succeeds(dir, "cmake -S own -B own/build -DCMAKE_PREFIX_PATH='" + (dir / "prefix") + "' && cmake --build own/build");
  runs(dir, "own/build/own");

  succeeds(
      dir,
      "export PKG_CONFIG_PATH='" + (dir / "prefix/lib/pkgconfig") +
          "' && cc -std=c11 -Wall -Wextra -Werror own/session.c $(pkg-config --cflags --libs tributary) -o with_pc");
  runs(dir, "LD_LIBRARY_PATH='" + (dir / "prefix/lib") + "' ./with_pc");
}

}  // namespace tributary::e2e::c_install_test
