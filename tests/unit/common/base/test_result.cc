#include <doctest/doctest.h>

#include <set>
#include <string_view>

#include "common/base/result.h"

namespace tributary::result_test {

TEST_CASE("every error code has a name of its own, and a number from a newer peer a name too") {
  std::set<std::string_view> names;
  for (std::uint16_t n = 0; n <= static_cast<std::uint16_t>(ErrorCode::kUnknownKind); ++n) {
    const std::string_view name = to_string(static_cast<ErrorCode>(n));
    CHECK(name != "unknown-error-code");
    CHECK(names.insert(name).second);
  }
  CHECK(to_string(static_cast<ErrorCode>(60000)) == "unknown-error-code");
}

}  // namespace tributary::result_test
