#include "server/order_http.h"

#include <charconv>

namespace tributary {

using Json = nlohmann::ordered_json;
using Answer = AdminHttp::Answer;

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Answer refusal(const Error& error) {
  const bool missing = error.code == ErrorCode::kNotFound || error.code == ErrorCode::kUnknownJob;
  const bool later = error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kStopped ||
                     error.code == ErrorCode::kTimeout || error.code == ErrorCode::kLimit;
  return {missing ? 404u
          : later ? 503u
                  : 400u,
          text_of({{"error", error.message}, {"retry", error.code == ErrorCode::kUnavailable}})};
}

Answer accepted(const Result<std::uint64_t>& id) {
  if (!id) return refusal(id.error());
  return {200, text_of({{"id", *id}})};
}

std::optional<std::uint64_t> number_in(const std::string& digits) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

OrderFields::OrderFields(const std::string& body) : json_(Json::parse(body, nullptr, false)) {
  if (!json_.is_object()) complaint_ = "an order is a JSON object";
}

const Json* OrderFields::find(const char* key) const {
  if (!json_.is_object()) return nullptr;
  const auto found = json_.find(key);
  return found == json_.end() ? nullptr : &*found;
}

void OrderFields::complain(const std::string& about) {
  if (complaint_.empty()) complaint_ = about;
}

std::string OrderFields::text(const char* key) {
  const Json* found = find(key);
  if (found && found->is_string()) return found->get<std::string>();
  complain(std::string("\"") + key + "\" must be a text");
  return {};
}

bool OrderFields::flag(const char* key) {
  const Json* found = find(key);
  if (!found) return false;
  if (!found->is_boolean()) complain(std::string("\"") + key + "\" must be true or false");
  return found->is_boolean() && found->get<bool>();
}

std::uint64_t OrderFields::number(const char* key) {
  const Json* found = find(key);
  if (found && found->is_number_unsigned()) return found->get<std::uint64_t>();
  complain(std::string("\"") + key + "\" must be a whole number, 0 or more");
  return 0;
}

Status OrderFields::status() const {
  return complaint_.empty() ? Status{} : Status(fail(ErrorCode::kInvalidArgument, complaint_));
}

}  // namespace tributary
