#include "server/orders/order_http.h"

#include <charconv>

namespace tributary {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

AdminHttp::Answer refusal(const Error& error) {
  const bool missing = error.code == ErrorCode::kNotFound || error.code == ErrorCode::kUnknownJob;
  const bool later = error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kStopped ||
                     error.code == ErrorCode::kTimeout || error.code == ErrorCode::kLimit;
  return {missing ? 404u
          : later ? 503u
                  : 400u,
          text_of({{"error", error.message}, {"retry", error.code == ErrorCode::kUnavailable}})};
}

AdminHttp::Answer gone(const std::string& what, const std::string& id) {
  return refusal({ErrorCode::kNotFound, "there is no " + what + " " + id +
                                            " (any more): another one was ordered, or the coordinator has been "
                                            "restarted since"});
}

AdminHttp::Answer accepted(const Result<std::uint64_t>& id) {
  if (!id) return refusal(id.error());
  return {200, text_of({{"id", *id}})};
}

std::optional<std::uint64_t> number_in(const std::string& digits) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

}  // namespace tributary
