// Text as JSON. The library's parser is compiled here, once: each source that had its own would take a second longer.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace tributary {

// Text that is no JSON is discarded (is_discarded()): no object, no array, nothing.
nlohmann::json json_in(std::string_view text);
// Keys stay in their order.
nlohmann::ordered_json ordered_json_in(std::string_view text);

}  // namespace tributary
