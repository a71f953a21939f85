// Common parts of orders over the admin endpoint: a JSON object in, a JSON object or an error out.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "common/base/result.h"
#include "common/daemon/admin_http.h"

namespace tributary {

// A line of JSON.
std::string text_of(const nlohmann::ordered_json& json);
// {"error": ..., "retry": true if the same may be accepted in a moment}.
AdminHttp::Answer refusal(const Error& error);
// Refuses a question about an order that is not the newest. what: "trace" or another kind of order.
AdminHttp::Answer gone(const std::string& what, const std::string& id);
// {"id": ...}
AdminHttp::Answer accepted(const Result<std::uint64_t>& id);
// Decimal digits and nothing else.
std::optional<std::uint64_t> number_in(const std::string& digits);

}  // namespace tributary
