#include "common/config/json_text.h"

#include <nlohmann/json.hpp>

namespace tributary {

nlohmann::json json_in(std::string_view text) {
  return nlohmann::json::parse(text, nullptr, false);
}

nlohmann::ordered_json ordered_json_in(std::string_view text) {
  return nlohmann::ordered_json::parse(text, nullptr, false);
}

}  // namespace tributary
