// What orders over the admin endpoint have in common: a JSON object in, a JSON object or an error out.
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
// {"id": ...}
AdminHttp::Answer accepted(const Result<std::uint64_t>& id);
// Decimal digits and nothing else.
std::optional<std::uint64_t> number_in(const std::string& digits);

// Fields of an order, each of them known and of its type.
class OrderFields {
 public:
  explicit OrderFields(const std::string& body);
  std::string text(const char* key);
  bool flag(const char* key);  // false if it is not there
  std::uint64_t number(const char* key);
  Status status() const;  // of all that were asked for

 private:
  const nlohmann::ordered_json* find(const char* key) const;
  void complain(const std::string& about);

  const nlohmann::ordered_json json_;
  std::string complaint_;
};

}  // namespace tributary
