// JSON of a configuration, from a file, a trainer or a peer.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "common/base/result.h"

namespace tributary {

// An object of sections, whose keys come out sorted. kConfig, without a source: `text` is none, or is nested more
// deeply than any job: the library prints and compares values recursively.
Result<nlohmann::json> shallow_json_object(std::string_view text);

}  // namespace tributary
