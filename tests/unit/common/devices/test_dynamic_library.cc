#include <doctest/doctest.h>

#include <string>

#include "common/devices/dynamic_library.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::dynamic_library_test {
namespace {

using testing::contains;

TEST_CASE("A library is found by the first candidate that loads, and its functions can be called") {
  const auto library =
      DynamicLibrary::open("the mathematics library", {"libnothing-of-the-kind.so.9", "libm.so.6"}, "");
  REQUIRE_MESSAGE(library, library.error().message);
  CHECK(library->name() == "libm.so.6");
  CHECK(library->what() == "the mathematics library");
  CHECK(contains(library->path(), "/libm"));
  double (*cosine)(double) = nullptr;
  required(library->resolve("cos", cosine));
  CHECK(cosine(0.0) == 1.0);
}

TEST_CASE("A library that is nowhere is named with all that was tried and what to do") {
  const auto library =
      failure_of(DynamicLibrary::open("NCCL", {"libnccl-not-here.so.2", "libnccl-not-here.so"}, "install it"));
  CHECK(library.code == ErrorCode::kNotFound);
  CHECK(library.message.starts_with("NCCL cannot be loaded"));
  CHECK(contains(library.message, "libnccl-not-here.so.2: cannot open shared object file"));
  CHECK(contains(library.message, "libnccl-not-here.so: cannot open shared object file"));
  CHECK(library.message.ends_with("; install it"));
}

TEST_CASE("A function that a library lacks is named with the library's file") {
  const auto library = required(DynamicLibrary::open("the mathematics library", {"libm.so.6"}, ""));
  void (*function)() = nullptr;
  const auto resolved = failure_of(library.resolve("no_such_function", function));
  CHECK(resolved.code == ErrorCode::kNotFound);
  CHECK(contains(resolved.message, "no_such_function"));
  CHECK(contains(resolved.message, library.path()));
  library.resolve_if_there("no_such_function", function);
  CHECK((function == nullptr));
}

}  // namespace
}  // namespace tributary::dynamic_library_test
