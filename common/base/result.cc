#include "common/base/result.h"

#include <iterator>

namespace tributary {

std::string_view to_string(ErrorCode code) {
  // By number.
  static constexpr std::string_view kNames[] = {"internal",        "invalid-argument",
                                                "config",          "protocol-version",
                                                "malformed",       "unknown-job",
                                                "unknown-chunk",   "wrong-length",
                                                "stale-view",      "wrong-round",
                                                "layout-mismatch", "config-mismatch",
                                                "topology",        "io",
                                                "store",           "store-format",
                                                "timeout",         "unavailable",
                                                "stopped",         "limit",
                                                "not-found",       "device",
                                                "unknown-kind"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(ErrorCode::kUnknownKind) + 1);
  const auto number = static_cast<std::size_t>(code);
  return number < std::size(kNames) ? kNames[number] : "unknown-error-code";  // of a newer peer's message
}

}  // namespace tributary
