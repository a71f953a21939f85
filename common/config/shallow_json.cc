#include "common/config/shallow_json.h"

#include <nlohmann/json.hpp>
#include <string>

namespace tributary {
namespace {

constexpr int kDeepest = 4;  // of nesting; a job has 3

}  // namespace

// The library reports by exception; nothing above this function sees one.
Result<nlohmann::json> shallow_json_object(std::string_view text) {
  using nlohmann::json;
  bool too_deep = false;
  const auto watch_depth = [&too_deep](int depth, json::parse_event_t, json&) {
    too_deep = too_deep || depth > kDeepest;
    return !too_deep;  // false: drops the value, so that the result stays shallow
  };
  try {
    json root = json::parse(text, watch_depth);
    if (!too_deep && root.is_object()) return root;
  } catch (const json::exception& error) {
    return fail(ErrorCode::kConfig, std::string("not valid JSON: ") + error.what());
  }
  return fail(ErrorCode::kConfig, "must be a JSON object of sections, as in {\"optimizer\": {\"lr\": 0.1}}");
}

}  // namespace tributary
