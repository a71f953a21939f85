#include <doctest/doctest.h>

#include <string>

#include "common/devices/dynamic_library.h"
#include "tests/unit/expect.h"

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
  const Status resolved = library->resolve("cos", cosine);
  REQUIRE_MESSAGE(resolved, resolved.error().message);
  CHECK(cosine(0.0) == 1.0);
}

TEST_CASE("A library that is nowhere is named with all that was tried and what to do") {
  const auto library = DynamicLibrary::open("NCCL", {"libnccl-not-here.so.2", "libnccl-not-here.so"}, "install it");
  REQUIRE_FALSE(library);
  CHECK(library.error().code == ErrorCode::kNotFound);
  CHECK(library.error().message.starts_with("NCCL cannot be loaded"));
  CHECK(contains(library.error().message, "libnccl-not-here.so.2: cannot open shared object file"));
  CHECK(contains(library.error().message, "libnccl-not-here.so: cannot open shared object file"));
  CHECK(library.error().message.ends_with("; install it"));
}

TEST_CASE("A function that a library lacks is named with the library's file") {
  const auto library = DynamicLibrary::open("the mathematics library", {"libm.so.6"}, "");
  REQUIRE(library);
  void (*function)() = nullptr;
  const Status resolved = library->resolve("no_such_function", function);
  REQUIRE_FALSE(resolved);
  CHECK(resolved.error().code == ErrorCode::kNotFound);
  CHECK(contains(resolved.error().message, "no_such_function"));
  CHECK(contains(resolved.error().message, library->path()));
  library->resolve_if_there("no_such_function", function);
  CHECK((function == nullptr));
}

}  // namespace
}  // namespace tributary::dynamic_library_test
